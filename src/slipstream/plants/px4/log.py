"""Recorded flights from PX4's log files."""

from pathlib import Path

import numpy as np

from ...dynamics.recording import Recording
from ..plant import PlantError
from .frames import enu_to_ned


def from_log(path: Path, rate: int = 20, seconds: float = 20.0) -> Recording:
    """Flights from a PX4 log: the intervals in which a velocity was commanded, cut to equal lengths."""
    try:
        from pyulog import ULog
    except ImportError as error:
        raise PlantError("reading a flight log needs pyulog: pip install pyulog") from error
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"ULog":
                raise PlantError(f"{path} is not a PX4 flight log: it does not begin with the letters ULog")
        log = ULog(str(path), ["vehicle_local_position", "trajectory_setpoint"])
        tables = {table.name: table.data for table in log.data_list}
    except PlantError:
        raise
    except OSError as error:
        raise PlantError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:
        # On a damaged file the reader raises whatever fails first.
        raise PlantError(f"{path} is damaged and cannot be read as a flight log ({type(error).__name__})") from error
    missing = {"vehicle_local_position", "trajectory_setpoint"} - tables.keys()
    if missing:
        raise PlantError(f"{path} has no {' and no '.join(sorted(missing))}; log with the default set of topics")
    measured, setpoints = tables["vehicle_local_position"], tables["trajectory_setpoint"]
    setpoint_time = setpoints["timestamp"] * 1e-6
    commanded = np.stack([setpoints[f"velocity[{k}]"] for k in range(3)] + [setpoints["yawspeed"]], -1)
    commanded[:, 3] = np.nan_to_num(commanded[:, 3])
    valid: np.ndarray = np.all(np.isfinite(commanded), axis=1)
    for name in ("position[0]", "position[1]", "position[2]"):
        # With a position setpoint the velocity is only its feed-forward.
        valid &= ~np.isfinite(setpoints.get(name, np.full(len(setpoint_time), np.nan)))
    if valid.sum() < 2:
        raise PlantError(
            f"{path} has no velocity setpoints; log a flight in offboard mode that is commanded velocities"
        )
    time = measured["timestamp"] * 1e-6
    grid = np.arange(max(setpoint_time[0], time[0]), setpoint_time[-1], 1.0 / rate)
    newest = np.clip(np.searchsorted(setpoint_time, grid, "right") - 1, 0, len(setpoint_time) - 1)
    fresh = valid[newest] & (grid - setpoint_time[newest] < 0.5)

    def resample(*names: str) -> np.ndarray:
        return np.stack([np.interp(grid, time, measured[name]) for name in names], -1).astype(np.float32)

    position, velocity = resample("x", "y", "z"), resample("vx", "vy", "vz")
    yaw = np.interp(grid, time, np.unwrap(measured["heading"]))
    yaw_rate = np.gradient(yaw, 1.0 / rate)
    length = round(seconds * rate)
    flights = _find_runs(fresh, length)
    if not flights:
        raise PlantError(f"{path} has no {seconds:g} s of velocity setpoints without a gap; try a smaller --seconds")

    def cut(x: np.ndarray) -> np.ndarray:
        return np.stack([x[flight] for flight in flights])

    held = commanded[newest]
    commands = np.concatenate([enu_to_ned(held[:, :3]), -held[:, 3:]], -1).astype(np.float32)
    rates = np.stack([0 * yaw_rate, 0 * yaw_rate, -yaw_rate], -1).astype(np.float32)
    half_yaw = 0.5 * (0.5 * np.pi - yaw)
    q = np.stack([np.cos(half_yaw), 0 * yaw, 0 * yaw, np.sin(half_yaw)], -1).astype(np.float32)
    return Recording(
        commands=cut(commands)[:, :-1],
        position=cut(enu_to_ned(position)),
        velocity=cut(enu_to_ned(velocity)),
        attitude=cut(q),
        rates=cut(rates),
        rotors=np.zeros((len(flights), length + 1, 4), np.float32),
        dt=1.0 / rate,
        source=path.name,
    )


def _find_runs(valid: np.ndarray, length: int) -> list[slice]:
    """Intervals of `length` valid steps, and the moment after each."""
    found, at = [], 0
    while at + length < len(valid):
        if valid[at : at + length].all():
            found.append(slice(at, at + length + 1))
            at += length
        else:
            at += max(1, length // 8)
    return found
