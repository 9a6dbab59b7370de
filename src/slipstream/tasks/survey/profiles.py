"""Scripted flights for validation: each is a path over the ground and a motion of the camera."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...core.geometry import Scalar, Vec2, Vec3, sin_cos, wrap_angle
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from .baselines import action
from .gimbal import gimbal_rates, gimbal_towards
from .stacked import at
from .state import SurveyState

if TYPE_CHECKING:
    from .task import Survey

Path = Callable[[Scalar], Vec2]
LookFn = Callable[[Scalar], tuple[Scalar, Gimbal]]


@dataclass(frozen=True)
class Profile:
    """A flight at a height above the ground, along a path that starts 60 m east of home."""

    height: float
    """m above the ground"""
    path: Path
    """position at a time"""
    look: LookFn | None = None
    """heading and gimbal at a time; None keeps the camera on the drone's own target"""

    def __call__(self, task: "Survey", state: SurveyState, number: Int[Array, ""]) -> Float[Array, "size"]:
        """The action of one drone, in a task whose gimbal the policy controls, such as the mission free."""
        drone = at(state.body.drones, number)
        start = at(state.progress.home, number)
        time = at(state.step, number).astype(jnp.float32) * task.control_dt
        offset = self.path(time)
        ground = state.world.terrain(drone.position.x, drone.position.y)
        point = Vec3(start.x + 60.0 + offset.x, start.y + offset.y, ground + self.height)
        if self.look is None:
            yaw, wanted = drone.yaw, gimbal_towards(drone, at(state.progress.track, number))
        else:
            yaw, wanted = self.look(time)
        rates = gimbal_rates(at(state.body.gimbals, number), wanted, task.control_dt)
        return action(task, drone, velocity_to(drone, point, 12.0), yaw, rates)


def velocity_to(drone: VelocityDroneState, point: Vec3, speed: float) -> Vec3:
    """The velocity straight to a point, slower near it."""
    way = point - drone.position
    distance = way.norm()
    velocity = way * (jnp.minimum(speed, 0.5 * distance) / jnp.maximum(distance, 1e-3))
    return Vec3(velocity.x, velocity.y, jnp.clip(0.3 * way.z, -2.0, 2.0))


def line(speed: float) -> Path:
    return lambda time: Vec2(speed * time, 0.0 * time)


def square(edge: float, speed: float) -> Path:
    def position(time: Scalar) -> Vec2:
        path = speed * time / edge
        side = path - 4.0 * jnp.floor(path / 4.0)
        x = jnp.clip(side, 0.0, 1.0) - jnp.clip(side - 2.0, 0.0, 1.0)
        y = jnp.clip(side - 1.0, 0.0, 1.0) - jnp.clip(side - 3.0, 0.0, 1.0)
        return Vec2(edge * x, edge * y)

    return position


def figure_eight(size: float, speed: float) -> Path:
    def position(time: Scalar) -> Vec2:
        sin, cos = sin_cos(speed * time / size)
        return Vec2(size * sin, size * sin * cos)

    return position


def looking(turn: float = 0.0, pan: float = 0.0, down: float = 0.8, nod: float = 0.0) -> LookFn:
    """A heading that turns at `turn` and a gimbal that pans at `pan`, rad/s, and nods by `nod` about a pitch `down`."""

    def angles(time: Scalar) -> tuple[Scalar, Gimbal]:
        return wrap_angle(turn * time), Gimbal(wrap_angle(pan * time), down + nod * sin_cos(0.5 * time)[0])

    return angles


PROFILES: dict[str, Profile] = {
    "detection": Profile(50.0, line(0.0), looking(turn=0.3)),
    "tracking": Profile(60.0, line(2.5)),
    "navigation": Profile(60.0, square(120.0, 6.0), looking(down=0.4)),
    "gimbal": Profile(30.0, line(0.0), looking(pan=0.6, down=0.6, nod=0.5)),
    "stress": Profile(50.0, figure_eight(80.0, 4.0), looking(turn=0.8, pan=-0.8, down=0.5)),
    "full": Profile(75.0, square(400.0, 8.0), looking(pan=0.2, down=0.9, nod=0.3)),
}
