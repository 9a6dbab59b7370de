"""Lifting a cube: the settings, and how arm and cube move."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import require_choice
from ...core.geometry import Quat, Scalar, Vec3
from ...core.rng import Rng
from ...core.spaces import Box
from ...core.task import PackedImage, Spec, Task, derive, select
from ...dynamics.arm import Arm, Joints
from ...dynamics.grasp import CubeState, GraspModel, GraspState, NormalForces
from . import observation, reset, rewards
from .gl import appearance
from .mjcf import WorldNumbers, model_xml
from .observation import ARM_SIZE, CUBE_SIZE, TARGET_SIZE
from .probe import grasp_script
from .settings import NO_RANDOMIZATION, LiftCamera, LiftFactors, LiftRandomization, LiftReward
from .state import LiftState

WORKSPACE = Vec3(0.12, -0.14, 0.0145), Vec3(0.30, 0.14, 0.20)
"""Lowest and highest target of the tool center point, m: the fingers stay clear of the mat."""
STEP = 0.01
"""Largest change of a target along each axis by one action, m."""
JAW_STEP = 0.1
"""Largest change of the jaw's target by one action, rad: as fast as the servo turns without a load."""
LEASH = 0.03
"""How far a target may be ahead of the tool center point along each axis, m."""
TURN = 0.15
"""Largest change of a joint's target by one action, rad."""
LARGEST_ROLL = 1.0
"""Largest angle of the gripper about the vertical, from where the arm points, rad: every quarter turn looks alike."""
ACTION_SIZES = {"cartesian": 4, "cartesian_yaw": 5, "joints": 6}
"""Components of each kind of action."""


@dataclass(frozen=True)
class Lift(Task[LiftState]):
    """Grasp a cube that lies anywhere on the mat and lift it; or place it on a target."""

    report: ClassVar[str] = "slipstream.tasks.lift.report"
    progress_bar: ClassVar[Mapping[str, str]] = {"success": "success {:.0%}", "lost": "lost {:.0%}"}

    goal: Literal["lift", "place"] = "lift"
    """hold the cube high, or lift it and place it on a target"""
    area: Literal["near", "far", "mat"] = "mat"
    """where cubes start: under the gripper, some centimeters from there, or anywhere on the mat"""
    curriculum: tuple[float, float] = (0.15, 0.4)
    """fractions of a training until which cubes start near, and from which they start in the whole area"""
    action: Literal["cartesian", "cartesian_yaw", "joints"] = "cartesian"
    """what an action changes: the gripper's target position along x, y and z; that and its angle about the vertical; or
    the targets of five joints; the last component opens and closes the jaw"""
    camera: LiftCamera = LiftCamera()
    """with a camera the policy observes nothing of the cube but images"""
    model: GraspModel = GraspModel()
    """physics of arm, cube and mat"""
    factors: LiftFactors = LiftFactors()
    """what a fit has found the fast model to differ by"""
    control_rate: int = 50
    """actions a second"""
    time_limit: float = 4.0
    """seconds of an episode"""
    reward: LiftReward = LiftReward()
    """weights of the reward's terms"""
    randomize: LiftRandomization = LiftRandomization()
    """what differs between worlds"""
    # Not a setting: `at_progress` sets it.
    difficulty: Scalar = field(init=False, default=1.0)
    """0 starts all cubes near, 1 in the whole area"""

    def __post_init__(self) -> None:
        require_choice("goal", self.goal, ("lift", "place"))
        require_choice("area", self.area, reset.REACH)
        require_choice("action", self.action, ACTION_SIZES)
        steps = 1.0 / (self.control_rate * self.model.dt)
        if abs(steps - self.model.substeps) > 1e-6:
            raise ValueError(
                f"{self.model.substeps} substeps of {self.model.dt:g} s are not one step of 1/{self.control_rate} s"
            )
        low, high = self.curriculum
        if not 0.0 <= low <= high <= 1.0 or self.time_limit <= 0.0:
            raise ValueError("curriculum is two fractions, the lower first; time_limit is positive")

    # Parts

    @property
    def arm(self) -> Arm:
        return self.model.arm

    @property
    def control_dt(self) -> float:
        return 1.0 / self.control_rate

    @property
    def step_limit(self) -> int:
        return round(self.time_limit * self.control_rate)

    @property
    def description(self) -> str:
        goal = "lifts a cube" if self.goal == "lift" else "places a cube on a target"
        return f"an arm that {goal}" + (f", by a {self.camera.kind} camera" if self.camera.on else "")

    @cached_property
    def spec(self) -> Spec:
        space = Box(ACTION_SIZES[self.action])
        size = ARM_SIZE + space.size + TARGET_SIZE * (self.goal == "place")
        if not self.camera.on:
            return Spec(size + CUBE_SIZE, space, self.control_dt)
        return Spec(
            size,
            space,
            self.control_dt,
            image_shape=self.camera.image_shape,
            image_interval=self.camera.interval,
            privileged_size=CUBE_SIZE,
        )

    def at_progress(self, progress: Float[Array, ""]) -> "Lift":
        low, high = self.curriculum
        return derive(self, difficulty=jnp.clip((progress - low) / max(high - low, 1e-6), 0.0, 1.0))

    # Moving

    def reset(self, rng: Rng) -> LiftState:
        return reset.reset(self, rng)

    def step(self, state: LiftState, action: Array) -> LiftState:
        state, targets = self.command(state, action)
        return self.judge(state, self.move(state, targets))

    def command(self, state: LiftState, action: Array) -> tuple[LiftState, Joints]:
        """The state that remembers the action, and the angles that the servos are commanded: perhaps older ones."""
        progress = state.progress
        parts = self.spec.action.decode(action, ())
        target, newest = self._targets(state, parts)
        change = sum((a - b) ** 2 for a, b in zip(parts, progress.action, strict=True))
        recent = (newest, *progress.recent_targets)[: len(progress.recent_targets)]
        late = recent[0]
        if state.world.action_delay is not None:
            for age, targets in enumerate(recent):
                late = jax.tree.map(partial(jnp.where, state.world.action_delay == age), targets, late)
        progress = replace(progress, target=target, recent_targets=recent, action=tuple(parts), change=change)
        return replace(state, progress=progress, rng=state.rng.bits()[1]), late

    def _targets(self, state: LiftState, parts: list[Array]) -> tuple[Vec3, Joints]:
        """The new target of the tool center point, and of the joints."""
        opening = 0.5 * (parts[-1] + 1.0)
        progress, body = state.progress, state.body
        now, limits = progress.recent_targets[0], self.arm.limits
        jaw = self.arm.jaw_closed + (self.arm.jaw_open - self.arm.jaw_closed) * opening
        jaw = now.jaw + jnp.clip(jaw - now.jaw, -JAW_STEP, JAW_STEP)
        if self.action != "joints":
            at = self.model.gripper(body).position
            target = Vec3(*[
                jnp.clip(jnp.clip(old + STEP * change, here - LEASH, here + LEASH), low, high)
                for old, change, here, low, high in zip(
                    progress.target.parts, parts[:3], at.parts, WORKSPACE[0].parts, WORKSPACE[1].parts, strict=True
                )
            ])  # fmt: skip
            wanted = self.arm.inverse_kinematics(target, jaw)
            if self.action == "cartesian_yaw":
                wanted = replace(wanted, roll=jnp.clip(now.roll + TURN * parts[3], -LARGEST_ROLL, LARGEST_ROLL))
            return target, wanted
        pan, lift, elbow, flex, roll = (
            jnp.clip(old + TURN * change, low, high)
            for old, change, (low, high) in zip(now.parts[:5], parts[:5], limits[:5], strict=True)
        )
        wanted = Joints(pan, lift, elbow, flex, roll, jaw)
        # Fingers must not be driven into the mat, nor the arm out of where it works.
        place = self.arm.gripper(wanted, wanted).position
        allowed = inside(place)
        kept = select(allowed, wanted, replace(now, jaw=jaw))
        return select(allowed, place, progress.target), kept

    def move(self, state: LiftState, command: Joints) -> GraspState:
        """Where the fast model takes arm and cube in one control period."""
        cube, factors = state.world.cube, self.factors
        cube = replace(
            cube,
            pad_friction=cube.pad_friction * factors.pad_friction,
            mat_friction=cube.mat_friction * factors.mat_friction,
            pad_stiffness=cube.pad_stiffness * factors.pad_stiffness,
        )
        gain = state.world.servo_gain * factors.servo_gain
        return jax.lax.optimization_barrier(self.model.step(state.body, command, cube, gain))

    def judge(self, state: LiftState, body: GraspState) -> LiftState:
        return rewards.judge(self, state, body)

    # Observing

    def observe(self, state: LiftState) -> Float[Array, "features"]:
        return observation.observe(self, state)

    def privileged_observation(self, state: LiftState) -> Float[Array, "features"]:
        return observation.privileged_observation(self, state)

    def image(self, state: LiftState) -> PackedImage:
        return observation.image(self, state)

    # In MuJoCo

    def mujoco_xml(self, state: LiftState) -> str:
        """The model of one world, whose numbers are on the host."""
        return model_xml(self.arm, world_numbers(state))

    def mujoco_looks_xml(self, state: LiftState, size: int) -> str:
        return model_xml(self.arm, world_numbers(state), look=appearance(state, size))

    @property
    def mujoco_cameras(self) -> tuple[str, ...]:
        return self.camera.views

    @property
    def frame_stack(self) -> int:
        return self.camera.frame_stack

    def mujoco_state(self, state: LiftState) -> tuple[Array, Array]:
        body, cube = state.body, state.body.cube
        q = cube.attitude
        places = [*body.angles.parts, *cube.position.parts, q.w, q.x, q.y, q.z]
        # MuJoCo has a free body's spin in its own axes.
        rates = [*body.rates.parts, *cube.velocity.parts, *q.unrotate(cube.spin).parts]
        return jnp.stack(places), jnp.stack(rates)

    def mujoco_control(self, state: LiftState, command: Joints) -> Array:
        return jnp.stack(command.parts)

    def body_from_mujoco(self, state: LiftState, positions: Array, velocities: Array, sensors: Array) -> GraspState:
        x, y, z, *q = positions[6:]
        velocity, spin = Vec3(*velocities[6:9]), Vec3(*velocities[9:12])
        attitude = Quat(*q)
        cube = CubeState(Vec3(x, y, z), attitude, velocity, attitude.rotate(spin))
        forces = NormalForces(sensors[0], sensors[1], 0.0 * sensors[0])
        push = jax.tree.map(jnp.zeros_like, cube.position)
        return GraspState(joints(positions), joints(velocities), cube, push, forces)

    # Fitting the fast model

    def probe_task(self) -> "Lift":
        return Lift(
            action="cartesian_yaw", model=self.model, randomize=NO_RANDOMIZATION, control_rate=self.control_rate
        )

    def probe(self, state: LiftState, rng: Rng) -> Float[Array, "steps action"]:
        return grasp_script(self, state, rng)

    def factor_ranges(self) -> dict[str, tuple[float, float]]:
        return {
            "servo_gain": (0.5, 2.0),
            "pad_friction": (0.4, 2.5),
            "mat_friction": (0.4, 2.5),
            "pad_stiffness": (0.2, 5.0),
        }

    def with_factors(self, factors: Mapping[str, Any]) -> "Lift":
        return derive(self, factors=LiftFactors(**factors))

    def probe_outputs(self, body: GraspState) -> Float[Array, "outputs"]:
        """The cube's place in units of 5 mm, and the arm's joints in units of 0.02 rad."""
        return jnp.stack([*(body.cube.position * 200.0).parts, *(50.0 * angle for angle in body.angles.parts[:5])])

    def with_fit(self, parameters: dict[str, float], variation: dict[str, float], limits: dict[str, float]) -> "Lift":
        friction = max(variation["pad_friction"], variation["mat_friction"], self.randomize.friction)
        randomize = replace(
            self.randomize,
            servo_gain=max(variation["servo_gain"], self.randomize.servo_gain),
            friction=friction,
            pad_stiffness=max(variation["pad_stiffness"], self.randomize.pad_stiffness),
        )
        return replace(self, factors=LiftFactors(**parameters), randomize=randomize)

    # Reporting

    def episode_metrics(self, state: LiftState) -> dict[str, Float[Array, ""]]:
        progress = state.progress
        success = progress.success.astype(jnp.float32)
        return {
            "success": success,
            "episode_return": jnp.asarray(progress.episode_return),
            "lifted": progress.lifted.astype(jnp.float32),
            "lost": progress.lost.astype(jnp.float32),
            "duration": jnp.where(progress.success, state.step.astype(jnp.float32) * self.control_dt, jnp.nan),
        }

    def record(self, state: LiftState) -> dict[str, Array]:
        body, progress = state.body, state.progress
        q = body.cube.attitude
        return {
            "position": jnp.stack(body.cube.position.parts, -1),
            "attitude": jnp.stack([q.w, q.x, q.y, q.z], -1),
            "velocity": jnp.stack(body.cube.velocity.parts, -1),
            "gripper": jnp.stack(self.model.gripper(body).position.parts, -1),
            "angles": jnp.stack(body.angles.parts, -1),
            "targets": jnp.stack(progress.recent_targets[0].parts, -1),
            "action": jnp.stack(progress.action, -1),
            "forces": jnp.stack([body.forces.fixed, body.forces.jaw], -1),
            "held": progress.held,
            "reward": state.reward,
        }

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        duration = metrics["duration"]
        return {
            "lifted_rate": float(np.nanmean(metrics["lifted"])),
            "lost_rate": float(np.nanmean(metrics["lost"])),
            "duration_mean": float(np.nanmean(duration)) if np.isfinite(duration).any() else float("nan"),
        }


def world_numbers(state: LiftState) -> WorldNumbers:
    """What differs between models of worlds, of one whose numbers are on the host."""
    cube = state.world.cube
    numbers = (cube.half, cube.mass, cube.pad_friction, cube.mat_friction, state.world.servo_gain)
    return WorldNumbers(*map(float, numbers))


def inside(place: Vec3) -> Array:
    """Whether a target is in the workspace."""
    low, high = WORKSPACE
    sides = [(a <= x) & (x <= b) for x, a, b in zip(place.parts, low.parts, high.parts, strict=True)]
    return jnp.asarray(sides[0] & sides[1] & sides[2])


def joints(values: Array) -> Joints:
    """The first six of an array."""
    return Joints(*(values[k] for k in range(6)))
