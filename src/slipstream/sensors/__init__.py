"""What bodies feel and see."""
