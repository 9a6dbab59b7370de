"""Algorithms that learn on the device, and the trainer that runs them."""
