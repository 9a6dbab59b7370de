"""Who flies: the policy during the mission, and rules that nobody has to learn before and after it."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int

from ...core.geometry import Flag, Scalar, Vec2, Vec3
from ...core.struct import struct
from ...dynamics.velocity_drone import VelocityCommand, VelocityDrone, VelocityDroneState, commanded

MODES = ("take-off", "mission", "return", "land", "emergency", "landed")
TAKE_OFF, MISSION, RETURN, LAND, EMERGENCY, LANDED = range(len(MODES))


@struct
class BehaviorInput:
    """What the behaviour depends on."""

    battery: Scalar  # percent
    reserve: Scalar  # percent needed to get home from here
    home: Vec3  # relative to the drone; its z is the ground there
    height: Scalar  # above the ground here
    done: Flag  # nothing is left to do
    lost: Flag  # neither satellites nor cameras tell where the drone is


@dataclass(frozen=True)
class Behavior:
    """Which mode comes next, and what it commands. Emergencies go before returning, returning before the mission.

    A mode that was entered is not left at the same threshold: once a drone returns it goes on doing so, and a landing
    that drifts away from its pad is taken up again only beyond twice the distance at which it began.
    """

    take_off_height: float = 30.0
    return_speed: float = 10.0
    return_height: float = 35.0
    sink: float = 2.0
    near: float = 3.0
    """distance from home at which a landing begins, m"""
    critical: float = 5.0
    """battery, in percent, below which a drone lands where it is"""

    def next(self, mode: Int[Array, ""], now: BehaviorInput) -> Int[Array, ""]:
        """The mode after this moment."""
        away = Vec2(now.home.x, now.home.y).norm()
        on_ground = (now.height < 0.3) & (mode >= LAND)
        up = (mode == TAKE_OFF) & (now.height >= 0.9 * self.take_off_height)
        after = jnp.where(up, MISSION, mode)
        after = jnp.where((after == MISSION) & (now.done | (now.battery <= now.reserve)), RETURN, after)
        after = jnp.where((after == RETURN) & (away <= self.near), LAND, after)
        after = jnp.where((after == LAND) & (away > 2.0 * self.near), RETURN, after)
        after = jnp.where(((now.battery <= self.critical) | now.lost) & (after != LANDED), EMERGENCY, after)
        # An emergency passes if the drone finds out again where it is.
        recovered = (mode == EMERGENCY) & ~now.lost & (now.battery > self.critical)
        after = jnp.where(recovered, RETURN, after)
        return jnp.where(on_ground, LANDED, after)

    def command(
        self,
        mode: Int[Array, ""],
        asked: VelocityCommand,
        glide: VelocityDroneState,
        now: BehaviorInput,
        wind: Vec3,
        handling: VelocityDrone,
        dt: float,
    ) -> VelocityCommand:
        """What the vehicle is told: in the mission what the policy asks, otherwise what the mode does."""
        flat = Vec2(now.home.x, now.home.y)
        away = flat.norm()
        # Slow enough to stop over the pad.
        speed = jnp.minimum(self.return_speed, 0.5 * away)
        homeward = flat * (speed / jnp.maximum(away, 1e-3))
        level = jnp.clip(self.return_height - now.height, -1.0, 1.0)
        down = -jnp.minimum(self.sink, 0.3 + 0.3 * now.height)
        returning, landing = mode == RETURN, mode == LAND
        moving = returning | landing
        wanted = Vec3(
            jnp.where(moving, homeward.x, 0.0),
            jnp.where(moving, homeward.y, 0.0),
            jnp.where(
                mode == TAKE_OFF, 2.5, jnp.where(returning, level, jnp.where(mode == LANDED, 0.0, down))
            ),
        )  # fmt: skip
        ruled = commanded(glide, wanted, handling, wind, dt)
        mission = mode == MISSION
        return VelocityCommand(*(jnp.where(mission, a, b) for a, b in zip(asked.parts, ruled.parts, strict=True)))

    def low(self, mode: Int[Array, ""]) -> Flag:
        """Whether the mode may bring a drone near the ground."""
        return (mode != MISSION) & (mode != RETURN)
