"""The one seam to the hardware: where allocated, reserved and driver figures come from."""
