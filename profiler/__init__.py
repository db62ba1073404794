"""What runs in a training process, and the predictor."""
