"""A task of your own in one file: a car parks in a bay, facing the right way.

    slipstream pipeline examples/own_task.py:Parking

trains it, evaluates it, films it from above and writes runs/parking/report.html. Nothing else has to be edited.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import jax.numpy as jnp

from slipstream import Box, Rng, Spec, State, Task, struct
from slipstream.core.geometry import Scalar, Vec2, sin_cos
from slipstream.core.task import stack_features


@struct
class Lot:
    """What stays the same for an episode."""

    bay: Vec2  # where to park, heading east


@struct
class Car:
    """A kinematic bicycle."""

    position: Vec2
    heading: Scalar
    speed: Scalar


ParkingState = State[Lot, Car, Scalar]  # progress: the distance to the bay, with the heading error in meters


@dataclass(frozen=True)
class Parking(Task[ParkingState]):
    """Stop in the bay, facing east, by steering and acceleration."""

    time_limit: float = 12.0
    """seconds of an episode"""
    wheelbase: float = 2.5
    """m"""
    tolerance: float = 0.5
    """largest error in position and (times two meters) heading that counts as parked, m"""

    @cached_property
    def spec(self) -> Spec:
        return Spec(observation=6, action=Box(2), control_dt=0.1)

    def error(self, world: Lot, car: Car) -> Scalar:
        sin, cos = sin_cos(car.heading)
        return (world.bay - car.position).norm() + 2.0 * jnp.sqrt(sin**2 + (1.0 - cos) ** 2 + 1e-9)

    def reset(self, rng: Rng) -> ParkingState:
        x, rng = rng.uniform(-12.0, 12.0)
        y, rng = rng.uniform(-12.0, 12.0)
        heading, rng = rng.uniform(-3.1, 3.1)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        world, car = Lot(Vec2(zero, zero)), Car(Vec2(x, y), heading, zero)
        return State(world, car, self.error(world, car), rng, jnp.int32(0), zero, no, no)

    def step(self, state: ParkingState, action) -> ParkingState:
        steer, push = 0.6 * jnp.clip(action[0], -1.0, 1.0), 4.0 * jnp.clip(action[1], -1.0, 1.0)
        car, dt = state.body, self.spec.control_dt
        speed = jnp.clip(car.speed + push * dt, -3.0, 6.0)
        heading = car.heading + speed * jnp.tan(steer) / self.wheelbase * dt
        sin, cos = sin_cos(heading)
        car = Car(car.position + Vec2(cos * speed, sin * speed) * dt, heading, speed)
        error = self.error(state.world, car)
        parked = (error < self.tolerance) & (jnp.abs(speed) < 0.5)
        step = state.step + 1
        late = step * dt >= self.time_limit
        reward = state.progress - error + 10.0 * parked
        return replace(
            state, body=car, progress=error, rng=state.rng.bits()[1], step=step, reward=reward,
            terminated=parked, truncated=late & ~parked,
        )  # fmt: skip

    def observe(self, state: ParkingState):
        car = state.body
        sin, cos = sin_cos(car.heading)
        bay = (state.world.bay - car.position).rotated(-sin, cos)
        return stack_features([bay.x * 0.1, bay.y * 0.1, sin, cos, car.speed * 0.3, state.progress * 0.1])

    def episode_metrics(self, state: ParkingState):
        return {"success": state.terminated.astype(jnp.float32), "final_error": state.progress}
