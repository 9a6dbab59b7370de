"""A task over any robot of an MJCF file: the XML says what it is, a small class what it is to do."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ...core.geometry import Vec3
from ...core.rng import Rng
from ...core.spaces import Box
from ...core.struct import struct
from ...core.task import PackedImage, Spec, State, Task, named_leaves, stack_features
from ...sensors.camera import Camera, View
from ...sensors.scene import Scene
from .engines import Engine, MjxEngine, MujocoEngine
from .model import Model, find_file, load_model
from .robot import FREE, HINGE, SLIDE, Robot, RobotState, numbers
from .scene import Drawing, look_at

RECORDED = ("qpos", "qvel", "mocap_pos", "mocap_quat")
"""What an episode keeps of a robot: as much as it takes to draw it."""
FASTEST = 1e4
"""A joint faster than this (rad/s or m/s) has exploded."""


@struct
class MjcfProgress:
    """What a task counts."""

    episode_return: Float[Array, ""]
    action: Float[Array, "nu"]  # the last one
    last_action: Float[Array, "nu"]  # the one before it
    held: Int[Array, ""]  # steps without a break in which the robot has done what it shall
    exploded: Bool[Array, ""]  # whether the physics gave no numbers


MjcfState = State[Any, RobotState, MjcfProgress]


@dataclass(frozen=True)
class MjcfCamera:
    """A camera of the model as the eye of the policy."""

    name: str = ""
    """camera of the MJCF file; none if empty"""
    resolution: int = 64
    """width and height of the square image, pixels"""
    interval: int = 2
    """control steps from one image to the next"""

    def __post_init__(self) -> None:
        if self.interval < 1 or self.resolution < 8:
            raise ValueError("a camera needs an interval of at least 1 and a resolution of at least 8")


@dataclass(frozen=True)
class MjcfTask(Task[MjcfState]):
    """A robot of an MJCF file. A subclass says which, what it observes, what is rewarded, and what success is."""

    bench_steps: ClassVar[int] = 16_384
    install: ClassVar[str] = ""
    """How the package is installed that has the model, if `model` names one."""

    model: str = ""
    """MJCF file: beside the file of the class, PACKAGE:PATH in an installed package, or any path"""
    control_dt: float = 0.02
    """seconds between two actions"""
    time_limit: float = 10.0
    """seconds of an episode"""
    keyframe: str = "home"
    """keyframe at which episodes start; the model's default pose if it has no `home`"""
    reset_noise: float = 0.0
    """largest deviation of hinges (rad) and slides (m) from that pose at the start"""
    action_scale: float = 0.0
    """controls an action of one adds to those of the keyframe; 0 spreads actions over the whole range of controls"""
    success_time: float = 0.0
    """seconds at the end of an episode in which `success` must hold without a break"""
    engine: Literal["auto", "mujoco", "mjx"] = "auto"
    """physics: MuJoCo C (CPUs only) or MJX; auto chooses by the device"""
    camera: MjcfCamera = field(default_factory=MjcfCamera)
    """eye of the policy"""

    # What a subclass says

    def edit(self, spec: Any) -> None:
        """Change the model (a `mujoco.MjSpec`) before it is compiled."""

    def draw_world(self, rng: Rng) -> tuple[Any, Rng]:
        """What is fixed for an episode, such as a target or a commanded speed: `robot.world`."""
        return None, rng

    def start(self, state: RobotState, world: Any, rng: Rng) -> tuple[RobotState, Rng]:
        """The start of an episode, from that of the keyframe with noise; bodies of mocap are placed here."""
        return state, rng

    def control(self, robot: Robot, action: Float[Array, "nu"]) -> Float[Array, "nu"]:
        """Controls of the actuators for an action, whose components are within ±1."""
        low, high, middle, scale = self._ranges
        return jnp.clip(middle + scale * action, low, high)

    def observation(self, robot: Robot, action: Float[Array, "nu"]) -> PyTree:
        """What the policy observes of a robot and its last action: numbers, vectors and arrays, scaled to about one."""
        raise NotImplementedError(f"{type(self).__name__} has no observation")

    def reward(self, before: Robot, after: Robot, action: Float[Array, "nu"], last: Float[Array, "nu"]) -> Any:
        """What a step was worth; `last` is the action before `action`."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    def terminated(self, robot: Robot) -> Any:
        """Whether it is all over, as after a fall."""
        return False

    def success(self, robot: Robot) -> Any:
        """Whether the robot does what it shall at this moment."""
        raise NotImplementedError(f"{type(self).__name__} has no success")

    def metrics(self, robot: Robot) -> Mapping[str, Any]:
        """Other metrics of an episode, of its last moment."""
        return {}

    # The model

    @cached_property
    def loaded(self) -> Model:
        """The compiled model."""
        return load_model(find_file(self.model, type(self), self.install), self.edit)

    @cached_property
    def substeps(self) -> int:
        """Physics steps of a control period."""
        timestep = float(self.loaded.mj.opt.timestep)
        count = round(self.control_dt / timestep)
        if count < 1 or abs(count * timestep - self.control_dt) > 1e-6:
            raise ValueError(
                f"control_dt of {self.control_dt:g} s is no whole number of physics steps of {timestep:g} s "
                f"(<option timestep> of {self.loaded.path.name})"
            )
        return count

    @cached_property
    def physics(self) -> Engine:
        """What steps the model on this machine's devices."""
        cpu = jax.default_backend() == "cpu"
        if self.engine == "mujoco" and not cpu:
            raise ValueError(f"engine=mujoco is for CPUs, and this is a {jax.default_backend()}: use mjx or auto")
        kind = MujocoEngine if self.engine == "mujoco" or (self.engine == "auto" and cpu) else MjxEngine
        return kind(self.loaded, self.substeps)

    @cached_property
    def drawing(self) -> Drawing:
        """The shapes of the model."""
        return Drawing(self.loaded)

    @cached_property
    def _ranges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Lowest and highest control of each actuator, the control of a zero action, and what an action of one adds."""
        mj = self.loaded.mj
        limited = mj.actuator_ctrllimited.astype(bool)
        low, high = np.where(limited, mj.actuator_ctrlrange.T, [[-np.inf], [np.inf]])
        if self.action_scale:
            return low, high, self.loaded.keyframe(self.keyframe)[3], np.full(mj.nu, self.action_scale)
        with np.errstate(invalid="ignore"):
            middle, scale = np.where(limited, (low + high) / 2, 0.0), np.where(limited, (high - low) / 2, 1.0)
        return low, high, middle, scale

    @property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated."""
        return max(1, round(self.time_limit / self.control_dt))

    # The interface of a task

    @cached_property
    def spec(self) -> Spec:
        model, _ = self.loaded, self.substeps
        eye = self.camera
        if eye.name:
            model.index("camera", eye.name)
            if self.drawing.missing:
                raise ValueError(
                    f"camera '{eye.name}' cannot draw {', '.join(self.drawing.missing)} of {model.path.name}: "
                    "planes, boxes, spheres, ellipsoids, cylinders, capsules and meshes can be drawn"
                )
        try:
            seen = jax.eval_shape(lambda: self.observe(self.reset(Rng.from_seed(0, 0))))
        except ValueError as error:  # without what JAX adds about its own frames
            raise ValueError(str(error).partition("\n---")[0]) from error
        shape, interval = ((eye.resolution, eye.resolution, 3), eye.interval) if eye.name else (None, 1)
        return Spec(seen.shape[0], Box(int(model.mj.nu)), self.control_dt, image_shape=shape, image_interval=interval)

    def robot(self, state: MjcfState) -> Robot:
        """The robot of a state."""
        return Robot(self.loaded, state.body, state.world, state.step * self.control_dt)

    def reset(self, rng: Rng) -> MjcfState:
        world, rng = self.draw_world(rng)
        body, rng = self._posed(rng)
        body, rng = self.start(body, world, rng)
        body = self.physics.sense(body)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        still = jnp.zeros(self.loaded.mj.nu)
        progress = MjcfProgress(zero, still, still, jnp.int32(0), no)
        return State(world, body, progress, rng, jnp.int32(0), zero, no, no)

    def _posed(self, rng: Rng) -> tuple[RobotState, Rng]:
        """The pose of the keyframe, with noise in its hinges and slides."""
        mj = self.loaded.mj
        qpos, qvel, act, ctrl = map(numbers, self.loaded.keyframe(self.keyframe))
        if self.reset_noise:
            for joint in range(mj.njnt):
                if mj.jnt_type[joint] in (SLIDE, HINGE):
                    where = int(mj.jnt_qposadr[joint])
                    off, rng = rng.uniform(-self.reset_noise, self.reset_noise)
                    limits = mj.jnt_range[joint] if mj.jnt_limited[joint] else (-math.inf, math.inf)
                    qpos = qpos.at[where].set(jnp.clip(qpos[where] + off, *map(float, limits)))
        mocap = [k for k in range(mj.nbody) if mj.body_mocapid[k] >= 0]
        mocap.sort(key=lambda k: mj.body_mocapid[k])
        pos, quat = numbers(mj.body_pos[mocap]).reshape(-1, 3), numbers(mj.body_quat[mocap]).reshape(-1, 4)
        return RobotState(qpos, qvel, act, ctrl, pos, quat, jnp.zeros(mj.nsensordata)), rng

    def place(self, state: RobotState, name: str, position: Any) -> RobotState:
        """The state with a mocap body at a position."""
        number = int(self.loaded.mj.body_mocapid[self.loaded.index("body", name)])
        if number < 0:
            raise ValueError(f"body '{name}' of {self.loaded.path.name} cannot be placed: give it mocap=\"true\"")
        return replace(state, mocap_pos=state.mocap_pos.at[number].set(jnp.stack(jax.tree.leaves(position))))

    def step(self, state: MjcfState, action: Array) -> MjcfState:
        state, command = self.command(state, action)
        return self.judge(state, self.move(state, command))

    def command(self, state: MjcfState, action: Array) -> tuple[MjcfState, Array]:
        action = jnp.clip(action, -1.0, 1.0)
        progress = replace(state.progress, action=action, last_action=state.progress.action)
        return replace(state, progress=progress), jnp.asarray(self.control(self.robot(state), action), jnp.float32)

    def move(self, state: MjcfState, command: Array) -> RobotState:
        return self.physics.step(state.body, command)

    def judge(self, state: MjcfState, body: RobotState) -> MjcfState:
        past = state.progress
        fine = jnp.all(jnp.isfinite(body.qpos)) & jnp.all(jnp.abs(body.qvel) < FASTEST)
        body = jax.tree.map(lambda new, old: jnp.where(fine, new, old), body, state.body)
        before, after = self.robot(state), self.robot(replace(state, body=body, step=state.step + 1))
        reward = jnp.asarray(self.reward(before, after, past.action, past.last_action), jnp.float32)
        terminated = jnp.asarray(self.terminated(after), bool) | ~fine
        step = state.step + 1
        progress = replace(
            past,
            episode_return=past.episode_return + reward,
            held=jnp.where(jnp.asarray(self.success(after), bool), past.held + 1, 0),
            exploded=past.exploded | ~fine,
        )
        return replace(
            state, body=body, progress=progress, rng=state.rng.bits()[1], step=step, reward=reward,
            terminated=terminated, truncated=(step >= self.max_steps) & ~terminated,
        )  # fmt: skip

    def observe(self, state: MjcfState) -> Float[Array, "features"]:
        parts = jax.tree.leaves(self.observation(self.robot(state), state.progress.action))
        return stack_features([jnp.asarray(x, jnp.float32) for part in parts for x in _scalars(part)])

    def episode_metrics(self, state: MjcfState) -> dict[str, Float[Array, ""]]:
        robot = self.robot(state)
        steps = max(1, round(self.success_time / self.control_dt))
        own = {name: jnp.asarray(value, jnp.float32) for name, value in self.metrics(robot).items()}
        return {
            "success": (state.progress.held >= steps).astype(jnp.float32),
            "episode_return": state.progress.episode_return,
            "exploded": state.progress.exploded.astype(jnp.float32),
            **own,
        }

    # Pictures

    def image(self, state: MjcfState) -> PackedImage:
        eye, robot = self.camera, self.robot(state)
        camera = Camera(eye.resolution, eye.resolution)
        return camera.render(self.drawing.scene(robot), self.drawing.view(robot, eye.name)).packed

    def record(self, state: MjcfState) -> dict[str, Array]:
        robot, body = self.robot(state), state.body
        found = {"reward": state.reward}
        found |= {name: jnp.asarray(value, jnp.float32) for name, value in self.metrics(robot).items()}
        if self._root is not None:
            found["position"] = body.qpos[:3]
        return found | {name: getattr(body, name) for name in RECORDED}

    def world_record(self, state: MjcfState) -> dict[str, Array]:
        return named_leaves({"world": state.world})

    @cached_property
    def _root(self) -> int | None:
        """The body that a free joint carries, if the first joint is one."""
        mj = self.loaded.mj
        return int(mj.jnt_bodyid[0]) if mj.njnt and mj.jnt_type[0] == FREE else None

    def film_scene(self, moment: Mapping[str, Array]) -> Scene:
        """What there is to see of a recorded moment."""
        return self.drawing.scene(self._recorded(moment))

    def film_view(self, moment: Mapping[str, Array]) -> View:
        """From where a recorded moment is filmed: the model's camera `film`, or one that follows from the side."""
        robot, mj = self._recorded(moment), self.loaded.mj
        if "film" in self.loaded.names["camera"]:
            return self.drawing.view(robot, "film")
        middle = Vec3(*map(float, mj.stat.center)) if self._root is None else robot.body(self._root).position
        reach = 1.1 * float(mj.stat.extent)
        return look_at(middle + Vec3(0.75 * reach, -1.0 * reach, 0.6 * reach), middle, 0.8)

    def _recorded(self, moment: Mapping[str, Array]) -> Robot:
        mj = self.loaded.mj
        state = RobotState(
            **{name: jnp.asarray(moment[name]) for name in RECORDED},
            act=jnp.zeros(mj.na), ctrl=jnp.zeros(mj.nu), sensordata=jnp.zeros(mj.nsensordata),
        )  # fmt: skip
        return Robot(self.loaded, state)

    @property
    def film_omits(self) -> tuple[str, ...]:
        """What the film leaves out, in words."""
        return self.drawing.missing


def _scalars(part: Any) -> list[Any]:
    """The numbers of a part of an observation."""
    part = jnp.asarray(part)
    return [part] if part.ndim == 0 else list(part.reshape(-1))
