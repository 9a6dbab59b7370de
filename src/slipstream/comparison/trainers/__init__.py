"""One file a library: `train(work, meter)` gives it the work and lets the meter look in between."""
