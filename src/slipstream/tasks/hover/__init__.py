"""Hovering: from any attitude, speed and spin to rest at a point, or to a moving reference."""

from .task import Hover, HoverReward, HoverStart, HoverState, Reference

__all__ = ["Hover", "HoverReward", "HoverStart", "HoverState", "Reference"]
