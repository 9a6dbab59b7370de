"""What robots are asked to do."""
