"""Between our frames (east-north-up, forward-left-up) and PX4's (north-east-down, forward-right-down)."""

import math

import numpy as np


def turned(v: np.ndarray) -> np.ndarray:
    """East-north-up to north-east-down, or back."""
    return np.stack([v[..., 1], v[..., 0], -v[..., 2]], -1)


def flipped(v: np.ndarray) -> np.ndarray:
    """Forward-left-up to forward-right-down, or back."""
    return v * np.array([1.0, -1.0, -1.0])


def attitude_ned(q: np.ndarray) -> np.ndarray:
    """An attitude from forward-left-up to east-north-up, as one from forward-right-down to north-east-down; or back.

    Turning the world's axes about the line between x and y, and the body's about x, by half a turn each.
    """
    w, x, y, z = (q[..., k] for k in range(4))
    return math.sqrt(0.5) * np.stack([w + z, x + y, x - y, w - z], -1)
