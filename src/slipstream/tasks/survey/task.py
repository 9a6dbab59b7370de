"""The survey: a fleet over one country, every drone on a mission of its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...core.errors import nearest
from ...core.geometry import Flag, Quat, Scalar, Vec2, Vec3, sin_cos
from ...core.rng import Chance
from ...core.task import Box, Picture, Spec, State, among, joined
from ...dynamics.control_modes import VelocitySetpoint
from ...dynamics.px4_controller import Cascade
from ...dynamics.quadrotor import VEHICLES, Flight, Quadrotor, Variation
from ...dynamics.velocity_drone import Gimbal, Glide, Handling, VelocityCommand, asked_for, fly
from ...sensors.camera import Camera
from ...sensors.detection import Detector, Lens
from ...sensors.scene import Scene
from . import coverage, observation
from .baselines import BASELINES, GIMBAL_RATE, fly_script
from .behavior import LANDED, MISSION, Behaviour, Condition
from .mission import MISSIONS, Mission
from .reset import start
from .rewards import achievable, judged, surveyed
from .safety import BATTERY, Around, Checked, SafetyFilter
from .scene import look_of, standing, survey_scene
from .state import Fleet, Orders, Sortie, SurveyState
from .world import Country


@dataclass(frozen=True)
class Survey:
    """Survey a country with a fleet: every drone has its own mission, camera, reward and end."""

    mission: str = "transit"
    """transit, coverage, multi-objective, search, dwell, or free (nothing is asked)"""
    agents: int = 16
    """drones in one world"""
    sight: Literal["none", "rgb", "depth"] = "none"
    """rgb or depth: each drone has a picture; what it shows is then left out of the numbers"""
    pixels: int = 80
    """edge of the picture"""
    interval: int = 4
    """decisions from one picture to the next"""
    starts: Literal["anywhere", "pad", "both"] = "anywhere"
    """in the air anywhere, on the ground on a landing pad, or either with even odds"""
    control_rate: int = 5
    """decisions a second"""
    safety: bool = True
    """whether the safety filter stands between policy and vehicle"""
    gust: float = 0.5
    """standard deviation of gusts, as they move the drone, m/s"""
    outage: float = 0.15
    """probability that a drone loses its satellites for a minute"""
    blind: float = 0.0
    """probability that its cameras then do not tell a drone where it is either: it lands"""
    drift: float = 0.5
    """standard deviation of the drone's idea of where it is, m; four times that without satellites"""
    discharge: float = 0.1
    """percent of battery a second"""
    sharp: float = 70.0
    """height above which a picture shows too little to count as covered, m"""
    world_life: float = 300.0
    """seconds after which a country is replaced by another, on average; 0 is never"""
    vehicle: str = "iris"
    """what flies where the drones have rotors: iris, or any other quadrotor"""
    model: Literal["fast", "cascade"] = "fast"
    """fast: drones that answer a velocity, by `handling`; cascade: rotors, and the loops of PX4"""
    lens: Lens = Lens()
    detector: Detector = Detector()
    handling: Handling = Handling()
    vary_handling: float = 0.0
    """largest relative change, between sorties, of how fast a drone answers"""

    def __post_init__(self) -> None:
        if self.mission not in MISSIONS:
            raise ValueError(f"there is no mission '{self.mission}'{nearest(self.mission, MISSIONS)}")
        if not 2 <= self.agents <= 32:
            raise ValueError(f"a country holds 2 to 32 drones, not {self.agents}")
        if self.vehicle not in VEHICLES:
            raise ValueError(f"there is no vehicle '{self.vehicle}'{nearest(self.vehicle, VEHICLES)}")
        known = {
            "sight": ("none", "rgb", "depth"),
            "starts": ("anywhere", "pad", "both"),
            "model": ("fast", "cascade"),
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not '{getattr(self, name)}'")
        if min(self.control_rate, self.interval) < 1 or self.pixels < 8:
            raise ValueError("control_rate and interval are at least 1, pixels at least 8")
        if self.control_rate > 50 or self.control_rate < 2:
            raise ValueError("a drone takes between 2 and 50 commands a second")
        if not 0.0 <= self.vary_handling < 1.0:
            raise ValueError("vary_handling is a share between 0 and 1")
        if min(self.gust, self.drift, self.discharge, self.world_life) < 0.0 or not (
            min(self.outage, self.blind) >= 0.0 and max(self.outage, self.blind) <= 1.0
        ):
            raise ValueError(
                "gust, drift, discharge and world_life are not negative, outage and blind each a probability"
            )

    @property
    def plan(self) -> Mission:
        return MISSIONS[self.mission]

    @property
    def dt(self) -> float:
        return 1.0 / self.control_rate

    @property
    def behaviour(self) -> Behaviour:
        return Behaviour()

    @cached_property
    def filter(self) -> SafetyFilter:
        """With room for how far a drone may be mistaken about where it is."""
        land = self.plan.land
        return SafetyFilter(
            margin=3.0 + 6.0 * self.drift,
            drones=8.0 + 6.0 * self.drift,
            east=land.east,
            north=land.north,
            handling=self.handling,
            dt=self.dt,
        )

    @cached_property
    def spec(self) -> Spec:
        size = 6 if self.plan.gimbal == "policy" else 4
        frame = (self.pixels, self.pixels, 3 if self.sight == "rgb" else 1) if self.sight != "none" else None
        return Spec(
            observation=sum(observation.sizes(self.plan, self.sight != "none").values()),
            action=Box(size),
            control_dt=self.dt,
            agents=self.agents,
            frame=frame,
            interval=self.interval if frame else 1,
            insight=observation.TRACK if frame and self.plan.own else 0,
        )

    @property
    def about(self) -> str:
        """In a few words."""
        seeing = f", by {self.sight} cameras" if self.sight != "none" else ""
        return f"survey: {self.mission}, {self.agents} drones in each world{seeing}"

    def exam(self) -> "Survey":
        """The mission as it is evaluated: from the pads, in a country that stays."""
        return replace(self, starts="anywhere" if self.plan.own else "pad", world_life=0.0)

    # Starting

    def reset(self, chance: Chance) -> SurveyState:
        """A new country and a drone on every mission in it."""
        country = self.plan.land.draw(chance.fork(0), self.agents)
        shape = (self.agents,)
        empty = State(
            world=country,
            body=Fleet(*[jnp.float32(0.0)] * 3),  # pyright: ignore[reportArgumentType]
            progress=None,
            chance=chance,
            step=jnp.zeros(shape, jnp.int32),
            reward=jnp.zeros(shape),
            terminated=jnp.zeros(shape, bool),
            truncated=jnp.zeros(shape, bool),
        )
        drones, gimbals, sorties = self.newcomers(chance.fork(1), empty)  # pyright: ignore[reportArgumentType]
        fleet = Fleet(drones, gimbals, jnp.float32(0.0), self._airframes(drones))
        return replace(empty, body=fleet, progress=sorties)  # pyright: ignore[reportReturnType]

    def _airframes(self, drones: Glide) -> Flight | None:
        """The rotors under drones that hover, and their controllers."""
        if self.model == "fast":
            return None
        return jax.vmap(lambda f: replace(f, memory=self.autopilot.start(self.airframe, f)))(self._hovering(drones))

    def _hovering(self, drones: Glide) -> Flight:
        def one(drone: Glide) -> Flight:
            zero = 0.0 * drone.yaw
            level = Quat.from_euler(zero, zero, drone.yaw)
            return self.airframe.at(drone.position, level, drone.velocity, Vec3(zero, zero, drone.yaw_rate))

        return jax.vmap(one)(drones)

    def _over(self, country: Country, clock: Scalar) -> Flag:
        """Whether a country's life is over."""
        return clock >= self.world_life * country.life if self.world_life else jnp.bool_(False)

    def newcomers(self, chance: Chance, state: SurveyState) -> tuple[Glide, Gimbal, Sortie]:
        """Every drone at its start in this country."""
        numbers = jnp.arange(self.agents)
        return jax.vmap(lambda own, shared: start(self, *own, *shared), in_axes=(0, None))(
            (jax.vmap(chance.fork)(numbers), numbers, state.world.pads),
            (state.world, state.body.clock),
        )

    def rejoin(
        self, state: SurveyState, newcomers: tuple[Glide, Gimbal, Sortie], who: Bool[Array, "agents"]
    ) -> SurveyState:
        drones, gimbals, sorties = newcomers
        body = replace(
            state.body,
            drones=among(who, drones, state.body.drones),
            gimbals=among(who, gimbals, state.body.gimbals),
            airframes=among(who, self._airframes(drones), state.body.airframes),
        )
        return replace(
            state,
            body=body,
            progress=among(who, sorties, state.progress),
            step=jnp.where(who, 0, state.step),
            reward=jnp.where(who, 0.0, state.reward),
            terminated=state.terminated & ~who,
            # Who comes to a country in its last moment has ended with the others.
            truncated=(state.truncated & ~who) | self._over(state.world, state.body.clock),
        )

    # Flying

    def step(self, state: SurveyState, action: Any) -> SurveyState:
        """Fly for one control period, then see what it was worth."""
        state, orders = self.command(state, action)
        return self.judge(state, self.move(state, orders))

    def command(self, state: SurveyState, action: Any) -> tuple[SurveyState, Orders]:
        """What the vehicles are told: the mode decides who speaks, the filter has the last word."""
        _, chance = state.chance.word()
        fleet, country = state.body, state.world
        believed = jax.vmap(shifted)(fleet.drones, state.progress.drift)
        around = Around(country, fleet.clock, believed, ~state.ended & (state.progress.mode != LANDED))
        asked, modes, drained, gimbals = jax.vmap(lambda own, around: self._ask(*own, around), in_axes=(0, None))(
            (action, believed, fleet.gimbals, state.progress, state.step), around
        )
        if self.safety:
            checked = self.filter.check(asked, self.behaviour.low(modes), around)
        else:
            checked = Checked(asked, 0.0 * believed.yaw, 0 * modes)
        sortie = replace(
            state.progress,
            mode=modes,
            sent=checked.command,
            changed=checked.changed,
            overruled=state.progress.overruled + (checked.changed > 0.0),
            reason=jnp.where(checked.changed > 0.0, checked.reason, jnp.where(drained, BATTERY, state.progress.reason)),
        )
        return replace(state, progress=sortie, chance=chance), Orders(checked.command, gimbals)

    def _ask(
        self, action: Array, drone: Glide, gimbal: Gimbal, sortie: Sortie, step: Array, around: Around
    ) -> tuple[VelocityCommand, Array, Flag, Vec2]:
        """What one drone asks for, its mode, whether its battery is why, and how its camera turns."""
        plan, country = self.plan, around.country
        asked = VelocityCommand(*(jnp.clip(action[i], -1.0, 1.0) for i in range(4)))
        if plan.frame == "area":
            sin, cos = sin_cos(drone.yaw)
            asked = replace(
                asked, ahead=cos * asked.ahead + sin * asked.aside, aside=cos * asked.aside - sin * asked.ahead
            )
        now = self._condition(drone, sortie, step, country)
        mode = self.behaviour.next(sortie.mode, now)
        asked = self.behaviour.command(mode, asked, drone, now, country.weather.wind, self.handling, self.dt)
        if plan.gimbal == "policy":
            turned = Vec2(action[4], action[5])
        elif plan.gimbal == "nearest":
            towards = observation.aimed(drone, observation.nearest_left(drone, sortie, country, around.clock))
            turned = observation.turned_to(gimbal, towards, GIMBAL_RATE, self.dt)
        else:
            turned = Vec2(0.0 * drone.yaw, 0.0 * drone.yaw)
        return asked, mode, (mode != MISSION) & (now.battery <= now.reserve), turned

    def _condition(self, drone: Glide, sortie: Sortie, step: Array, country: Country) -> Condition:
        here, plan = drone.position, self.plan
        way = sortie.home - here
        # On the way to its goal a drone need not keep what it takes to get there against a head wind.
        spare = 1.0 if plan.transit else 1.3
        reserve = 10.0 + spare * self.discharge * country.drain * way.norm() / self.behaviour.return_speed
        done = jnp.zeros_like(sortie.hit)
        if plan.returns:
            done = surveyed(self, sortie)
            # What must be left at home is kept for it.
            reserve = reserve - 10.0 + plan.reserve + 2.0
        if math.isfinite(plan.silent):
            reserve = jnp.where(step.astype(jnp.float32) * self.dt >= plan.silent, 1.2 * reserve, reserve)
        return Condition(
            battery=sortie.battery,
            reserve=reserve,
            home=way,
            height=here.z - country.terrain(here.x, here.y),
            done=done,
            lost=sortie.dark & sortie.blind,
        )

    def move(self, state: SurveyState, orders: Orders) -> Fleet:
        """Where the model takes the fleet in one control period."""
        if self.model == "cascade":
            return self._piloted(state, orders)

        def one(own: tuple[Glide, VelocityCommand, Chance, Scalar | None], wind: Vec3) -> Glide:
            drone, command, chance, agility = own
            flown = fly(drone, command, self.handled(agility), wind, self.dt)
            if not self.gust:
                return flown
            east, chance = chance.normal(self.gust * self.dt)
            north, chance = chance.normal(self.gust * self.dt)
            return replace(flown, position=flown.position + Vec3(east, north, 0.0 * east))

        chances = jax.vmap(state.chance.fork)(jnp.arange(self.agents))
        moving = (state.body.drones, orders.commands, chances, state.progress.agility)
        return self._after(state, orders, jax.vmap(one, in_axes=(0, None))(moving, state.world.weather.wind))

    def handled(self, agility: Scalar | None) -> Handling:
        """How a drone of that agility answers."""
        usual = self.handling
        if agility is None:
            return usual
        slower = {"lag": usual.lag * agility, "turn_lag": usual.turn_lag * agility}
        if usual.lean:
            slower |= {"lean": usual.lean * agility, "drag": usual.drag * agility}
        return replace(usual, **slower)

    def _after(self, state: SurveyState, orders: Orders, drones: Glide, airframes: Flight | None = None) -> Fleet:
        """The fleet once its drones are there. What stands on its pad stays there."""
        fleet, still = state.body, state.progress.mode == LANDED
        gimbals = jax.vmap(lambda gimbal, turned: gimbal.turned(turned.x, turned.y, GIMBAL_RATE, self.dt))(
            fleet.gimbals, orders.gimbals
        )
        return Fleet(among(still, fleet.drones, drones), gimbals, fleet.clock + self.dt, airframes)

    # Flying with rotors

    @cached_property
    def airframe(self) -> Quadrotor:
        return VEHICLES[self.vehicle]

    @cached_property
    def autopilot(self) -> Cascade:
        return Cascade().suited(self.airframe)

    def bare(self) -> "Survey":
        """The same task for a plant that brings its own vehicles."""
        return replace(self, model="fast")

    def flights(self, state: SurveyState) -> Flight:
        return self._hovering(state.body.drones)

    def setpoints(self, state: SurveyState, orders: Orders) -> VelocitySetpoint:
        """What flight controllers are told."""

        def one(drone: Glide, command: VelocityCommand) -> VelocitySetpoint:
            return VelocitySetpoint(asked_for(drone.yaw, command, self.handling), command.turn * self.handling.turn)

        return jax.vmap(one)(state.body.drones, orders.commands)

    def air(self, state: SurveyState) -> Vec3:
        """How the air moves where each drone is: the wind, and gusts that carry a drone about as far as the model's."""
        chances = jax.vmap(state.chance.fork)(jnp.arange(self.agents))

        def one(chance: Chance, wind: Vec3) -> Vec3:
            east, chance = chance.normal(GUSTS * self.gust)
            north, chance = chance.normal(GUSTS * self.gust)
            return Vec3(wind.x + east, wind.y + north, wind.z)

        return jax.vmap(one, in_axes=(0, None))(chances, state.world.weather.wind)

    def variations(self, state: SurveyState) -> Variation:
        return Variation()

    def settled(self, state: SurveyState, orders: Orders, flights: Flight) -> Fleet:
        """The fleet once its vehicles fly like that."""

        def one(before: Glide, flight: Flight) -> Glide:
            nose = flight.attitude.forward
            change = (flight.velocity - before.velocity) * (1.0 / self.dt)
            # Whoever flies has trimmed the drag away.
            air = flight.velocity - state.world.weather.wind
            kept = Vec2(air.x, air.y) * self.handling.drag
            yaw = jnp.arctan2(nose.y, nose.x)
            leaning = Vec2(change.x + kept.x, change.y + kept.y)
            lean = replace(change, x=leaning.x, y=leaning.y)
            return Glide(flight.position, flight.velocity, yaw, flight.rates.z, lean, kept, leaning)

        drones = jax.vmap(one)(state.body.drones, flights)
        return self._after(state, orders, drones, flights if self.model == "cascade" else None)

    def surroundings(self, state: SurveyState) -> Scene:
        """What can be run into."""
        return standing(state.world)

    def _piloted(self, state: SurveyState, orders: Orders) -> Fleet:
        """Where rotors take the fleet under the cascade."""
        pilot, vehicle = self.autopilot, self.airframe

        def one(flight: Flight, wanted: VelocitySetpoint, air: Vec3, country: Country) -> Flight:
            ground = country.terrain(flight.position.x, flight.position.y)

            def tick(_: Array, flight: Flight) -> Flight:
                rotors, memory = pilot.control(vehicle, flight, flight.memory, wanted)
                flown = vehicle.step(replace(flight, memory=memory), rotors, air, Variation(), pilot.dt)
                down = flown.position.z < ground
                return replace(
                    flown,
                    position=replace(flown.position, z=jnp.maximum(flown.position.z, ground)),
                    velocity=replace(
                        flown.velocity, z=jnp.where(down, jnp.maximum(flown.velocity.z, 0.0), flown.velocity.z)
                    ),
                )

            return jax.lax.fori_loop(0, round(pilot.rate * self.dt), tick, flight)

        assert state.body.airframes is not None
        flights = jax.vmap(one, in_axes=(0, 0, 0, None))(
            state.body.airframes, self.setpoints(state, orders), self.air(state), state.world
        )
        return self.settled(state, orders, flights)

    # Judging

    def judge(self, state: SurveyState, body: Fleet) -> SurveyState:
        """The state once the fleet is there, whoever moved it: our model, MuJoCo or PX4."""
        step = state.step + 1
        flying = ~state.ended & (state.progress.mode != LANDED)
        chances = jax.vmap(lambda i: state.chance.fork(i + 64))(jnp.arange(self.agents))
        numbers = jnp.arange(self.agents)
        before, after = state.body.drones, body.drones
        sortie, reward, over = jax.vmap(lambda own, shared: judged(self, *own, *shared), in_axes=(0, None))(
            (state.progress, before, after, body.gimbals, numbers, chances, step),
            (state.world, body.clock, (before.position, after.position, flying, numbers)),
        )
        late = step.astype(jnp.float32) * self.dt >= sortie.limit
        truncated = self._over(state.world, body.clock)
        if self.plan.deadline:
            # A drone sees its clock, and nothing can be earned after the limit: the future is worth nothing.
            reward = reward + self.plan.end_reward * (late & ~over & ~sortie.success)
            over = over | late
        else:
            truncated = truncated | late
        sortie = replace(sortie, score=state.progress.score + jnp.where(state.ended, 0.0, reward))
        truncated = truncated & ~over
        return replace(
            state, body=body, progress=sortie, step=step, reward=reward, terminated=over, truncated=truncated
        )

    # Seeing

    def observe(self, state: SurveyState) -> Float[Array, "agents features"]:
        """All parts of what each drone knows, side by side."""
        told = observation.told(self, state)
        return joined([x for part in told.values() for x in part])

    def parts(self, state: SurveyState) -> dict[str, Float[Array, "agents size"]]:
        """What each drone knows, by name: the same for training and for full-fidelity evaluation."""
        return {name: joined(part) for name, part in observation.told(self, state).items()}

    def insight(self, state: SurveyState) -> Float[Array, "agents secrets"]:
        """Where its own target is: what a drone with a camera is not told, for its critic."""
        return replace(self, sight="none").parts(state)["track"]

    def picture(self, state: SurveyState) -> Picture:
        """What every drone's camera sees: colours, or nearness in one channel."""
        scene = survey_scene(state.world, state.body.clock, state.body.drones.position, self.plan.own)
        views = jax.vmap(look_of)(
            state.body.drones, state.body.gimbals, state.chance.stream + state.step.astype(jnp.uint32)
        )
        frames = jax.vmap(partial(Camera(self.pixels, self.pixels).render, scene))(views)
        if self.sight == "rgb":
            return frames.packed & 0xFFFFFF
        return (255.0 * 40.0 / (40.0 + jnp.minimum(frames.depth, 1e6))).astype(jnp.uint8)

    # Reporting

    def figures(self, state: SurveyState) -> dict[str, Float[Array, "agents"]]:
        sortie, plan = state.progress, self.plan
        tells = jnp.ones_like(state.truncated)
        if self.world_life:
            # Only a sortie that had enough time before its country ends tells how many succeed, whatever became of
            # it: crashes end early, so of those with little time they alone would count.
            began = state.body.clock - state.step.astype(jnp.float32) * self.dt
            tells = began + TELLING * sortie.limit <= self.world_life * state.world.life
        found = jax.lax.population_count(sortie.found).astype(jnp.float32) / plan.land.targets
        figures = {
            "success": jnp.where(tells, sortie.success, jnp.nan),
            "score": sortie.score,
            "duration": state.step.astype(jnp.float32) * self.dt,
            "battery": sortie.battery,
            "entered": sortie.entered.astype(jnp.float32),
            "crash": sortie.hit.astype(jnp.float32),
            "overruled": sortie.overruled / jnp.maximum(state.step, 1),
        }
        if plan.cover:
            figures["coverage"] = jax.vmap(coverage.share_of)(sortie.covered)
        if plan.find_reward:
            figures |= {"found": found, "false_alarms": sortie.alarms}
        if plan.value:
            most = jnp.maximum(achievable(state.world), 1.0)
            figures |= {"value": sortie.value / most, "high_threat": sortie.high, "medium_threat": sortie.medium}
        if plan.own:
            figures["dwell"] = sortie.best_dwell
        return {name: jnp.asarray(value, jnp.float32) for name, value in figures.items()}

    def record(self, state: SurveyState) -> dict[str, Array]:
        """What an episode keeps of a moment, for every drone."""
        drones, sortie = state.body.drones, state.progress
        kept = {
            "position": jnp.stack(drones.position.parts, -1),
            "velocity": jnp.stack(drones.velocity.parts, -1),
            "yaw": drones.yaw,
            "gimbal": jnp.stack([state.body.gimbals.yaw, state.body.gimbals.pitch], -1),
            "reward": state.reward,
            "battery": sortie.battery,
            "mode": sortie.mode,
            "changed": sortie.changed,
            "reason": sortie.reason,
            "found": sortie.found,
            "clock": jnp.broadcast_to(state.body.clock, (self.agents,)),
            "ended": state.ended,
        }
        if self.plan.cover:
            kept["covered"] = jnp.stack(sortie.covered, -1)
        if self.plan.own:
            kept["quality"] = sortie.quality
        return kept

    def scenery(self, state: SurveyState) -> dict[str, Array]:
        """The whole country, leaf by leaf, and where the drones are to go."""
        leaves = jax.tree_util.tree_leaves_with_path(state.world)
        kept = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
        return kept | {"goal": jnp.stack(state.progress.goal.parts, -1)}

    def baselines(self) -> dict[str, Any]:
        """The scripts this mission's policy is measured against."""
        if self.plan.own and self.sight != "none":
            # They are told where the target is, which a drone with a camera has to see.
            return {}
        return {name: partial(fly_script, script, self) for name, script in BASELINES.get(self.mission, {}).items()}

    def summary(self, figures: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Means over all drones of all countries."""
        names = [name for name in figures if name not in ("success", "score")]
        return {f"{name}_mean": float(np.nanmean(figures[name])) for name in names}


TELLING = 0.75
"""Share of its time limit that a sortie in training must have had for its success to count: who succeeds needs less."""
GUSTS = 4.0
"""Speed of a gust of air over the speed at which it moves a drone."""


def shifted(drone: Glide, drift: Vec2) -> Glide:
    """A drone where it believes itself to be."""
    return replace(drone, position=drone.position + Vec3(drift.x, drift.y, 0.0 * drift.x))
