"""The survey: a fleet over one country, every drone on a mission of its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from ...chance import Chance
from ...dynamics.velocity import Gimbal, Glide, Handling, VelocityCommand, fly
from ...env import Box, Picture, Spec, State, among
from ...geometry import Flag, Scalar, Vec2, Vec3, sin_cos
from ...sensors.camera import Camera
from ...sensors.detection import Detector, Lens
from ...struct import struct
from ...words import nearest
from . import coverage, observation
from .behaviour import EMERGENCY, LANDED, MISSION, TAKE_OFF, Behaviour, Condition
from .mission import MISSIONS, Mission
from .safety import BATTERY, Around, Checked, SafetyFilter
from .scene import look_of, survey_scene
from .scripted import BASELINES, GIMBAL_RATE, fly_script
from .world import HIGH, MEDIUM, Building, Country, Hill, Target, Zone, fold, loop

GOOD = 0.7
"""Quality from which a view counts towards dwelling."""
RADIUS = 0.5
"""Of a drone, m."""


@struct
class Fleet:
    """What moves: drones, their cameras, and with the clock everything that walks or drives."""

    drones: Glide
    gimbals: Gimbal
    clock: Scalar


@struct
class Sortie:
    """How far one drone has come."""

    home: Vec3
    goal: Vec3
    limit: Scalar  # seconds
    battery: Scalar  # percent
    mode: Int[Array, ""]
    drift: Vec2  # by how much the drone is mistaken about where it is
    outage: Scalar  # when satellites are lost; they are back a minute later
    dark: Flag  # whether they are lost now
    blind: Flag  # whether without them the drone does not know where it is
    found: UInt32[Array, ""]  # a bit a target
    value: Scalar  # of what was found
    covered: coverage.Rows
    track: Vec3  # where the drone's own target is thought to be
    unseen: Scalar  # seconds since it was in view
    dwell: Scalar  # seconds of good view without a break, up to now
    best_dwell: Scalar
    quality: Scalar
    alarms: Scalar  # false ones
    medium: Scalar  # seconds under a medium threat
    high: Scalar
    entered: Flag  # a no-fly zone or the outside of the geofence
    hit: Flag
    arrived: Flag
    overruled: Scalar  # steps on which the filter changed the command
    reason: Int[Array, ""]  # why, the last time
    changed: Scalar  # by how much, in this step
    sent: VelocityCommand
    score: Scalar
    success: Flag


SurveyState = State[Country, Fleet, Sortie]


@struct
class Orders:
    """What the vehicles are told for one period."""

    commands: VelocityCommand
    gimbals: Vec2  # yaw and pitch rates, in [−1, 1]


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
    starts: Literal["anywhere", "pad"] = "anywhere"
    """in the air anywhere, or on the ground on a landing pad"""
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

    def __post_init__(self) -> None:
        if self.mission not in MISSIONS:
            raise ValueError(f"there is no mission '{self.mission}'{nearest(self.mission, MISSIONS)}")
        if not 2 <= self.agents <= 32:
            raise ValueError(f"a country holds 2 to 32 drones, not {self.agents}")
        for name, choices in (("sight", ("none", "rgb", "depth")), ("starts", ("anywhere", "pad"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not '{getattr(self, name)}'")
        if min(self.control_rate, self.interval) < 1 or self.pixels < 8:
            raise ValueError("control_rate and interval are at least 1, pixels at least 8")
        if self.control_rate > 50 or self.control_rate < 2:
            raise ValueError("a drone takes between 2 and 50 commands a second")
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
    def handling(self) -> Handling:
        return Handling()

    @property
    def lens(self) -> Lens:
        return Lens()

    @property
    def detector(self) -> Detector:
        return Detector()

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
        return replace(empty, body=Fleet(drones, gimbals, jnp.float32(0.0)), progress=sorties)  # pyright: ignore[reportReturnType]

    def newcomers(self, chance: Chance, state: SurveyState) -> tuple[Glide, Gimbal, Sortie]:
        """Every drone at its start in this country."""
        numbers = jnp.arange(self.agents)
        return jax.vmap(lambda own, shared: self._start(*own, *shared), in_axes=(0, None))(
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
        )
        return replace(
            state,
            body=body,
            progress=among(who, sorties, state.progress),
            step=jnp.where(who, 0, state.step),
            reward=jnp.where(who, 0.0, state.reward),
            terminated=state.terminated & ~who,
            truncated=state.truncated & ~who,
        )

    def _start(
        self, chance: Chance, number: Array, pad: Vec2, country: Country, clock: Scalar
    ) -> tuple[Glide, Gimbal, Sortie]:
        plan, land = self.plan, self.plan.land
        ground = country.terrain(pad.x, pad.y)
        target = jax.tree.map(lambda x: x[number % land.targets], country.targets)
        if self.starts == "pad":
            place, height = pad, ground
        else:
            place, chance = self._spot(chance, country, clock, target, pad)
            above, chance = chance.uniform(self.filter.clearance + 7.0, 75.0)
            height = country.terrain(place.x, place.y) + above
        far, chance = chance.uniform(-land.north + 60.0, land.north - 60.0)
        goal = Vec3(0.0 * far + (land.east - 40.0), far, 60.0 + 0.0 * far)
        home = Vec3(pad.x, pad.y, ground)
        here = Vec3(place.x, place.y, height)
        limit = jnp.float32(plan.time_limit)
        if plan.transit:
            home = goal
            limit = 10.0 + 1.2 * (goal - here).norm() / 10.0
        yaw, chance = chance.uniform(-math.pi, math.pi)
        battery, chance = chance.uniform(*plan.battery)
        lost, chance = chance.uniform()
        when, chance = chance.uniform(0.0, 0.5 * plan.time_limit)
        cue = []
        for _ in range(2):
            part, chance = chance.normal(4.0)
            cue.append(part)
        at = target.mover.at(clock)
        zero = 0.0 * far
        drone = Glide.at(here, yaw)
        down = {"ahead": 0.5, "down": 0.5 * math.pi}.get(plan.gimbal, 0.8)
        gimbal = Gimbal(zero, zero + down)
        track = Vec3(at.x + cue[0], at.y + cue[1], country.terrain(at.x, at.y))
        if plan.own:
            # The camera is turned to where the target was reported.
            gimbal = observation.aimed(drone, track)
        sortie = Sortie(
            home=home,
            goal=goal,
            limit=limit,
            battery=battery,
            mode=jnp.int32(TAKE_OFF if self.starts == "pad" else MISSION),
            drift=Vec2(zero, zero),
            outage=jnp.where(lost < self.outage, when, jnp.inf),
            dark=jnp.bool_(False),
            blind=chance.fork(0).uniform()[0] < self.blind,
            found=jnp.uint32(0),
            value=zero,
            covered=(jnp.uint32(0),) * coverage.SIDE if plan.cover else (),
            track=track,
            unseen=zero,
            dwell=zero,
            best_dwell=zero,
            quality=zero,
            alarms=zero,
            medium=zero,
            high=zero,
            entered=jnp.bool_(False),
            hit=jnp.bool_(False),
            arrived=jnp.bool_(False),
            overruled=zero,
            reason=jnp.int32(0),
            changed=zero,
            sent=VelocityCommand(zero, zero, zero, zero),
            score=zero,
            success=jnp.bool_(False),
        )
        return drone, gimbal, sortie

    def _spot(self, chance: Chance, country: Country, clock: Scalar, target: Target, pad: Vec2) -> tuple[Vec2, Chance]:
        """Somewhere clear of zones and buildings, if three tries find it; otherwise over the pad."""
        land = self.plan.land

        def attempt(carry: tuple[Vec2, Chance], _: None) -> tuple[tuple[Vec2, Chance], None]:
            spot, chance = carry
            x, chance = chance.uniform(-land.east + 20.0, land.east - 80.0)
            y, chance = chance.uniform(-land.north + 20.0, land.north - 20.0)
            if self.plan.own:
                turn, chance = chance.uniform(-math.pi, math.pi)
                away, chance = chance.uniform(25.0, 80.0)
                at = target.mover.at(clock)
                sin, cos = sin_cos(turn)
                x = jnp.clip(at.x + away * cos, -land.east + 20.0, land.east - 20.0)
                y = jnp.clip(at.y + away * sin, -land.north + 20.0, land.north - 20.0)
            here = Vec3(x, y, 0.0 * x)
            margin = 2.0 * self.filter.margin
            clear = loop(
                lambda ok, zone: ok & ((zone.depth(here) < -margin) | (zone.level < HIGH)),
                jnp.isfinite(x),
                country.zones,
            )
            clear = loop(lambda ok, house: ok & (house.outward(here).norm() > 25.0), clear, country.buildings)
            return (Vec2(jnp.where(clear, x, spot.x), jnp.where(clear, y, spot.y)), chance), None

        return jax.lax.scan(attempt, (pad, chance), length=3)[0]

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
            done = self._surveyed(sortie)
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

    def _surveyed(self, sortie: Sortie) -> Flag:
        """Whether enough was covered and found."""
        plan = self.plan
        found = jax.lax.population_count(sortie.found).astype(jnp.float32)
        done = found >= plan.found * plan.land.targets
        if plan.cover:
            done = done & (coverage.share_of(sortie.covered) >= plan.coverage + 0.005)
        return done

    def move(self, state: SurveyState, orders: Orders) -> Fleet:
        """Where the fast model takes the fleet in one control period."""
        fleet, weather = state.body, state.world.weather

        def one(own: tuple[Glide, Gimbal, VelocityCommand, Vec2, Chance], wind: Vec3) -> Any:
            drone, gimbal, command, turned, chance = own
            flown = fly(drone, command, self.handling, wind, self.dt)
            if self.gust:
                east, chance = chance.normal(self.gust * self.dt)
                north, chance = chance.normal(self.gust * self.dt)
                flown = replace(flown, position=flown.position + Vec3(east, north, 0.0 * east))
            return flown, gimbal.turned(turned.x, turned.y, GIMBAL_RATE, self.dt)

        chances = jax.vmap(state.chance.fork)(jnp.arange(self.agents))
        moving = (fleet.drones, fleet.gimbals, orders.commands, orders.gimbals, chances)
        drones, gimbals = jax.vmap(one, in_axes=(0, None))(moving, weather.wind)
        # What stands on its pad stays there.
        still = state.progress.mode == LANDED
        return Fleet(among(still, fleet.drones, drones), gimbals, fleet.clock + self.dt)

    # Judging

    def judge(self, state: SurveyState, body: Fleet) -> SurveyState:
        """The state once the fleet is there, whoever moved it: our model, MuJoCo or PX4."""
        step = state.step + 1
        flying = ~state.ended & (state.progress.mode != LANDED)
        chances = jax.vmap(lambda i: state.chance.fork(i + 64))(jnp.arange(self.agents))
        numbers = jnp.arange(self.agents)
        before, after = state.body.drones, body.drones
        sortie, reward, over = jax.vmap(lambda own, shared: self._judge(*own, *shared), in_axes=(0, None))(
            (state.progress, before, after, body.gimbals, numbers, chances, step),
            (state.world, body.clock, (before.position, after.position, flying, numbers)),
        )
        late = step.astype(jnp.float32) * self.dt >= sortie.limit
        sortie = replace(sortie, score=state.progress.score + jnp.where(state.ended, 0.0, reward))
        truncated = late & ~over
        if self.world_life:
            truncated = (truncated | (body.clock >= self.world_life * state.world.life)) & ~over
        return replace(
            state, body=body, progress=sortie, step=step, reward=reward, terminated=over, truncated=truncated
        )

    def _judge(
        self,
        sortie: Sortie,
        before: Glide,
        drone: Glide,
        gimbal: Gimbal,
        number: Array,
        chance: Chance,
        step: Array,
        country: Country,
        clock: Scalar,
        ways: tuple[Vec3, Vec3, Array, Array],
    ) -> tuple[Sortie, Scalar, Flag]:
        """One drone: its sortie so far, the reward of the step, and whether it is over. `ways` are those of all."""
        plan, dt = self.plan, self.dt
        here = drone.position
        ground = country.terrain(here.x, here.y)
        speed = drone.velocity.norm()
        battery = sortie.battery - dt * self.discharge * country.drain * (0.9 + 0.3 * (speed / 12.0) ** 2)
        time = step.astype(jnp.float32) * dt
        dark = (time >= sortie.outage) & (time < sortie.outage + 60.0)
        drift, chance = self._drifted(sortie, dark, chance)
        medium, high, entered = self._zones(here, country, clock)
        entered = entered | (jnp.abs(here.x) > plan.land.east) | (jnp.abs(here.y) > plan.land.north)
        low = self.behaviour.low(sortie.mode)
        hit = self._hits(before, drone, number, country, ways) | ((here.z - ground < RADIUS) & ~low)
        reward = dt * (plan.time_reward + plan.threat_reward * medium) + plan.overruled_reward * sortie.changed
        now = replace(
            sortie,
            battery=battery,
            drift=drift,
            dark=dark,
            medium=sortie.medium + dt * medium,
            high=sortie.high + dt * high,
            entered=sortie.entered | entered | high,
            hit=sortie.hit | hit,
        )
        failed = entered | high | hit | (battery <= 0.0)
        done = jnp.zeros_like(hit)
        if plan.transit:
            gap = (sortie.goal - here).norm()
            reward = reward + plan.nearer_reward * ((sortie.goal - before.position).norm() - gap)
            done = (gap < 10.0) & ~failed
            now = replace(now, arrived=done, success=done & (battery >= plan.reserve))
            reward = reward + plan.arrive_reward * done
        if plan.cover:
            axes = gimbal.attitude(drone.yaw).axes
            rows = coverage.footprint(here, axes, ground, plan.cover, self.lens)
            sharp = here.z - ground <= self.sharp
            rows = tuple(
                old | jnp.where(sharp, new, jnp.uint32(0)) for old, new in zip(sortie.covered, rows, strict=True)
            )
            gain = coverage.share_of(rows) - coverage.share_of(sortie.covered)
            reward = reward + plan.cover_reward * 100.0 * gain
            now = replace(now, covered=rows)
        if plan.find_reward:
            now, gain, chance = self._look(now, drone, gimbal, country, clock, chance)
            reward = reward + plan.find_reward * gain
        if plan.own:
            now, chance = self._dwell(now, drone, gimbal, number, country, clock, chance)
            reward = reward + plan.view_reward * dt * (now.quality + (now.quality >= GOOD))
            # The sortie goes on: an end that took away what a good view still pays would be put off for ever.
            dwelt = now.best_dwell >= plan.dwell
            failed = failed | (now.unseen > 5.0) if plan.dwell else failed
            now = replace(now, success=dwelt & ~now.entered & ~now.hit)
            reward = reward + plan.finish_reward * (dwelt & (sortie.best_dwell < plan.dwell))
        if plan.value:
            left = self._achievable(country)
            done = now.value >= left
            now = replace(now, success=(now.value >= plan.value * left) & ~now.entered & (now.medium <= plan.medium))
            reward = reward + plan.finish_reward * done
        if plan.returns:
            surveyed = self._surveyed(now)
            reward = reward + plan.finish_reward * (surveyed & ~self._surveyed(sortie))
            away = Vec2(sortie.home.x - here.x, sortie.home.y - here.y).norm()
            done = now.mode == LANDED
            home = done & (away <= 3.0) & (battery >= plan.reserve)
            now = replace(now, success=home & surveyed & ~now.entered)
        done = done | ((now.mode >= EMERGENCY) & (here.z - ground < 0.5))
        reward = reward + plan.end_reward * failed
        return now, reward, done | failed

    def _drifted(self, sortie: Sortie, dark: Flag, chance: Chance) -> tuple[Vec2, Chance]:
        """How far the drone is mistaken about where it is: a walk that pulls back, wider without satellites."""
        width = self.drift * jnp.where(dark, 4.0, 1.0)
        keep = math.exp(-self.dt / 10.0)
        parts = []
        for old in (sortie.drift.x, sortie.drift.y):
            kick, chance = chance.normal(math.sqrt(1.0 - keep**2))
            # Never beyond what the filter leaves room for.
            most = 2.8 * self.drift * 2.0
            parts.append(jnp.clip(keep * old + width * kick, -most, most))
        return Vec2(*parts), chance

    def _zones(self, here: Vec3, country: Country, clock: Scalar) -> tuple[Flag, Flag, Flag]:
        """Whether a drone is under a medium threat, a high one, or in a no-fly zone."""

        def more(found: tuple[Flag, Flag, Flag], zone: Zone) -> tuple[Flag, Flag, Flag]:
            inside = zone.active(clock) & (zone.depth(here) > 0.0)
            medium, high, entered = found
            return (
                medium | (inside & (zone.level == MEDIUM)),
                high | (inside & (zone.level == HIGH)),
                entered | (inside & (zone.level > HIGH)),
            )

        no = here.x != here.x
        return fold(more, (no, no, no), country.zones)

    def _hits(
        self, before: Glide, drone: Glide, number: Array, country: Country, ways: tuple[Vec3, Vec3, Array, Array]
    ) -> Flag:
        """Whether the drone touched a building, a hill or another drone on its way."""
        here = drone.position

        def house(hit: Flag, building: Building) -> Flag:
            return hit | (building.outward(here).norm() < RADIUS)

        def slope(hit: Flag, hill: Hill) -> Flag:
            return hit | ((here - hill.centre).norm() < hill.radius)

        def other(hit: Flag, rest: tuple[Vec3, Vec3, Array, Array]) -> Flag:
            old, new, there, index = rest
            start, end = before.position - old, here - new
            way = end - start
            share = jnp.clip(-start.dot(way) / jnp.maximum(way.dot(way), 1e-6), 0.0, 1.0)
            gap = start + way * share
            return hit | (there & (index != number) & (gap.dot(gap) < (2.0 * RADIUS) ** 2))

        hit = fold(house, here.x != here.x, country.buildings)
        hit = fold(slope, hit, country.hills)
        return fold(other, hit, ways) & ways[2][number]

    def _look(
        self, sortie: Sortie, drone: Glide, gimbal: Gimbal, country: Country, clock: Scalar, chance: Chance
    ) -> tuple[Sortie, Scalar, Chance]:
        """What the detector finds now that was not found before."""
        axes = gimbal.attitude(drone.yaw).axes
        eye, plan = drone.position, self.plan

        def one(carry: tuple[Array, Scalar, Scalar, Chance, Array], target: Target) -> Any:
            found, gain, value, chance, bit = carry
            at = target.mover.at(clock)
            point = Vec3(at.x, at.y, country.terrain(at.x, at.y) + 1.0)
            seen = axes.unrotate(point - eye)
            sure, chance = self.detector.finds(chance, self.lens.size(target.size, seen))
            new = self.lens.frames(seen) & sure & ((found & bit) == 0) & ~country.hidden(eye, point)
            if plan.known:
                new = new & (seen.dot(seen) < observation.CLOSE**2)
                worth = target.value * 0.01
            else:
                worth = target.weight
            found = jnp.where(new, found | bit, found)
            return found, gain + worth * new, value + target.value * new, chance, bit << 1

        start = (sortie.found, 0.0 * sortie.value, sortie.value, chance, jnp.uint32(1))
        found, gain, value, chance, _ = loop(one, start, country.targets)
        drawn, chance = chance.uniform()
        alarms = sortie.alarms + (drawn < self.detector.false_alarms * self.dt)
        return replace(sortie, found=found, value=value, alarms=alarms), gain, chance

    def _achievable(self, country: Country) -> Scalar:
        """The value of the targets that can be viewed from outside the zones that must be kept out of."""

        def add(total: Scalar, target: Target) -> Scalar:
            place = target.mover.place
            point = Vec3(place.x, place.y, 0.0 * place.x)

            def deep(found: Flag, zone: Zone) -> Flag:
                return found | ((zone.level >= HIGH) & (zone.depth(point) > observation.CLOSE * 0.6))

            return total + jnp.where(fold(deep, place.x != place.x, country.zones), 0.0, target.value)

        return loop(add, 0.0 * country.drain, country.targets)

    def _dwell(
        self,
        sortie: Sortie,
        drone: Glide,
        gimbal: Gimbal,
        number: Array,
        country: Country,
        clock: Scalar,
        chance: Chance,
    ) -> tuple[Sortie, Chance]:
        """How good the view of the drone's own target is, and for how long it has been."""
        axes, dt = gimbal.attitude(drone.yaw).axes, self.dt
        target = jax.tree.map(lambda x: x[number % self.plan.land.targets], country.targets)
        at = target.mover.at(clock)
        point = Vec3(at.x, at.y, country.terrain(at.x, at.y) + 1.0)
        seen = axes.unrotate(point - drone.position)
        sure, chance = self.detector.finds(chance, self.lens.size(target.size, seen) + 6.0)
        there = self.lens.frames(seen) & ~country.hidden(drone.position, point)
        told = there & sure
        distance = seen.norm()
        off = jnp.clip(self.lens.off_centre(seen), 0.0, 1.0)
        fit = jnp.clip(1.0 - jnp.abs(distance - 50.0) * 0.01, 0.0, 1.0)
        quality = jnp.where(there, (1.0 - off) * fit, 0.0)
        good = quality >= GOOD
        dwell = jnp.where(good, sortie.dwell + dt, 0.0)
        blur = []
        for _ in range(2):
            part, chance = chance.normal()
            blur.append(part * self.detector.blur * distance)
        track = Vec3(*(jnp.where(told, new, old) for new, old in zip(
            (point.x + blur[0], point.y + blur[1], point.z), sortie.track.parts, strict=True)))  # fmt: skip
        sortie = replace(
            sortie,
            track=track,
            unseen=jnp.where(there, 0.0, sortie.unseen + dt),
            dwell=dwell,
            best_dwell=jnp.maximum(sortie.best_dwell, dwell),
            quality=quality,
        )
        return sortie, chance

    # Seeing

    def observe(self, state: SurveyState) -> Float[Array, "agents features"]:
        """All parts of what each drone knows, side by side."""
        told = observation.told(self, state)
        return observation.stacked([x for part in told.values() for x in part])

    def parts(self, state: SurveyState) -> dict[str, Float[Array, "agents size"]]:
        """What each drone knows, by name: the same for training and for full-fidelity evaluation."""
        return {name: observation.stacked(part) for name, part in observation.told(self, state).items()}

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
        cut = jnp.zeros_like(state.truncated)
        if self.world_life:
            # Cut short because its country ended: that says nothing about success.
            cut = state.truncated & (state.step.astype(jnp.float32) * self.dt < sortie.limit)
        found = jax.lax.population_count(sortie.found).astype(jnp.float32) / plan.land.targets
        figures = {
            "success": jnp.where(cut, jnp.nan, sortie.success),
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
            most = jnp.maximum(self._achievable(state.world), 1.0)
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
        return {name: partial(fly_script, script, self) for name, script in BASELINES.get(self.mission, {}).items()}

    def summary(self, figures: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Means over all drones of all countries."""
        names = [name for name in figures if name not in ("success", "score")]
        return {f"{name}_mean": float(np.nanmean(figures[name])) for name in names}


def shifted(drone: Glide, drift: Vec2) -> Glide:
    """A drone where it believes itself to be."""
    return replace(drone, position=drone.position + Vec3(drift.x, drift.y, 0.0 * drift.x))
