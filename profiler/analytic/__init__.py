"""Closed formulas for what training will hold. Torch-free: importing it loads no torch."""
