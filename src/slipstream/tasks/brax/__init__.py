"""Environments of Brax as tasks."""
