"""Flights from PX4's own logs."""

from pathlib import Path

import numpy as np

from ...dynamics.recording import Recording
from ..plant import PlantError
from .frames import turned


def from_log(path: Path, rate: int = 20, seconds: float = 20.0) -> Recording:
    """Flights from a PX4 log: the stretches in which a velocity was commanded, cut to equal lengths."""
    try:
        from pyulog import ULog
    except ImportError as error:
        raise PlantError("reading a flight log needs pyulog: pip install pyulog") from error
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"ULog":
                raise PlantError(f"{path} is no PX4 flight log: it does not begin like one")
        log = ULog(str(path), ["vehicle_local_position", "trajectory_setpoint"])
        tables = {table.name: table.data for table in log.data_list}
    except PlantError:
        raise
    except OSError as error:
        raise PlantError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:
        # The reader meets a damaged file with whatever goes wrong first.
        raise PlantError(f"{path} is damaged and cannot be read as a flight log ({type(error).__name__})") from error
    missing = {"vehicle_local_position", "trajectory_setpoint"} - tables.keys()
    if missing:
        raise PlantError(f"{path} has no {' and no '.join(sorted(missing))}; log with the default set of topics")
    been, told = tables["vehicle_local_position"], tables["trajectory_setpoint"]
    when = told["timestamp"] * 1e-6
    wanted = np.stack([told[f"velocity[{k}]"] for k in range(3)] + [told["yawspeed"]], -1)
    wanted[:, 3] = np.nan_to_num(wanted[:, 3])
    good: np.ndarray = np.all(np.isfinite(wanted), axis=1)
    for name in ("position[0]", "position[1]", "position[2]"):
        # Where a place is commanded, the velocity beside it is not what the vehicle is to fly.
        good &= ~np.isfinite(told.get(name, np.full(len(when), np.nan)))
    if good.sum() < 2:
        raise PlantError(f"in {path} no velocity is ever commanded; fly it in offboard mode by velocities")
    grid = np.arange(max(when[0], been["timestamp"][0] * 1e-6), when[-1], 1.0 / rate)
    held = np.clip(np.searchsorted(when, grid, "right") - 1, 0, len(when) - 1)
    fresh = good[held] & (grid - when[held] < 0.5)
    at = been["timestamp"] * 1e-6
    between = lambda *names: np.stack([np.interp(grid, at, been[name]) for name in names], -1).astype(np.float32)  # noqa: E731
    place, speed = between("x", "y", "z"), between("vx", "vy", "vz")
    yaw = np.interp(grid, at, np.unwrap(been["heading"]))
    turn = np.gradient(yaw, 1.0 / rate)
    rows, length = [], round(seconds * rate)
    at = 0
    while at + length < len(grid):
        if fresh[at : at + length].all():
            rows.append(slice(at, at + length + 1))
            at += length
        else:
            at += max(1, length // 8)
    if not rows:
        raise PlantError(
            f"{path} holds no {seconds:g} s of commanded velocity without a break; try --seconds with less"
        )
    cut = lambda x: np.stack([x[r] for r in rows])  # noqa: E731
    w = wanted[held]
    commands = np.concatenate([turned(w[:, :3]), -w[:, 3:]], -1).astype(np.float32)
    rates = np.stack([0 * turn, 0 * turn, -turn], -1).astype(np.float32)
    heading = 0.5 * (0.5 * np.pi - yaw)
    q = np.stack([np.cos(heading), 0 * yaw, 0 * yaw, np.sin(heading)], -1).astype(np.float32)
    return Recording(
        commands=cut(commands)[:, :-1],
        position=cut(turned(place)),
        velocity=cut(turned(speed)),
        attitude=cut(q),
        rates=cut(rates),
        rotors=np.zeros((len(rows), length + 1, 4), np.float32),
        dt=1.0 / rate,
        source=path.name,
    )
