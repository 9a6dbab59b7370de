"""Several vessels, each on its way to a goal, among buoys and each other."""

from .task import Marine

__all__ = ["Marine"]
