"""A quadrotor under control for one period: the substeps of vehicle and controller between two actions."""

from dataclasses import dataclass, replace
from functools import partial

import jax

from ..core.geometry import Vec3
from .control_modes import ControlMode, NormalizedCommand
from .px4_controller import Px4Controller
from .quadrotor import PhysicsRandomization, Quadrotor, QuadrotorState


@dataclass(frozen=True)
class ControlledFlight:
    """A vehicle, the meaning of its commands, and what turns them into rotor speeds."""

    vehicle: Quadrotor
    control: ControlMode
    autopilot: Px4Controller | None
    physics_rate: int
    """physics steps a second"""
    substeps: int
    """physics steps of a control period"""

    def step(
        self,
        drone: QuadrotorState,
        command: NormalizedCommand,
        air: Vec3 | None,
        randomization: PhysicsRandomization,
    ) -> QuadrotorState:
        """The vehicle one control period later, in air that moves with that velocity."""
        for _ in range(self.substeps):
            # One fused loop a substep; without the barrier XLA computes shared terms several times over.
            drone = jax.lax.optimization_barrier(self._substep(drone, command, air, randomization))
        return drone

    @partial(jax.jit, static_argnums=0)  # traced once for all substeps, which makes starting faster
    def _substep(
        self,
        drone: QuadrotorState,
        command: NormalizedCommand,
        air: Vec3 | None,
        randomization: PhysicsRandomization,
    ) -> QuadrotorState:
        if self.autopilot:
            setpoint = self.control.setpoint(self.vehicle, drone, command)
            rotors, memory = self.autopilot.control(self.vehicle, drone, drone.memory, setpoint)
            drone = replace(drone, memory=memory)
        else:
            rotors = self.control.rotors(self.vehicle, drone, command)
        return self.vehicle.step(drone, rotors, air, randomization, 1.0 / self.physics_rate)
