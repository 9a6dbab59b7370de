"""Environments of gymnax as tasks."""
