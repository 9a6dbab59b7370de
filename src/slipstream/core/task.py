"""What a task is: a state, a spec, pure functions of one world, what it may offer besides, and where worlds restart."""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt8, UInt32

from .rng import Rng
from .spaces import ActionSpace
from .struct import struct

if TYPE_CHECKING:
    from ..dynamics.control_modes import Setpoint
    from ..dynamics.identification import FitModel
    from ..dynamics.quadrotor import PhysicsRandomization, Quadrotor, QuadrotorState
    from ..sensors.camera import View
    from ..sensors.scene import Scene
    from .geometry import Vec3

World = TypeVar("World")
Body = TypeVar("Body")
Progress = TypeVar("Progress")
S = TypeVar("S", bound="AnyState")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
PackedImage = UInt32[Array, "*agents h w"] | UInt8[Array, "*agents h w"]
"""Red, green and blue in the lower bytes of a word: words are moved faster than bytes. With one channel, a byte."""


@struct
class State(Generic[World, Body, Progress]):
    """One world. Where it holds several agents, what belongs to one has a leading `agents` axis."""

    world: World  # fixed until restart
    body: Body  # what physics moves
    progress: Progress  # what the task counts
    rng: Rng
    step: Int[Array, "*agents"]
    reward: Float[Array, "*agents"]
    terminated: Bool[Array, "*agents"]  # the future is worth nothing
    truncated: Bool[Array, "*agents"]  # the clock ran out; the future keeps its value

    @property
    def ended(self) -> Bool[Array, "*agents"]:
        return self.terminated | self.truncated

    @property
    def present(self) -> Bool[Array, "agents"]:
        """Which agents of a world with several are visible to the others: those that have not ended.

        A clock that ends all at once hides nobody: the value of that last observation is used.
        """
        return ~self.terminated & (~self.truncated | jnp.all(self.ended))


@dataclass(frozen=True)
class ObstacleDistance:
    """How to read the distance to the nearest obstacle off an observation whose last part lists obstacles.

    Each of the `count` rows has `size` numbers: x and y of the obstacle first, and last whether there is one.
    """

    count: int
    size: int
    scale: float
    """Meters for one unit of x and y."""
    max_range: float
    """What is returned where there is no obstacle."""
    radius_column: int | None = None
    """Column of the obstacle's radius, which is subtracted."""
    radius_unit: float = 1.0
    """Observed units for one meter of radius."""

    def __call__(self, observation: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        rows = observation[..., -self.count * self.size :].reshape(*observation.shape[:-1], self.count, self.size)
        distance = jnp.sqrt(rows[..., 0] ** 2 + rows[..., 1] ** 2 + 1e-12) * self.scale
        if self.radius_column is not None:
            distance = distance - rows[..., self.radius_column] / self.radius_unit
        return jnp.min(jnp.where(rows[..., -1] > 0.5, distance, self.max_range), -1)


@dataclass(frozen=True)
class Spec:
    """Sizes and rates, known before anything runs."""

    observation: int
    """Numbers that an agent observes."""
    action: ActionSpace
    control_dt: float
    """Seconds between two actions."""
    agents: int = 1
    image_shape: tuple[int, int, int] | None = None
    """Height, width and channels of the image an agent sees, if it has a camera: then the task is a `CameraTask`."""
    image_interval: int = 1
    """Steps from one image to the next; in between the last one stays."""
    privileged_size: int = 0
    """Numbers that only a critic observes, in training: then the task is a `PrivilegedTask`."""
    entities: tuple[int, int] = (0, 0)
    """Count and size, if the last part of an observation lists entities; the last number of each says if it exists."""
    obstacle_distance: ObstacleDistance | None = None
    """How to read the distance to the nearest obstacle off an observation; for policies whose caution depends on it."""


class Task(Generic[S]):
    """A task: settings as dataclass fields, and pure functions of one world.

    A subclass is a frozen dataclass with `spec`, `reset`, `step`, `observe` and `episode_metrics`. All else has a
    default: training, evaluation, the film and the report need no more.
    """

    report: ClassVar[str] = "slipstream.reports.default"
    """Module that draws the film and writes the page; imported only when one is made."""
    wide_vectors: ClassVar[bool] = True
    """Whether a step gains by vectors of 512 bits on CPUs that have them; measured, not guessed."""
    progress_bar: ClassVar[Mapping[str, str]] = {"success": "success {:.0%}"}
    """Metrics shown while training, and how each is written."""
    bench_steps: ClassVar[int] = 2_000_000
    """Steps of all agents in one go of `slipstream bench sim`: as many as take a second or so."""
    training_settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of PPO, and `steps`, by which the task is trained if nobody says otherwise and it has no preset."""

    @cached_property
    def spec(self) -> Spec:
        raise NotImplementedError(f"{type(self).__name__} has no spec")

    def reset(self, rng: Rng) -> S:
        """A world at its start."""
        raise NotImplementedError(f"{type(self).__name__} has no reset")

    def step(self, state: S, action: Array) -> S:
        """The world one control period later, with the reward and the end of that step."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def observe(self, state: S) -> Float[Array, "*agents features"]:
        """What each agent observes, scaled to about one."""
        raise NotImplementedError(f"{type(self).__name__} has no observe")

    def episode_metrics(self, state: S) -> Mapping[str, Float[Array, "*agents"]]:
        """Metrics of an episode that ends here; NaN where one does not apply. `success` is 0 or 1."""
        raise NotImplementedError(f"{type(self).__name__} has no episode_metrics")

    # What has a default

    @property
    def description(self) -> str:
        """The task in a few words."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", type(self).__name__).lower()

    def with_files(self) -> Self:
        """The task with the files that its settings name read in, so that a run needs them no more."""
        return self

    def for_evaluation(self) -> Self:
        """The task as it is evaluated; by default as it is trained."""
        return self

    def command(self, state: S, action: Array) -> tuple[S, Any]:
        """The state that remembers the action, and what the vehicle is commanded."""
        return state, action

    def move(self, state: S, command: PyTree) -> Any:
        """Where our own model takes the body in one control period. By default it makes the whole step."""
        return self.step(state, command)

    def judge(self, state: S, body: PyTree) -> S:
        """The state once the body is there, whoever moved it."""
        return body

    def record(self, state: S) -> Mapping[str, Array]:
        """What an episode keeps of a moment: by default every leaf of the body, and the reward."""
        return named_leaves(state.body) | {"reward": state.reward}

    def world_record(self, state: S) -> Mapping[str, Array]:
        """What an episode keeps of its world."""
        return named_leaves(state.world)

    def baselines(self) -> Mapping[str, Callable[[S], Any]]:
        """Scripts flown on the same worlds: functions of one world that give the actions of its agents."""
        return {}

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The task's own metrics over many episodes; by default their means."""
        own = {name: value for name, value in metrics.items() if name not in ("success", "episode_return", "failed")}
        return {
            f"{name}_mean": float(np.nanmean(value)) if np.isfinite(value).any() else float("nan")
            for name, value in own.items()
        }


AnyTask = Task[Any]
AnyState = State[Any, Any, Any]


def derive(task: T, **values: Any) -> T:
    """A copy of a task with fields set that are not settings (`field(init=False)`), such as a traced stage."""
    copied = copy.copy(task)
    for name, value in values.items():
        object.__setattr__(copied, name, value)
    return copied


def named_leaves(tree: PyTree) -> dict[str, Array]:
    """Every leaf by its path, such as `position.x`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): jnp.asarray(leaf) for path, leaf in leaves}


# What a task can offer besides


@runtime_checkable
class CameraTask(Protocol):
    """A task whose agents have cameras."""

    def image(self, state: "AnyState") -> PackedImage: ...


@runtime_checkable
class PrivilegedTask(Protocol):
    """A task whose critic observes more than its agents do."""

    def privileged_observation(self, state: "AnyState") -> Float[Array, "*agents features"]: ...


@runtime_checkable
class DifferentiableTask(Protocol):
    """A task whose motion a learner can differentiate: its `command` and `move` are smooth functions of the body.

    Discrete decisions of the task, such as which gate comes next, are taken as they were in the rollout.
    """

    def differentiable_state(self, state: "AnyState") -> PyTree:
        """What carries a gradient from step to step: the body, and commands that are still under way.

        Every leaf is one real number for each agent.
        """
        ...

    def with_differentiable_state(self, state: "AnyState", part: PyTree) -> Any:
        """The state with that part replaced."""
        ...

    def smooth_reward(self, before: "AnyState", after: "AnyState") -> Float[Array, "*agents"]:
        """A smooth surrogate of the reward of the step from `before` to `after`, for the actor's gradient.

        It tells a failed step which way would have been better, where the true reward only has a jump.
        """
        ...


@runtime_checkable
class TerminalValueTask(Protocol):
    """A differentiable task that knows what its last state of a window is worth, so that it needs no critic."""

    def terminal_value(self, state: "AnyState") -> Float[Array, "*agents"]: ...


@runtime_checkable
class RespawningTask(Protocol):
    """A task whose agents come and go in a world that goes on. `state.step` then has the axis of agents, too."""

    def draw_respawns(self, rng: Rng, state: "AnyState") -> Any:
        """How every agent would start in this world."""
        ...

    def respawn(self, state: "AnyState", respawns: PyTree, who: Bool[Array, "agents"]) -> Any:
        """The state in which the agents `who` have started anew; where the world has ended, they have ended with it."""
        ...


@runtime_checkable
class CurriculumTask(Protocol):
    """A task that begins with easier worlds."""

    def at_progress(self, progress: Float[Array, ""]) -> Any:
        """The task after that fraction of a training."""
        ...


@runtime_checkable
class DataTask(Protocol):
    """A task with numbers that are arguments of a training's program, so that one program serves all their values."""

    def data(self) -> PyTree:
        """Arrays, or None if there are none."""
        ...

    def with_data(self, data: PyTree) -> Any:
        """The task with those numbers, which may be traced."""
        ...


@runtime_checkable
class QuadrotorTask(Protocol):
    """A task whose agents are quadrotors, so that a plant's vehicles can take their place. All of one world."""

    @property
    def airframe(self) -> "Quadrotor": ...

    def without_controller(self) -> Any:
        """The same task for a plant that brings its own vehicles and controllers."""
        ...

    def vehicle_states(self, state: "AnyState") -> "QuadrotorState":
        """Where the vehicles start, and how they move."""
        ...

    def setpoints(self, state: "AnyState", command: PyTree) -> "Setpoint":
        """What their controllers are commanded."""
        ...

    def wind_at(self, state: "AnyState") -> "Vec3":
        """The wind where each vehicle is."""
        ...

    def randomization(self, state: "AnyState") -> "PhysicsRandomization":
        """How each vehicle differs from the nominal one."""
        ...

    def body_from_vehicles(self, state: "AnyState", command: PyTree, vehicles: "QuadrotorState") -> Any:
        """The body of the task, once the vehicles fly like that."""
        ...

    def collision_scene(self, state: "AnyState") -> "Scene":
        """What can be run into."""
        ...


@runtime_checkable
class MujocoTask(Protocol):
    """A task that brings a MuJoCo model of its bodies, so that MuJoCo can move them. All of one world."""

    def mujoco_xml(self, state: "AnyState") -> str:
        """The model of a world whose numbers are on the host. Models of all worlds have the same sizes."""
        ...

    def mujoco_state(self, state: "AnyState") -> tuple[Array, Array]:
        """Generalized positions and velocities of the body."""
        ...

    def mujoco_control(self, state: "AnyState", command: PyTree) -> Array:
        """What the model's actuators are commanded."""
        ...

    def body_from_mujoco(self, state: "AnyState", positions: Array, velocities: Array, sensors: Array) -> Any:
        """The body of the task from generalized positions and velocities and what the model's sensors read."""
        ...


@runtime_checkable
class MujocoCameraTask(MujocoTask, Protocol):
    """A task whose policy can also see by MuJoCo's own renderer. All of one world."""

    @property
    def mujoco_cameras(self) -> tuple[str, ...]:
        """Names of the model's cameras, in the order of their images."""
        ...

    @property
    def frame_stack(self) -> int:
        """Moments that are seen together."""
        ...

    def mujoco_looks_xml(self, state: "AnyState", size: int) -> str:
        """The same model as it is drawn: with textures, lights and shadows of a world whose numbers are on the host."""
        ...


@runtime_checkable
class FittableTask(Protocol):
    """A task whose fast model can be fitted to a plant or a flight log."""

    def fit_model(self) -> "FitModel":
        """The model whose parameters are fitted."""
        ...

    def with_fit(self, parameters: dict[str, float], variation: dict[str, float], limits: dict[str, float]) -> Any:
        """The task on the fitted model, trained with its parameters varied by so much."""
        ...


@runtime_checkable
class ProbedTask(Protocol):
    """A task whose fast model is fitted to recorded probes: worlds driven by a script, on a plant and on the model.

    What is fitted are factors of the model's parameters.
    """

    def probe_task(self) -> Any:
        """The task in which probes are run: nothing differs between its worlds but where things are."""
        ...

    def probe(self, state: "AnyState", rng: Rng) -> Float[Array, "steps action"]:
        """The actions of a probe, from its start."""
        ...

    def factor_ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest factor of each parameter that a fit tries."""
        ...

    def with_factors(self, factors: Mapping[str, Any]) -> Any:
        """The task on the model with these factors."""
        ...

    def probe_outputs(self, body: Any) -> Float[Array, "outputs"]:
        """What model and plant are compared by, each in units of an error that matters."""
        ...

    def with_fit(self, parameters: dict[str, float], variation: dict[str, float], limits: dict[str, float]) -> Any:
        """The task on the fitted model, trained with its parameters varied by so much."""
        ...


@runtime_checkable
class DrawnTask(Protocol):
    """A task whose recorded moments our camera can draw, so that the default film and page show its robot."""

    @property
    def film_omits(self) -> tuple[str, ...]:
        """What the pictures leave out, in words."""
        ...

    def film_scene(self, moment: Mapping[str, Array]) -> "Scene":
        """What there is to see of a moment, given what `record` kept of it."""
        ...

    def film_view(self, moment: Mapping[str, Array]) -> "View":
        """From where the film looks at it."""
        ...


@runtime_checkable
class LimitTask(Protocol):
    """A task whose dynamics `bench sim` compares with the same physics in hand-written C++."""

    @property
    def limit_vehicle(self) -> "Quadrotor": ...


# Agents and restarts


@struct
class Restart(Generic[S]):
    """Where to go on after an end: a new world, and for a `RespawningTask` the starts in this one."""

    state: S
    respawns: PyTree = None
    stale: Bool[Array, ""] | None = None  # whether the world of the respawns has been replaced since


def select(flag: Bool[Array, ""], yes: T, no: T) -> T:
    """One of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)


def select_agents(who: Bool[Array, "agents"], yes: T, no: T) -> T:
    """For each agent one of two trees, whose leaves have a leading axis of agents."""
    return jax.tree.map(lambda a, b: jnp.where(who.reshape(who.shape + (1,) * (jnp.ndim(a) - 1)), a, b), yes, no)


def vmap_agents(agents: int, function: F) -> F:
    """`function` of one agent, mapped over the agents of a world; as it is where there is only one."""
    return function if agents == 1 else jax.vmap(function)  # pyright: ignore[reportReturnType]


def stack_features(parts: list[Any]) -> Float[Array, "*agents numbers"]:
    """Numbers of an agent, or of every agent, stacked along a new last axis.

    Each is computed for all worlds first: without the barrier XLA fills an array of many origins number by number.
    """
    return jnp.moveaxis(jnp.stack(jax.lax.optimization_barrier([jnp.asarray(part) for part in parts])), 0, -1)


def draw_restart(task: Task[S], state: S) -> Restart[S]:
    """The starts there would be if all ended now: of streams of their own, so that they may be drawn ahead."""
    rng = state.rng.fork(0)
    fresh = task.reset(rng)
    if not isinstance(task, RespawningTask):
        return Restart(fresh)
    return Restart(fresh, task.draw_respawns(rng.fork(1), state), jnp.bool_(False))


def advance(task: Task[S], state: S, action: Array, restart: Restart[S] | None = None) -> S:
    """One step of a world, or the restart of what had ended.

    A world restarts on the step after its end and nowhere else, so the last observation of an episode is
    a real one. With several agents, one that has ended waits, masked, until all have; or, in a `RespawningTask`,
    starts anew at once, and the world restarts only when all have ended together.

    `restart` is where to restart, if that was drawn before: drawing a start costs more than a step of physics, and
    few worlds need one.
    """
    restart = draw_restart(task, state) if restart is None else restart
    return restart_ended(task, step_agents(task, state, action), state.ended, restart, state.rng)


def step_agents(task: Task[S], state: S, action: Array) -> S:
    """One step of a world in which agents that have ended earn nothing and stay ended."""
    after, waiting = task.step(state, action), state.ended
    if task.spec.agents == 1:
        return after
    return replace(
        after,
        reward=jnp.where(waiting, 0.0, after.reward),
        terminated=state.terminated | (after.terminated & ~waiting),
        truncated=state.truncated | (after.truncated & ~waiting),
    )


def restart_ended(task: Task[S], state: S, ended: Bool[Array, "*agents"], restart: Restart[S], rng: Rng) -> S:
    """The state in which what has `ended` begins anew; `rng` is the world's stream."""
    # That stream goes on: no episode sees the numbers of another, even if two share a prepared start.
    anew = replace(restart.state, rng=rng.bits()[1])
    if task.spec.agents == 1:
        return select(ended, anew, state)
    if isinstance(task, RespawningTask):
        # Starts in a world that is gone may lie inside a hill of this one: who ends here waits for the next ones.
        state = task.respawn(state, restart.respawns, ended if restart.stale is None else ended & ~restart.stale)
    return select(jnp.all(ended), anew, state)
