"""A rover that drives through crop rows by a queue of commands."""

from .task import Field

__all__ = ["Field"]
