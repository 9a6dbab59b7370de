"""The behavior controller: modes of a sortie, of which only the mission is flown by the policy."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int

from ...core.geometry import Flag, Scalar, Vec2, Vec3
from ...core.struct import struct
from ...dynamics.velocity_drone import VelocityCommand, VelocityDrone, VelocityDroneState, command_for_velocity

MODES = ("take-off", "mission", "return", "land", "emergency", "landed")
TAKE_OFF, MISSION, RETURN, LAND, EMERGENCY, LANDED = range(len(MODES))


@struct
class BehaviorInput:
    """What the next mode depends on."""

    battery: Scalar  # percent
    reserve: Scalar  # percent needed to get home from here
    home: Vec3  # relative to the drone; its z is the ground there
    height: Scalar  # above the ground here
    done: Flag  # whether the mission is complete
    lost: Flag  # whether neither GNSS nor VIO gives a position


@dataclass(frozen=True)
class Behavior:
    """A state machine of modes and their commands. Priority: emergency, then return, then mission.

    Transitions have hysteresis: a drone that returns does not resume its mission, and a landing that drifts off
    its pad becomes a return only at twice the radius at which it began.
    """

    take_off_height: float = 30.0
    """height at which a take-off ends, m"""
    return_speed: float = 10.0
    """m/s"""
    return_height: float = 35.0
    """height above the ground on the way home, m"""
    landing_speed: float = 2.0
    """largest sink rate of a landing, m/s"""
    landing_radius: float = 3.0
    """distance from home at which a landing begins, m"""
    critical_battery: float = 5.0
    """charge below which a drone lands where it is, percent"""

    def next(self, mode: Int[Array, ""], now: BehaviorInput) -> Int[Array, ""]:
        """The mode of this step."""
        distance = Vec2(now.home.x, now.home.y).norm()
        on_ground = (now.height < 0.3) & (mode >= LAND)
        up = (mode == TAKE_OFF) & (now.height >= 0.9 * self.take_off_height)
        after = jnp.where(up, MISSION, mode)
        after = jnp.where((after == MISSION) & (now.done | (now.battery <= now.reserve)), RETURN, after)
        after = jnp.where((after == RETURN) & (distance <= self.landing_radius), LAND, after)
        after = jnp.where((after == LAND) & (distance > 2.0 * self.landing_radius), RETURN, after)
        after = jnp.where(((now.battery <= self.critical_battery) | now.lost) & (after != LANDED), EMERGENCY, after)
        # A drone that regains its position leaves the emergency.
        recovered = (mode == EMERGENCY) & ~now.lost & (now.battery > self.critical_battery)
        after = jnp.where(recovered, RETURN, after)
        return jnp.where(on_ground, LANDED, after)

    def command(
        self,
        mode: Int[Array, ""],
        requested: VelocityCommand,
        drone: VelocityDroneState,
        now: BehaviorInput,
        wind: Vec3,
        model: VelocityDrone,
        dt: float,
    ) -> VelocityCommand:
        """The command of the mode: the policy's during the mission, a rule's otherwise."""
        flat = Vec2(now.home.x, now.home.y)
        distance = flat.norm()
        # Slow enough to stop over the pad.
        speed = jnp.minimum(self.return_speed, 0.5 * distance)
        homeward = flat * (speed / jnp.maximum(distance, 1e-3))
        level = jnp.clip(self.return_height - now.height, -1.0, 1.0)
        down = -jnp.minimum(self.landing_speed, 0.3 + 0.3 * now.height)
        returning, landing = mode == RETURN, mode == LAND
        moving = returning | landing
        wanted = Vec3(
            jnp.where(moving, homeward.x, 0.0),
            jnp.where(moving, homeward.y, 0.0),
            jnp.where(
                mode == TAKE_OFF, 2.5, jnp.where(returning, level, jnp.where(mode == LANDED, 0.0, down))
            ),
        )  # fmt: skip
        ruled = command_for_velocity(drone, wanted, model, wind, dt)
        mission = mode == MISSION
        return VelocityCommand(*(jnp.where(mission, a, b) for a, b in zip(requested.parts, ruled.parts, strict=True)))

    def may_be_low(self, mode: Int[Array, ""]) -> Flag:
        """Whether the mode may bring a drone near the ground."""
        return (mode != MISSION) & (mode != RETURN)
