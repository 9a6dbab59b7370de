"""The race: what a drone sees, what moves it, what a step was worth, and where it starts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from ...core.errors import known
from ...core.geometry import Flag, Quat, Scalar, Vec3, angle_of, heading, sin_cos
from ...core.rng import Chance
from ...core.struct import struct
from ...core.task import ActionSpace, Box, Discrete, MultiDiscrete, Picture, Spec, State, each, joined
from ...dynamics.control_modes import CONTROLS, Control, Setpoint, Stick, Tuning
from ...dynamics.px4_controller import Cascade
from ...dynamics.quadrotor import VEHICLES, Flight, Quadrotor, Variation, scaled
from ...sensors.camera import Camera
from ...sensors.scene import Scene
from .scene import eye, race_scene
from .track import OPENING, TRACKS, Gate, GeneratedTrack, Track, gate_at

Range = tuple[float, float]
TELLING = 0.9
"""Share of the longest practice that an attempt must be allowed for its success to count."""


@struct
class RaceWorld:
    """What stays the same for an episode."""

    gates: tuple[Gate, ...]  # of a generated track; a fixed one is part of the program
    variation: Variation
    wind: Vec3 | None
    delay: Int[Array, ""] | None  # decisions between choosing and flying an action
    limit: Scalar | None  # seconds this attempt may take, in practice


@struct
class Race:
    """How far a drone has come."""

    next_gate: Int[Array, ""]
    passed: Int[Array, ""]  # gates in this episode
    lap_start: Scalar  # time at which the lap now flown began
    first_lap: Scalar  # seconds for the first lap, from standing; 0 before it is done
    best_lap: Scalar  # fastest of the later laps; 0 before one is done
    crashed: Flag
    missed: Flag
    score: Scalar  # sum of rewards
    sent: tuple[Stick, ...]  # commands, the newest first
    gust: Vec3 | None


RaceState = State[RaceWorld, Flight, Race]


@dataclass(frozen=True)
class Racing:
    """Fly through the gates of a track in order, as fast as possible, touching nothing."""

    track: str = "seven"
    """seven, ring, eight, long, or generated (a new one for every world)"""
    gates: int = 6
    """gates of a generated track"""
    vehicle: str = "racer"
    """racer, crazyflie or iris"""
    action: str = "rates"
    """rates (thrust and body rates), rotors, or velocity (and yaw rate)"""
    model: Literal["fast", "cascade"] = "fast"
    """who does what an action asks: simple loops of our own, or those of PX4 with their filters and limits"""
    space: Literal["box", "discrete", "multidiscrete"] = "box"
    """the same action as real numbers, as one choice, or as one choice a component"""
    choices: int = 3
    """levels of each component of a discrete action"""
    observation: Literal["body", "original"] = "body"
    """body: the next two gates seen from the drone, and its height; original: the 20 numbers of isaac_drone_racer"""
    sight: Literal["none", "rgb", "depth"] = "none"
    """rgb or depth: the drone has a camera instead of its position, and is told only which gate comes next"""
    pixels: int = 80
    """edge of the picture"""
    interval: int = 4
    """decisions from one picture to the next"""
    tuning: Tuning = Tuning()
    agents: int = 1
    """drones on one track; they see the nearest other and can hit it"""
    physics_rate: int = 400
    control_rate: int = 100
    integration: Literal[1, 4] = 1
    """order of integration: 1 or 4"""
    time_limit: float = 20.0
    practice_limit: float = 0.0
    """if positive, an attempt in training is cut short at a random time before that: starts are practised more"""
    too_far: float = 20.0
    """distance from the next gate at which an attempt is given up"""
    starts: Literal["gates", "line", "grid"] = "gates"
    """past a random gate, anywhere on the track and already moving, or before the first gate"""
    start_spread: float = 0.5
    start_tilt: float = math.pi / 4
    start_turn: float = math.pi / 4
    """how far a start may be turned away from the next gate, rad"""
    start_speed: float = 0.0
    """largest speed at a start, towards the next gate"""
    gate_margin: float = 0.0
    """metres by which training takes the drone to be larger at gates, so that it keeps clear of their frames"""
    miss_ends: bool = True
    """whether passing beside a gate ends the attempt"""

    progress_reward: float = 0.2
    """for each metre nearer to the next gate"""
    gate_reward: float = 4.0
    aside_reward: float = 0.0
    """taken off a gate's reward at the very edge of its opening, and less towards the centre"""
    miss_reward: float = -4.0
    crash_reward: float = -5.0
    look_reward: float = 0.001
    """each step, for facing the next gate"""
    rates_reward: float = -1e-6
    """each step, times the square of the body rates"""
    smooth_reward: float = 0.0
    """each step, times the square of the change of action"""

    vary_mass: float = 0.0
    """largest relative change of mass between worlds; likewise the following"""
    vary_inertia: float = 0.0
    vary_thrust: float = 0.0
    vary_lag: float = 0.0
    vary_drag: float = 0.0
    wind: float = 0.0
    """largest steady wind, m/s"""
    gust: float = 0.0
    """standard deviation of gusts, m/s"""
    gust_time: float = 0.5
    """how long a gust lasts, s"""
    delay: int = 0
    """largest delay of an action, in decisions"""
    position_noise: float = 0.0
    """standard deviation of what is observed; likewise the following"""
    velocity_noise: float = 0.0
    attitude_noise: float = 0.0
    rates_noise: float = 0.0

    def __post_init__(self) -> None:
        known("track", self.track, TRACKS)
        known("vehicle", self.vehicle, VEHICLES)
        known("action", self.action, CONTROLS)
        known("observation", self.observation, ("body", "original"))
        known("action space", self.space, ("box", "discrete", "multidiscrete"))
        known("model", self.model, ("fast", "cascade"))
        known("kind of start", self.starts, dict.fromkeys(("gates", "line", "grid")))
        if self.physics_rate % self.control_rate:
            raise ValueError(
                f"physics at {self.physics_rate} Hz is not a whole multiple of control at {self.control_rate} Hz"
            )
        if not 1 <= self.agents <= 64:
            raise ValueError(f"a track holds 1 to 64 drones, not {self.agents}")
        if self.choices < 2:
            raise ValueError("a discrete action needs at least 2 levels for each component")
        known("kind of sight", self.sight, dict.fromkeys(("none", "rgb", "depth")))
        if self.sight != "none" and (self.agents > 1 or self.observation == "original"):
            raise ValueError("a racing drone with a camera flies alone, with observation=body")
        if self.interval < 1 or self.pixels < 8:
            raise ValueError("a camera needs an interval of at least 1 and at least 8 pixels")
        if self.observation == "original" and self.agents > 1:
            raise ValueError("the original observation knows only one drone; use observation=body for several")
        if self.delay < 0 or self.time_limit <= 0.0:
            raise ValueError("delay must not be negative and time_limit must be positive")
        if not 0.0 <= max(self.vary_mass, self.vary_inertia, self.vary_thrust, self.vary_lag, self.vary_drag) < 1.0:
            raise ValueError("a relative variation lies between 0 and 1")
        if self.gate_margin < 0.0:
            raise ValueError("gate_margin must not be negative")
        if self.course.count and self.quadrotor.radius + self.gate_margin >= OPENING / 2:
            with_margin = f" with a margin of {self.gate_margin:g} m" if self.gate_margin else ""
            raise ValueError(f"the {self.vehicle} does not fit through a gate{with_margin}")

    @cached_property
    def course(self) -> Track | GeneratedTrack:
        return GeneratedTrack(self.gates) if self.track == "generated" else TRACKS[self.track]

    @cached_property
    def quadrotor(self) -> Quadrotor:
        """The vehicle of the fast model."""
        return replace(self.tuning.applied(VEHICLES[self.vehicle]), order=self.integration)

    @cached_property
    def control(self) -> Control:
        return self.tuning.loop if self.action == "rates" else CONTROLS[self.action]

    @cached_property
    def autopilot(self) -> Cascade | None:
        """The controller of PX4, as the owner of this vehicle would set it up."""
        return Cascade(rate=float(self.physics_rate)).suited(self.airframe) if self.model == "cascade" else None

    @property
    def control_dt(self) -> float:
        return 1.0 / self.control_rate

    @cached_property
    def spec(self) -> Spec:
        spaces: dict[str, ActionSpace] = {
            "box": Box(4),
            "discrete": Discrete(self.choices**4),
            "multidiscrete": MultiDiscrete((self.choices,) * 4),
        }
        if self.sight != "none":
            frame = (self.pixels, self.pixels, 3 if self.sight == "rgb" else 1)
            return Spec(15, spaces[self.space], self.control_dt, frame=frame, interval=self.interval, insight=26)
        size = 20 if self.observation == "original" else 26 + 6 * (self.agents > 1)
        return Spec(size, spaces[self.space], self.control_dt, self.agents)

    @property
    def about(self) -> str:
        """In a few words."""
        seeing = f", by a {self.sight} camera" if self.sight != "none" else ""
        return f"racing on the track ‘{self.track}’{seeing}"

    @property
    def remembered(self) -> int:
        """How many of the last commands a race keeps: those that may still be under way, and one to compare with."""
        return max(1 + self.delay, 2 if self.smooth_reward else 1)

    def exam(self) -> "Racing":
        """The task as it is evaluated: attempts run their full time, and gates are as wide as they are."""
        return replace(self, practice_limit=0.0, gate_margin=0.0)

    # Starting

    def reset(self, chance: Chance) -> RaceState:
        """Every drone somewhere on the track, at rest or on its way."""
        drawn, chance = self.course.draw(chance)
        wind, chance = self._draw_wind(chance)
        delay = None
        if self.delay:
            delay, chance = chance.integer(self.delay + 1)
        limit = None
        if self.practice_limit:
            limit, chance = chance.uniform(0.15 * self.practice_limit, self.practice_limit)
        if self.agents == 1:
            start, chance = self._start(chance, self.course.gates(drawn))
        else:
            own = jax.vmap(chance.fork)(jnp.arange(self.agents))
            start, _ = jax.vmap(partial(self._start, gates=self.course.gates(drawn)))(own)
        flight, race, variation = start
        shape = (self.agents,) if self.agents > 1 else ()
        return State(
            world=RaceWorld(drawn, variation, wind, delay, limit),
            body=flight,
            progress=race,
            chance=chance,
            step=jnp.int32(0),
            reward=jnp.zeros(shape),
            terminated=jnp.zeros(shape, bool),
            truncated=jnp.zeros(shape, bool),
        )

    def _start(self, chance: Chance, gates: tuple[Gate, ...]) -> tuple[tuple[Flight, Race, Variation], Chance]:
        """One drone past a gate, or on the line to the next, or before the first."""
        variation, chance = self._draw_variation(chance)
        index, chance = (jnp.int32(0), chance) if self.starts == "grid" else chance.integer(len(gates))
        last = gate_at(gates, jnp.where(index == 0, len(gates) - 1, index - 1))
        goal = gate_at(gates, index)
        away = goal.centre - goal.normal * 2.5 if self.starts == "grid" else last.centre + last.normal
        if self.starts == "line":
            along, chance = chance.uniform()
            away = away + (goal.centre - goal.normal * 1.5 - away) * along
        offset = []
        for _ in range(3):
            part, chance = chance.uniform(-self.start_spread, self.start_spread)
            offset.append(part)
        position = away + Vec3(*offset)
        position = replace(position, z=jnp.maximum(position.z, 0.5))
        ahead = goal.centre - position
        roll, chance = chance.uniform(-self.start_tilt, self.start_tilt)
        pitch, chance = chance.uniform(-self.start_tilt, self.start_tilt)
        turn, chance = chance.uniform(-self.start_turn, self.start_turn)
        speed, chance = chance.uniform(0.0, self.start_speed) if self.start_speed else (0.0, chance)
        facing = Vec3(ahead.x, ahead.y, 0.0).unit()
        attitude = heading(facing) * Quat.from_euler(roll, pitch, turn)
        zero = 0.0 * position.x
        flight = self.quadrotor.at(position, attitude, ahead.unit() * speed, Vec3(zero, zero, zero))
        if self.autopilot:
            flight = replace(flight, memory=self.autopilot.start(self.quadrotor, flight))
        race = Race(
            next_gate=index,
            passed=jnp.int32(0),
            lap_start=jnp.float32(0.0),
            first_lap=jnp.float32(0.0),
            best_lap=jnp.float32(0.0),
            crashed=jnp.bool_(False),
            missed=jnp.bool_(False),
            score=jnp.float32(0.0),
            sent=(Stick(*[jnp.float32(0.0)] * 4),) * self.remembered,
            gust=Vec3(*[jnp.float32(0.0)] * 3) if self.gust else None,
        )
        return (flight, race, variation), chance

    def _draw_variation(self, chance: Chance) -> tuple[Variation, Chance]:
        factors: dict[str, Scalar | None] = {}
        for name in ("mass", "inertia", "thrust", "lag", "drag"):
            reach = getattr(self, f"vary_{name}")
            if reach:
                factors[name], chance = chance.uniform(1.0 - reach, 1.0 + reach)
        return Variation(**factors), chance

    def _draw_wind(self, chance: Chance) -> tuple[Vec3 | None, Chance]:
        if not self.wind:
            return None, chance
        x, chance = chance.uniform(-self.wind, self.wind)
        y, chance = chance.uniform(-self.wind, self.wind)
        z, chance = chance.uniform(-0.2 * self.wind, 0.2 * self.wind)
        return Vec3(x, y, z), chance

    # Flying

    def step(self, state: RaceState, action: Any) -> RaceState:
        """Fly for one control period, then see what it was worth."""
        state, stick = self.command(state, action)
        return self.judge(state, self.move(state, stick))

    def move(self, state: RaceState, stick: Stick) -> Flight:
        """Where the fast model takes the drones in one control period."""
        fly = partial(self._fly, wind=state.world.wind)
        return each(self.agents, fly)(state.body, stick, state.progress.gust, state.world.variation)

    def command(self, state: RaceState, action: Any) -> tuple[RaceState, Stick]:
        """The state that remembers the action, and the stick the vehicle gets: perhaps an older one."""
        newest = each(self.agents, self.stick)(action)
        sent = (newest, *state.progress.sent)[: self.remembered]
        gust, chance = self._blow(state)
        state = replace(state, progress=replace(state.progress, sent=sent, gust=gust), chance=chance)
        late = sent[0]
        if state.world.delay is not None:
            for age, stick in enumerate(sent):
                late = jax.tree.map(partial(jnp.where, state.world.delay == age), stick, late)
        return state, late

    def stick(self, action: Any) -> Stick:
        """The command that an action of the action space stands for."""
        if self.space == "box":
            return Stick(*(jnp.clip(action[i], -1.0, 1.0) for i in range(4)))
        levels = self.choices - 1
        digits = (action // self.choices**i % self.choices for i in range(4)) if self.space == "discrete" else action
        return Stick(*(2.0 * digit.astype(jnp.float32) / levels - 1.0 for digit in digits))

    def _blow(self, state: RaceState) -> tuple[Vec3 | None, Chance]:
        """Gusts after one more step: an Ornstein-Uhlenbeck process of standard deviation `gust`."""
        # The stream goes on even in still air: the noise of the sensors hangs on it.
        chance, parts = state.chance.word()[1], []
        if not self.gust:
            return None, chance
        keep = math.exp(-self.control_dt / self.gust_time)
        for old in state.progress.gust.parts:  # pyright: ignore[reportOptionalMemberAccess]
            kick, chance = chance.normal(self.gust * math.sqrt(1.0 - keep**2))
            parts.append(keep * old + kick)
        return Vec3(*parts), chance

    def _fly(self, flight: Flight, stick: Stick, gust: Vec3 | None, variation: Variation, wind: Vec3 | None) -> Flight:
        air = gust if wind is None else wind if gust is None else wind + gust
        if self.tuning.thrust != 1.0:
            variation = replace(variation, thrust=scaled(self.tuning.thrust, variation.thrust))

        @jax.jit  # traced once for all substeps, which makes starting faster
        def substep(flight: Flight, stick: Stick, air: Vec3 | None, variation: Variation) -> Flight:
            if self.autopilot:
                wanted = self.control.setpoint(self.quadrotor, flight, stick)
                rotors, memory = self.autopilot.control(self.quadrotor, flight, flight.memory, wanted)
                flight = replace(flight, memory=memory)
            else:
                rotors = self.control.rotors(self.quadrotor, flight, stick)
            return self.quadrotor.step(flight, rotors, air, variation, 1.0 / self.physics_rate)

        for _ in range(self.physics_rate // self.control_rate):
            # One fused loop a substep; without the barrier XLA computes shared terms several times over.
            flight = jax.lax.optimization_barrier(substep(flight, stick, air, variation))
        return flight

    # Flying something else

    @property
    def airframe(self) -> Quadrotor:
        """The vehicle as it is drawn: tuning is about the fast model only."""
        return VEHICLES[self.vehicle]

    def bare(self) -> "Racing":
        """The same task for a plant that brings its own flight controller."""
        return replace(self, model="fast")

    def flights(self, state: RaceState) -> Flight:
        return state.body

    def setpoints(self, state: RaceState, stick: Stick) -> Setpoint:
        """What a flight controller is told."""
        return each(self.agents, partial(self.control.setpoint, self.airframe))(state.body, stick)

    def air(self, state: RaceState) -> Vec3:
        """How the air moves where each drone is."""
        still = jax.tree.map(jnp.zeros_like, state.body.position)
        parts = [wind for wind in (state.world.wind, state.progress.gust) if wind is not None]
        return jax.tree.map(lambda *x: sum(x[1:], x[0]), still, *parts)

    def variations(self, state: RaceState) -> Variation:
        return state.world.variation

    def settled(self, state: RaceState, stick: Stick, flights: Flight) -> Flight:
        """The body, once the drones fly like that."""
        return flights

    def surroundings(self, state: RaceState) -> Scene:
        """What can be run into."""
        return race_scene(self.course.gates(state.world.gates))

    # Judging

    def judge(self, state: RaceState, body: Flight) -> RaceState:
        """The state once the drones are there, whoever moved them: our physics, MuJoCo or PX4."""
        step = state.step + 1
        time = step.astype(jnp.float32) * self.control_dt
        gates = self.course.gates(state.world.gates)
        limit = self.time_limit if state.world.limit is None else state.world.limit
        judge = partial(self._judge, gates=gates, time=time)
        race, reward, over = each(self.agents, judge)(state.progress, state.body, body)
        if self.agents > 1:
            hit = self._collisions(state, body)
            race = replace(race, crashed=race.crashed | hit)
            reward = reward + jnp.where(hit & ~over, self.crash_reward, 0.0)
            over = over | hit
        race = replace(race, score=state.progress.score + jnp.where(state.ended, 0.0, reward))
        return replace(
            state,
            body=body,
            progress=race,
            step=step,
            reward=reward,
            terminated=over,
            truncated=jnp.broadcast_to(time >= limit, over.shape) & ~over,
        )

    def _judge(
        self, race: Race, before: Flight, after: Flight, gates: tuple[Gate, ...], time: Scalar
    ) -> tuple[Race, Scalar, Flag]:
        """One drone: its race so far, the reward of the step, and whether it is over."""
        goal = gate_at(gates, race.next_gate)
        radius = self.quadrotor.radius + self.gate_margin
        crossing = goal.crossing(before.position, after.position, radius)
        hit = jnp.asarray(after.position.z < self.quadrotor.foot_drop)
        for gate in gates:
            hit = hit | gate.crossing(before.position, after.position, radius).hit
        through = crossing.through & ~hit
        missed = crossing.forward & ~through & ~hit
        ahead = goal.centre - after.position
        distance = ahead.norm()
        gain = (goal.centre - before.position).norm() - distance
        reward = (
            self.progress_reward * gain
            + (self.gate_reward - self.aside_reward * crossing.offset) * through
            + self.miss_reward * missed
            + self.crash_reward * hit
            + self.rates_reward * after.rates.dot(after.rates)
        )
        if self.look_reward:
            facing = jnp.clip(after.attitude.forward.dot(ahead) / jnp.maximum(distance, 1e-3), -1.0, 1.0)
            reward = reward + self.look_reward * jnp.exp(-2.0 * angle_of(facing))
        if self.smooth_reward:
            new, old = race.sent[0].parts, race.sent[1].parts
            reward = reward + self.smooth_reward * sum((a - b) ** 2 for a, b in zip(new, old, strict=True))
        lost = distance > self.too_far
        over = hit | lost
        if self.miss_ends:
            over = over | missed
        passed = race.passed + through
        count = len(gates)
        lap_done = through & (passed % count == 0)
        lap = time - race.lap_start
        first = lap_done & (passed == count)
        following = jnp.where(race.next_gate + 1 == count, 0, race.next_gate + 1)
        return (
            replace(
                race,
                next_gate=jnp.where(through, following, race.next_gate),
                passed=passed,
                lap_start=jnp.where(lap_done, time, race.lap_start),
                first_lap=jnp.where(first, lap, race.first_lap),
                best_lap=jnp.where(
                    lap_done & ~first & ((race.best_lap == 0.0) | (lap < race.best_lap)), lap, race.best_lap
                ),
                crashed=race.crashed | hit,
                missed=race.missed | missed,
            ),
            reward,
            over,
        )

    def _collisions(self, state: RaceState, body: Flight) -> Float[Array, "agents"]:
        """Which drones, of those still flying, touch another one."""
        p = body.position
        x, y, z = (jnp.subtract.outer(part, part) for part in p.parts)
        flying = ~state.ended
        pairs = flying[:, None] & flying[None, :] & ~jnp.eye(self.agents, dtype=bool)
        return jnp.any(pairs & (x**2 + y**2 + z**2 < (2.0 * self.quadrotor.radius) ** 2), axis=1)

    # Seeing

    def observe(self, state: RaceState) -> Float[Array, "*agents features"]:
        """What each drone knows, scaled to about one."""
        look = partial(self._look, gates=self.course.gates(state.world.gates))
        if self.agents == 1:
            flight = self._blurred(state.body, state.chance)
            return joined(look(flight, state.progress))
        chances = jax.vmap(state.chance.fork)(jnp.arange(self.agents))
        flight = jax.vmap(self._blurred)(state.body, chances)
        seen = jax.vmap(lambda f, r: joined(look(f, r)))(flight, state.progress)
        return jnp.concatenate([seen, self._others(state)], axis=-1)

    def picture(self, state: RaceState) -> Picture:
        """What the camera in the nose sees: colours, or nearness in one channel."""
        scene = race_scene(self.course.gates(state.world.gates))
        view = eye(state.body.position, state.body.attitude, state.chance.stream + state.step.astype(jnp.uint32))
        frame = Camera(self.pixels, self.pixels).render(scene, view)
        return frame.packed & 0xFFFFFF if self.sight == "rgb" else nearness(frame.depth)

    def insight(self, state: RaceState) -> Float[Array, "features"]:
        """Where the next gates are: what a drone with a camera is not told, for its critic."""
        return replace(self, sight="none").observe(state)

    def _look(self, flight: Flight, race: Race, gates: tuple[Gate, ...]) -> list[Scalar]:
        axes = flight.attitude.axes
        into = axes.unrotate
        if self.sight != "none":
            sin, cos = sin_cos(race.next_gate.astype(jnp.float32) * (2.0 * math.pi / len(gates)))
            return [
                *(into(flight.velocity) * 0.1).parts, *axes.down_b.parts, *(flight.rates * 0.1).parts,
                sin, cos, *race.sent[0].parts,
            ]  # fmt: skip
        goal = gate_at(gates, race.next_gate)
        if self.observation == "original":
            q, p = flight.attitude, flight.position
            ahead = into(goal.centre - p)
            return [
                *(p * 0.1).parts, q.w, q.x, q.y, q.z, *(into(flight.velocity) * 0.1).parts,
                *(flight.rates * 0.1).parts, *(ahead * 0.1).parts, *race.sent[0].parts,
            ]  # fmt: skip
        following = gate_at(gates, jnp.where(race.next_gate + 1 == len(gates), 0, race.next_gate + 1))
        return [
            *(into(flight.velocity) * 0.1).parts,
            *axes.down_b.parts,
            *(flight.rates * 0.1).parts,
            *(into(goal.centre - flight.position) * 0.1).parts,
            *into(goal.normal).parts,
            *(into(following.centre - flight.position) * 0.1).parts,
            *into(following.normal).parts,
            # Height matters near the ground; far up it should not drown the rest.
            jnp.minimum(flight.position.z, 4.0) * 0.5,
            *race.sent[0].parts,
        ]

    def _others(self, state: RaceState) -> Float[Array, "agents 6"]:
        """Position and velocity of the nearest other drone still flying, relative and in the body; else zero."""
        p, v, flying = state.body.position, state.body.velocity, state.present
        gaps = [-jnp.subtract.outer(part, part) for part in (*p.parts, *v.parts)]
        distance = sum(gap**2 for gap in gaps[:3])
        distance = jnp.where(flying[None, :] & ~jnp.eye(self.agents, dtype=bool), distance, jnp.inf)
        nearest = jnp.argmin(distance, axis=1)
        own = jnp.arange(self.agents)
        there = jnp.isfinite(distance[own, nearest])
        x, y, z, vx, vy, vz = (jnp.where(there, gap[own, nearest], 0.0) * 0.1 for gap in gaps)
        into = state.body.attitude.unrotate
        return jnp.stack([*into(Vec3(x, y, z)).parts, *into(Vec3(vx, vy, vz)).parts], axis=-1)

    def _blurred(self, flight: Flight, chance: Chance) -> Flight:
        """The flight as noisy instruments show it."""
        chance = chance.fork(0x0B5E)

        def noise(scale: float) -> Vec3:
            nonlocal chance
            parts = []
            for _ in range(3):
                part, chance = chance.normal(scale)
                parts.append(part)
            return Vec3(*parts)

        if self.position_noise:
            flight = replace(flight, position=flight.position + noise(self.position_noise))
        if self.velocity_noise:
            flight = replace(flight, velocity=flight.velocity + noise(self.velocity_noise))
        if self.attitude_noise:
            flight = replace(flight, attitude=flight.attitude.spun(noise(self.attitude_noise), 1.0))
        if self.rates_noise:
            flight = replace(flight, rates=flight.rates + noise(self.rates_noise))
        return flight

    # Reporting

    def figures(self, state: RaceState) -> dict[str, Float[Array, "*agents"]]:
        race = state.progress
        done = race.first_lap > 0.0
        tells = jnp.bool_(True)
        if state.world.limit is not None:
            # Only practice that may last long enough for a lap tells how many succeed; whether it ended early or not,
            # since crashes always end early.
            tells = state.world.limit >= TELLING * self.practice_limit
        return {
            "success": jnp.where(tells, done, jnp.nan),
            "score": jnp.asarray(race.score),
            "lap_time": jnp.where(done, race.first_lap, jnp.nan),
            "flying_lap": jnp.where(race.best_lap > 0.0, race.best_lap, jnp.nan),
            "gates": race.passed.astype(jnp.float32),
            "crash": race.crashed.astype(jnp.float32),
            "miss": race.missed.astype(jnp.float32),
        }

    def record(self, state: RaceState) -> dict[str, Array]:
        """What an episode keeps of a moment."""
        flight, race = state.body, state.progress
        q = flight.attitude
        return {
            "position": jnp.stack(flight.position.parts, -1),
            "attitude": jnp.stack([q.w, q.x, q.y, q.z], -1),
            "velocity": jnp.stack(flight.velocity.parts, -1),
            "rates": jnp.stack(flight.rates.parts, -1),
            "command": jnp.stack(race.sent[0].parts, -1),
            "reward": state.reward,
            "next_gate": race.next_gate,
            "passed": race.passed,
        }

    def scenery(self, state: RaceState) -> dict[str, Array]:
        """What stands around: the gates of this world, as x, y, z of the centre and cosine and sine of the heading."""
        gates = self.course.gates(state.world.gates)
        rows = [jnp.stack([jnp.asarray(x) for x in (*g.centre.parts, g.cos, g.sin)]) for g in gates]
        return {"gates": jnp.stack(rows)}

    def baselines(self) -> dict[str, Any]:
        """No script flies a race."""
        return {}

    def summary(self, figures: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The task's own figures over many episodes."""
        laps, flying = figures["lap_time"], figures["flying_lap"]
        known, flown = laps[np.isfinite(laps)], flying[np.isfinite(flying)]
        return {
            "lap_time_mean": float(np.mean(known)) if known.size else math.nan,
            "lap_time_std": float(np.std(known)) if known.size else math.nan,
            "lap_time_best": float(np.min(known)) if known.size else math.nan,
            "flying_lap_mean": float(np.mean(flown)) if flown.size else math.nan,
            "gates_per_episode": float(np.mean(figures["gates"])),
            "crash_rate": float(np.mean(figures["crash"])),
            "miss_rate": float(np.mean(figures["miss"])),
        }


def nearness(depth: Float[Array, "h w"]) -> UInt8[Array, "h w"]:
    """Depth as a byte: 255 at the lens, half of it at five metres, 0 in the sky."""
    return (255.0 * 5.0 / (5.0 + jnp.minimum(depth, 1e6))).astype(jnp.uint8)
