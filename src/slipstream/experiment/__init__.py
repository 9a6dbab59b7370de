"""An experiment: task, learner and budget, as a value and as JSON."""
