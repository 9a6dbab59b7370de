"""Flying a trained policy on a plant, and scoring it with the code of the task."""
