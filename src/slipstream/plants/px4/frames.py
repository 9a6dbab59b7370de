"""Conversions between our frames (world ENU, body FLU) and PX4's (world NED, body FRD); each is its own inverse."""

import math

import numpy as np
from jaxtyping import Float


def enu_to_ned(v: Float[np.ndarray, "*b 3"]) -> Float[np.ndarray, "*b 3"]:
    """East-north-up to north-east-down, or back."""
    return np.stack([v[..., 1], v[..., 0], -v[..., 2]], -1)


def flu_to_frd(v: Float[np.ndarray, "*b 3"]) -> Float[np.ndarray, "*b 3"]:
    """Forward-left-up to forward-right-down, or back."""
    return v * np.array([1.0, -1.0, -1.0])


def attitude_to_ned(q: Float[np.ndarray, "*b 4"]) -> Float[np.ndarray, "*b 4"]:
    """The rotation from FLU to ENU as the one from FRD to NED, or back.

    The world is rotated by half a turn about the bisector of x and y, the body by half a turn about x.
    """
    w, x, y, z = (q[..., k] for k in range(4))
    return math.sqrt(0.5) * np.stack([w + z, x + y, x - y, w - z], -1)
