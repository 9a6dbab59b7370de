"""What moves the bodies in an evaluation: the fast model, MuJoCo, Betaflight, PX4."""
