"""Marine navigation: vessels on their way to their goals, among buoys, whirls and each other."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import require_choice
from ...core.geometry import Scalar, Vec2, sin_cos
from ...core.rng import Rng
from ...core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from ...core.task import ObstacleDistance, Spec, State, Task, stack_features
from ...dynamics.vessel import PointVessel, TwinThrusterVessel, VesselState
from .baselines import BASELINES
from .colregs import duty
from .reset import floating, journeys, whirling
from .sensing import WIDTH, blurred, nearest, sonar, told
from .state import ACTION_LEVELS, THRUST_RATE, MarineState, MarineWorld, Obstacle, VesselProgress


@dataclass(frozen=True)
class Marine(Task[MarineState]):
    """Settings of a bay. The defaults are five WAM-V vessels and four buoys under the rules of the road."""

    report: ClassVar[str] = "slipstream.tasks.marine.report"

    vessels: int = 5
    buoys: int = 4
    vehicle: str = "wamv"
    """wamv (two thrusters, inertia), wamv-original (the same, but turns count twice, as in the original) or dot (a
    point that is told acceleration and turn rate)"""
    space: str = "box"
    """how an agent acts: box, discrete (all combinations as one choice) or multidiscrete"""
    sensing: str = "things"
    """things (the nearest ones around) or sonar (eleven beams ahead)"""
    slots: int = 5
    """how many of the nearest things a vessel is told"""
    reach: float = 20.0
    """of its sensors, metres"""
    noise: float = 0.05
    rules: bool = True
    """whether the rules of the road are part of the reward"""
    size: float = 55.0
    """edge of the square in which vessels start"""
    distance: float = 40.0
    """at least so far from start to goal"""
    apart: float = 10.0
    """between starts, and between goals"""
    buoy_radius: tuple[float, float] = (1.0, 1.0)
    vortices: int = 0
    edge_speed: tuple[float, float] = (5.0, 10.0)
    """of the water round a whirl's core, m/s"""
    time_limit: float = 200.0
    practice_limit: float = 60.0
    """in practice a voyage is cut off after this time: who is late holds up the others of its world"""
    control_dt: float = 0.5
    substeps: int = 10
    goal_radius: float = 2.0
    step_reward: float = -0.1
    progress_reward: float = 1.0
    """for a metre nearer to the goal"""
    duty_reward: float = -0.1
    """for a radian that the rules ask to turn"""
    hit_reward: float = -5.0
    goal_reward: float = 10.0
    first_vessels: int = 3
    """a training begins with so many, if there are as many; likewise the following"""
    first_buoys: int = 0
    first_distance: float = 30.0
    stage: float = 1.0
    """how far a training has grown from its first worlds to the full ones; the trainer sets it"""
    practice: bool = True
    """whether worlds differ in how many vessels and buoys they have, as in training"""

    def __post_init__(self) -> None:
        require_choice("vehicle", self.vehicle, HULLS)
        require_choice("space", self.space, ("box", "discrete", "multidiscrete"))
        require_choice("sensing", self.sensing, ("things", "sonar"))
        if (
            not 1 <= self.vessels <= 16
            or not 0 <= self.buoys <= 32
            or min(self.first_vessels - 1, self.first_buoys) < 0
        ):
            raise ValueError("vessels are 1 to 16, the first ones too, and buoys up to 32")
        if not min(self.time_limit, self.practice_limit, self.control_dt, self.goal_radius) > 0.0 <= self.noise:
            raise ValueError("limits of time, control_dt and goal_radius must be positive, noise not negative")
        if self.slots < 1 or self.reach <= 0.0 or self.vortices < 0 or self.substeps < 1:
            raise ValueError("slots and substeps must be at least 1, reach positive, vortices not negative")
        if self.distance > self.size:
            raise ValueError(f"goals {self.distance:g} m away do not fit into a bay of {self.size:g} m")

    @property
    def description(self) -> str:
        who = "a vessel on its way to its goal" if self.vessels == 1 else f"{self.vessels} vessels on their way"
        around = [f"{count} {name}" for count, name in ((self.buoys, "buoys"), (self.vortices, "whirls")) if count]
        select_agents = f" among {' and '.join(around)}" if around else ""
        sight = ", by sonar" if self.sensing == "sonar" else ""
        return f"{who}{select_agents}{', under the rules of the road' if self.rules else ''}{sight}"

    @cached_property
    def spec(self) -> Spec:
        own = 7 if isinstance(self.hull, TwinThrusterVessel) else 4
        if self.sensing == "sonar":
            distance = ObstacleDistance(BEAMS, 3, self.reach, self.reach)
            return Spec(own + 3 * BEAMS, self.action, self.control_dt, self.vessels, obstacle_distance=distance)
        return Spec(
            own + WIDTH * self.slots,
            self.action,
            self.control_dt,
            self.vessels,
            entities=(self.slots, WIDTH),
            obstacle_distance=ObstacleDistance(self.slots, WIDTH, 20.0, self.reach, radius_column=4, radius_unit=0.3),
        )

    @property
    def action(self) -> ActionSpace:
        if self.space == "box":
            return Box(2)
        count = len(ACTION_LEVELS[type(self.hull)])
        return Discrete(count * count) if self.space == "discrete" else MultiDiscrete((count, count))

    @property
    def hull(self) -> TwinThrusterVessel | PointVessel:
        return HULLS[self.vehicle]

    def for_evaluation(self) -> "Marine":
        """All vessels and buoys in every world."""
        return replace(self, practice=False, stage=1.0)

    def at_progress(self, share: Scalar) -> "Marine":
        """The task after that share of a training."""
        return replace(self, stage=jnp.minimum(2.0 * share, 1.0))

    # Starting

    def reset(self, rng: Rng) -> MarineState:
        grown = self.stage if self.practice else 1.0
        distance = self.first_distance + (self.distance - self.first_distance) * grown
        starts, goals, rng = journeys(rng, self.vessels, self.size, distance, self.apart)
        vessels, rng = self._number(rng, self.first_vessels, self.vessels, grown)
        number, rng = self._number(rng, self.first_buoys, self.buoys, grown)
        apart = self.apart + self.buoy_radius[1]
        buoys, sizes, rng = floating(rng, self.buoys, number, self.size, self.buoy_radius, starts + goals, apart)
        vortices = None
        if self.vortices:
            vortices, rng = whirling(rng, self.vortices, self.size, self.edge_speed, starts + goals)
        yaws = []
        for _ in range(self.vessels):
            yaw, rng = rng.uniform(-math.pi, math.pi)
            yaws.append(yaw)
        start, goal = self._joined(starts), self._joined(goals)
        yaw = self._joined(yaws)
        boat = VesselState.at(start, yaw)
        zero, no = 0.0 * yaw, yaw > 10.0
        absent = self._joined([jnp.asarray(k >= vessels) for k in range(self.vessels)])
        voyage = VesselProgress((goal - start).norm(), no, no, zero, zero, zero, zero, Vec2(zero, zero), zero)
        # A vessel that is not there has ended before it began: nobody sees it and nothing is learned from it.
        return State(MarineWorld(goal, buoys, sizes, vortices), boat, voyage, rng, jnp.int32(0), zero, absent, no)

    def _number(self, rng: Rng, first: int, last: int, grown: Scalar) -> tuple[Scalar, Rng]:
        """How many there are: in practice often all there are at this stage, else any number from the first on."""
        if not self.practice or first >= last:
            return jnp.float32(last), rng
        most = first + (last - first) * grown
        spread, rng = rng.uniform()
        any_number = first + jnp.maximum(2.0 * spread - 1.0, 0.0) * (most - first)
        return jnp.round(jnp.where(spread < 0.5, most, any_number)), rng

    def _joined(self, parts: list[Any]) -> Any:
        """What belongs to each vessel, with an axis of vessels if there are several."""
        return jax.tree.map(lambda *x: jnp.stack(x) if self.vessels > 1 else x[0], *parts)

    # Sailing

    def step(self, state: MarineState, action: Any) -> MarineState:
        state, told = self.command(state, action)
        return self.judge(state, self.move(state, told))

    def command(self, state: MarineState, action: Any) -> tuple[MarineState, Vec2]:
        """The state that remembers the action, and the action as two numbers between −1 and 1."""
        if self.space == "box":
            sent = Vec2(jnp.clip(action[..., 0], -1.0, 1.0), jnp.clip(action[..., 1], -1.0, 1.0))
        else:
            count = len(ACTION_LEVELS[type(self.hull)])
            if self.space == "discrete":
                first, second = action // count, action % count
            else:
                first, second = action[..., 0], action[..., 1]
            sent = Vec2(*(self._level(x) for x in (first, second)))
        return replace(state, progress=replace(state.progress, sent=sent)), sent

    def _level(self, choice: Any) -> Scalar:
        level = jnp.zeros(jnp.shape(choice))
        for k, value in enumerate(ACTION_LEVELS[type(self.hull)]):
            level = jnp.where(choice == k, value, level)
        return level

    def move(self, state: MarineState, command: Vec2) -> VesselState:
        """Where the vessels are after one decision."""
        boat, hull, dt = state.body, self.hull, self.control_dt / self.substeps

        @jax.jit
        def substep(boat: VesselState, command: Vec2) -> VesselState:
            flow = self._flow(state.world, boat.position)
            if isinstance(hull, TwinThrusterVessel):
                return hull.step(boat, flow, dt)
            return hull.step(boat, hull.acceleration * command.x, hull.turn * command.y, flow, dt)

        change = THRUST_RATE * self.control_dt
        for k in range(self.substeps):
            # In the original thrusters take a substep to hear.
            if isinstance(hull, TwinThrusterVessel) and k == min(hull.published, self.substeps - 1):
                boat = hull.throttled(boat, change * command.x, change * command.y)
            boat = jax.lax.optimization_barrier(substep(boat, command))
        return boat

    def _flow(self, world: MarineWorld, place: Vec2) -> Vec2:
        if world.vortices is None:
            return Vec2(0.0, 0.0)
        return world.vortices.at(place)

    # Judging

    def things(self, state: MarineState, boat: VesselState) -> list[Obstacle]:
        """What each vessel could run into: the others that still sail, and the buoys."""
        # One vessel alone meets no others.
        sailing, course, found = state.present, boat.course, []
        for k in range(1, self.vessels):
            other = jax.tree.map(lambda x, k=k: jnp.roll(x, -k), (boat.position, course, sailing))
            found.append(Obstacle(other[0] - boat.position, other[1], jnp.float32(self.hull.radius), other[2]))
        for k in range(self.buoys):
            place = jax.tree.map(lambda x, k=k: x[k], state.world.buoys)
            still = Vec2(jnp.float32(0.0), jnp.float32(0.0))
            found.append(Obstacle(place - boat.position, still, state.world.sizes[k], state.world.sizes[k] > 0.0))
        # Rolled and spread once, and not anew for everything that comes of them.
        return jax.lax.optimization_barrier(found)

    def judge(self, state: MarineState, body: VesselState) -> MarineState:
        """The state once the vessels are there, whoever moved them."""
        step = state.step + 1
        voyage, radius = state.progress, self.hull.radius
        things = self.things(state, body)
        distance = (state.world.goal - body.position).norm()
        hit = distance < -1.0
        for thing in things:
            hit = hit | (thing.there & (thing.gap.dot(thing.gap) < (thing.radius + radius) ** 2))
        others = things[: self.vessels - 1]
        turn = duty(body.course, radius, others) if self.rules and others else 0.0 * distance
        reached = (distance < self.goal_radius) & ~hit
        reward = (
            self.step_reward
            + self.progress_reward * (voyage.distance - distance)
            + self.duty_reward * turn
            + self.hit_reward * hit
            + self.goal_reward * reached
        )
        over = hit | reached
        limit = min(self.practice_limit, self.time_limit) if self.practice else self.time_limit
        late = step.astype(jnp.float32) * self.control_dt >= limit
        running = ~state.ended
        voyage = VesselProgress(
            distance=distance,
            reached=voyage.reached | (reached & running),
            hit=voyage.hit | (hit & running),
            duty=turn,
            time=voyage.time + jnp.where(running, self.control_dt, 0.0),
            yielding=voyage.yielding + jnp.where((turn > 0.0) & running, self.control_dt, 0.0),
            energy=voyage.energy + jnp.where(running, self._effort(body, voyage), 0.0),
            sent=voyage.sent,
            score=voyage.score + jnp.where(running, reward, 0.0),
        )
        return replace(
            state,
            body=body,
            progress=voyage,
            rng=state.rng.bits()[1],
            step=step,
            reward=reward,
            terminated=over,
            truncated=jnp.broadcast_to(late, over.shape) & ~over,
        )

    def _effort(self, body: VesselState, voyage: VesselProgress) -> Scalar:
        if isinstance(self.hull, TwinThrusterVessel):
            return (jnp.abs(body.left) + jnp.abs(body.right)) * (1e-3 * self.control_dt)
        return jnp.abs(voyage.sent.x) + jnp.abs(voyage.sent.y)

    # Seeing

    def observe(self, state: MarineState) -> Float[Array, "*agents features"]:
        """What each vessel knows, scaled to about one."""
        boat = state.body
        sin, cos = sin_cos(boat.yaw)
        gap = state.world.goal - boat.position
        goal = gap.rotated(-sin, cos)
        parts = [goal.x * 0.05, goal.y * 0.05, boat.velocity.x * 0.5, boat.velocity.y * 0.5]
        if isinstance(self.hull, TwinThrusterVessel):
            parts += [boat.yaw_rate, boat.left * 1e-3, boat.right * 1e-3]
        if self.sensing == "sonar":
            parts += sonar(self.things(state, boat), boat.yaw, BEAMS, BEAM_WIDTH, self.reach)
        else:
            for thing in self.sensed(state):
                parts += told(thing, boat, self.hull.radius, sin, cos)
        shape = jnp.shape(boat.yaw)
        return stack_features([jnp.broadcast_to(part, shape) for part in parts])

    def sensed(self, state: MarineState) -> list[Obstacle]:
        """The nearest things of each vessel, as its sensors measure them."""
        rng = state.rng.fork(0x0B5E)
        if self.vessels > 1:
            rng = jax.vmap(rng.fork)(jnp.arange(self.vessels, dtype=jnp.uint32))
        measured = []
        for thing in nearest(self.things(state, state.body), self.slots, self.reach):
            thing, rng = self._measured(thing, rng)
            measured.append(thing)
        # Drawn once: fused into what is told, noise would be computed anew for every number.
        return jax.lax.optimization_barrier(measured)

    def _measured(self, thing: Obstacle, rng: Rng) -> tuple[Obstacle, Rng]:
        blur = partial(blurred, noise=self.noise)
        if self.vessels == 1:
            return blur(thing, rng)
        shape = (self.vessels,)
        return jax.vmap(blur)(jax.tree.map(lambda x: jnp.broadcast_to(x, shape), thing), rng)

    # Reporting

    def episode_metrics(self, state: MarineState) -> dict[str, Float[Array, "*agents"]]:
        voyage = state.progress
        return {
            "success": voyage.reached.astype(jnp.float32),
            "episode_return": jnp.asarray(voyage.score),
            "crash": voyage.hit.astype(jnp.float32),
            "duration": jnp.where(voyage.reached, voyage.time, jnp.nan),
            "energy": jnp.where(voyage.reached, voyage.energy, jnp.nan),
            "give_way_time": jnp.asarray(voyage.yielding),
        }

    def record(self, state: MarineState) -> dict[str, Array]:
        boat = state.body
        return {
            "position": jnp.stack([boat.position.x, boat.position.y, 0.0 * boat.yaw], -1),
            "velocity": jnp.stack([boat.course.x, boat.course.y, 0.0 * boat.yaw], -1),
            "yaw": jnp.asarray(boat.yaw),
            "thrust": jnp.stack([boat.left, boat.right], -1),
            "duty": jnp.asarray(state.progress.duty),
            "reward": state.reward,
            "ended": state.ended,
        }

    def world_record(self, state: MarineState) -> dict[str, Array]:
        world = state.world
        kept = {
            "goal": jnp.stack([world.goal.x, world.goal.y], -1),
            "buoys": jnp.stack([world.buoys.x, world.buoys.y, world.sizes], -1),
        }
        if world.vortices is not None:
            kept["vortices"] = jnp.stack([world.vortices.x, world.vortices.y, world.vortices.strength], -1)
        return kept

    def baselines(self) -> dict[str, Any]:
        """Classical planners on the same worlds."""
        return {name: partial(script, self) for name, script in BASELINES.items()}

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Of all vessels; and in how many worlds every vessel reached its goal."""
        together = np.asarray(metrics["success"]).reshape(-1, self.vessels)
        mean = lambda x: float(np.nanmean(x)) if np.isfinite(x).any() else math.nan  # noqa: E731
        return {
            "all_reach": float(np.mean(np.all(together > 0.5, axis=1))),
            "crash_rate": mean(metrics["crash"]),
            "duration_mean": mean(metrics["duration"]),
            "energy_mean": mean(metrics["energy"]),
            "give_way_time_mean": mean(metrics["give_way_time"]),
        }


BEAMS, BEAM_WIDTH = 11, math.radians(120.0)
HULLS: dict[str, TwinThrusterVessel | PointVessel] = {
    "wamv": TwinThrusterVessel(),
    "wamv-original": TwinThrusterVessel(published=True),
    "dot": PointVessel(),
}
