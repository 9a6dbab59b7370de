"""The run directory, checkpoints, the training loop, and several runs at once."""
