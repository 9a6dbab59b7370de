"""Plants: what moves the bodies in an evaluation (the fast model, MuJoCo, Betaflight or PX4)."""
