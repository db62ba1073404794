"""How each framework keeps its state, and how settings are read off a live run."""
