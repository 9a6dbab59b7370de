"""The survey: a fleet over one country, every drone on a mission of its own."""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...core.errors import suggest
from ...core.geometry import Flag, Quat, Scalar, Vec2, Vec3, sin_cos
from ...core.rng import Rng
from ...core.spaces import Box
from ...core.task import PackedImage, Spec, State, Task, named_leaves, select_agents, stack_features
from ...dynamics.control_modes import VelocitySetpoint
from ...dynamics.identification import VelocityModel
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import VEHICLES, PhysicsRandomization, Quadrotor, QuadrotorState
from ...dynamics.velocity_drone import Gimbal, VelocityCommand, VelocityDrone, VelocityDroneState, asked_for, fly
from ...sensors.camera import Camera
from ...sensors.detection import Detector, Lens
from ...sensors.scene import Scene
from . import coverage, observation
from .baselines import BASELINES, GIMBAL_RATE, fly_script
from .behavior import LANDED, MISSION, Behavior, BehaviorInput
from .mission import MISSIONS, Mission
from .reset import start
from .rewards import achievable, judged, surveyed
from .safety import BATTERY, FilteredCommand, FilterInput, SafetyFilter
from .scene import look_of, standing, survey_scene
from .state import Fleet, FleetCommand, Sortie, SurveyState
from .world import SurveyWorld


@dataclass(frozen=True)
class Survey(Task[SurveyState]):
    """Survey a country with a fleet: every drone has its own mission, camera, reward and end."""

    report: ClassVar[str] = "slipstream.tasks.survey.report"

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
    handling: VelocityDrone = VelocityDrone()
    vary_handling: float = 0.0
    """largest relative change, between sorties, of how fast a drone answers"""

    def __post_init__(self) -> None:
        if self.mission not in MISSIONS:
            raise ValueError(f"there is no mission '{self.mission}'{suggest(self.mission, MISSIONS)}")
        if not 2 <= self.agents <= 32:
            raise ValueError(f"a country holds 2 to 32 drones, not {self.agents}")
        if self.vehicle not in VEHICLES:
            raise ValueError(f"there is no vehicle '{self.vehicle}'{suggest(self.vehicle, VEHICLES)}")
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
    def behavior(self) -> Behavior:
        return Behavior()

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
        image_shape = (self.pixels, self.pixels, 3 if self.sight == "rgb" else 1) if self.sight != "none" else None
        return Spec(
            observation=sum(observation.sizes(self.plan, self.sight != "none").values()),
            action=Box(size),
            control_dt=self.dt,
            agents=self.agents,
            image_shape=image_shape,
            image_interval=self.interval if image_shape else 1,
            privileged_size=observation.TRACK if image_shape and self.plan.own else 0,
        )

    @property
    def description(self) -> str:
        """In a few words."""
        seeing = f", by {self.sight} cameras" if self.sight != "none" else ""
        return f"survey: {self.mission}, {self.agents} drones in each world{seeing}"

    def for_evaluation(self) -> "Survey":
        """The mission as it is evaluated: from the pads, in a country that stays."""
        return replace(self, starts="anywhere" if self.plan.own else "pad", world_life=0.0)

    # Starting

    def reset(self, rng: Rng) -> SurveyState:
        """A new country and a drone on every mission in it."""
        country = self.plan.land.draw(rng.fork(0), self.agents)
        shape = (self.agents,)
        empty = State(
            world=country,
            body=Fleet(*[jnp.float32(0.0)] * 3),  # pyright: ignore[reportArgumentType]
            progress=None,
            rng=rng,
            step=jnp.zeros(shape, jnp.int32),
            reward=jnp.zeros(shape),
            terminated=jnp.zeros(shape, bool),
            truncated=jnp.zeros(shape, bool),
        )
        drones, gimbals, sorties = self.draw_respawns(rng.fork(1), empty)  # pyright: ignore[reportArgumentType]
        fleet = Fleet(drones, gimbals, jnp.float32(0.0), self._airframes(drones))
        return replace(empty, body=fleet, progress=sorties)  # pyright: ignore[reportReturnType]

    def _airframes(self, drones: VelocityDroneState) -> QuadrotorState | None:
        """The rotors under drones that hover, and their controllers."""
        if self.model == "fast":
            return None
        return jax.vmap(lambda f: replace(f, memory=self.autopilot.start(self.airframe, f)))(self._hovering(drones))

    def _hovering(self, drones: VelocityDroneState) -> QuadrotorState:
        def one(drone: VelocityDroneState) -> QuadrotorState:
            zero = 0.0 * drone.yaw
            level = Quat.from_euler(zero, zero, drone.yaw)
            return self.airframe.hovering(drone.position, level, drone.velocity, Vec3(zero, zero, drone.yaw_rate))

        return jax.vmap(one)(drones)

    def _over(self, country: SurveyWorld, clock: Scalar) -> Flag:
        """Whether a country's life is over."""
        return clock >= self.world_life * country.life if self.world_life else jnp.bool_(False)

    def draw_respawns(self, rng: Rng, state: SurveyState) -> tuple[VelocityDroneState, Gimbal, Sortie]:
        """Every drone at its start in this country."""
        numbers = jnp.arange(self.agents)
        return jax.vmap(lambda own, shared: start(self, *own, *shared), in_axes=(0, None))(
            (jax.vmap(rng.fork)(numbers), numbers, state.world.pads),
            (state.world, state.body.clock),
        )

    def respawn(
        self, state: SurveyState, respawns: tuple[VelocityDroneState, Gimbal, Sortie], who: Bool[Array, "agents"]
    ) -> SurveyState:
        drones, gimbals, sorties = respawns
        body = replace(
            state.body,
            drones=select_agents(who, drones, state.body.drones),
            gimbals=select_agents(who, gimbals, state.body.gimbals),
            airframes=select_agents(who, self._airframes(drones), state.body.airframes),
        )
        return replace(
            state,
            body=body,
            progress=select_agents(who, sorties, state.progress),
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

    def command(self, state: SurveyState, action: Any) -> tuple[SurveyState, FleetCommand]:
        """What the vehicles are told: the mode decides who speaks, the filter has the last word."""
        _, rng = state.rng.bits()
        fleet, country = state.body, state.world
        believed = jax.vmap(shifted)(fleet.drones, state.progress.drift)
        around = FilterInput(country, fleet.clock, believed, ~state.ended & (state.progress.mode != LANDED))
        asked, modes, drained, gimbals = jax.vmap(lambda own, around: self._ask(*own, around), in_axes=(0, None))(
            (action, believed, fleet.gimbals, state.progress, state.step), around
        )
        if self.safety:
            checked = self.filter.check(asked, self.behavior.low(modes), around)
        else:
            checked = FilteredCommand(asked, 0.0 * believed.yaw, 0 * modes)
        sortie = replace(
            state.progress,
            mode=modes,
            sent=checked.command,
            changed=checked.changed,
            overruled=state.progress.overruled + (checked.changed > 0.0),
            reason=jnp.where(checked.changed > 0.0, checked.reason, jnp.where(drained, BATTERY, state.progress.reason)),
        )
        return replace(state, progress=sortie, rng=rng), FleetCommand(checked.command, gimbals)

    def _ask(
        self, action: Array, drone: VelocityDroneState, gimbal: Gimbal, sortie: Sortie, step: Array, around: FilterInput
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
        mode = self.behavior.next(sortie.mode, now)
        asked = self.behavior.command(mode, asked, drone, now, country.weather.wind, self.handling, self.dt)
        if plan.gimbal == "policy":
            turned = Vec2(action[4], action[5])
        elif plan.gimbal == "nearest":
            towards = observation.aimed(drone, observation.nearest_left(drone, sortie, country, around.clock))
            turned = observation.turned_to(gimbal, towards, GIMBAL_RATE, self.dt)
        else:
            turned = Vec2(0.0 * drone.yaw, 0.0 * drone.yaw)
        return asked, mode, (mode != MISSION) & (now.battery <= now.reserve), turned

    def _condition(self, drone: VelocityDroneState, sortie: Sortie, step: Array, country: SurveyWorld) -> BehaviorInput:
        here, plan = drone.position, self.plan
        way = sortie.home - here
        # On the way to its goal a drone need not keep what it takes to get there against a head wind.
        spare = 1.0 if plan.transit else 1.3
        reserve = 10.0 + spare * self.discharge * country.drain * way.norm() / self.behavior.return_speed
        done = jnp.zeros_like(sortie.hit)
        if plan.returns:
            done = surveyed(self, sortie)
            # What must be left at home is kept for it.
            reserve = reserve - 10.0 + plan.reserve + 2.0
        if math.isfinite(plan.silent):
            reserve = jnp.where(step.astype(jnp.float32) * self.dt >= plan.silent, 1.2 * reserve, reserve)
        return BehaviorInput(
            battery=sortie.battery,
            reserve=reserve,
            home=way,
            height=here.z - country.terrain(here.x, here.y),
            done=done,
            lost=sortie.dark & sortie.blind,
        )

    def move(self, state: SurveyState, command: FleetCommand) -> Fleet:
        """Where the model takes the fleet in one control period."""
        if self.model == "cascade":
            return self._piloted(state, command)

        def one(own: tuple[VelocityDroneState, VelocityCommand, Rng, Scalar | None], wind: Vec3) -> VelocityDroneState:
            drone, command, rng, agility = own
            flown = fly(drone, command, self.handled(agility), wind, self.dt)
            if not self.gust:
                return flown
            east, rng = rng.normal(self.gust * self.dt)
            north, rng = rng.normal(self.gust * self.dt)
            return replace(flown, position=flown.position + Vec3(east, north, 0.0 * east))

        rngs = jax.vmap(state.rng.fork)(jnp.arange(self.agents))
        moving = (state.body.drones, command.commands, rngs, state.progress.agility)
        return self._after(state, command, jax.vmap(one, in_axes=(0, None))(moving, state.world.weather.wind))

    def handled(self, agility: Scalar | None) -> VelocityDrone:
        """How a drone of that agility answers."""
        usual = self.handling
        if agility is None:
            return usual
        slower = {"lag": usual.lag * agility, "turn_lag": usual.turn_lag * agility}
        if usual.lean:
            slower |= {"lean": usual.lean * agility, "drag": usual.drag * agility}
        return replace(usual, **slower)

    def _after(
        self,
        state: SurveyState,
        orders: FleetCommand,
        drones: VelocityDroneState,
        airframes: QuadrotorState | None = None,
    ) -> Fleet:
        """The fleet once its drones are there. What stands on its pad stays there."""
        fleet, still = state.body, state.progress.mode == LANDED
        gimbals = jax.vmap(lambda gimbal, turned: gimbal.turned(turned.x, turned.y, GIMBAL_RATE, self.dt))(
            fleet.gimbals, orders.gimbals
        )
        return Fleet(select_agents(still, fleet.drones, drones), gimbals, fleet.clock + self.dt, airframes)

    # Flying with rotors

    @cached_property
    def airframe(self) -> Quadrotor:
        return VEHICLES[self.vehicle]

    @cached_property
    def autopilot(self) -> Px4Controller:
        return Px4Controller().tuned_for(self.airframe)

    def without_controller(self) -> "Survey":
        """The same task for a plant that brings its own vehicles."""
        return replace(self, model="fast")

    def vehicle_states(self, state: SurveyState) -> QuadrotorState:
        return self._hovering(state.body.drones)

    def setpoints(self, state: SurveyState, orders: FleetCommand) -> VelocitySetpoint:
        """What flight controllers are told."""

        def one(drone: VelocityDroneState, command: VelocityCommand) -> VelocitySetpoint:
            return VelocitySetpoint(asked_for(drone.yaw, command, self.handling), command.turn * self.handling.turn)

        return jax.vmap(one)(state.body.drones, orders.commands)

    def wind_at(self, state: SurveyState) -> Vec3:
        """How the air moves where each drone is: the wind, and gusts that carry a drone about as far as the model's."""
        rngs = jax.vmap(state.rng.fork)(jnp.arange(self.agents))

        def one(rng: Rng, wind: Vec3) -> Vec3:
            east, rng = rng.normal(GUSTS * self.gust)
            north, rng = rng.normal(GUSTS * self.gust)
            return Vec3(wind.x + east, wind.y + north, wind.z)

        return jax.vmap(one, in_axes=(0, None))(rngs, state.world.weather.wind)

    def randomization(self, state: SurveyState) -> PhysicsRandomization:
        return PhysicsRandomization()

    def body_from_vehicles(self, state: SurveyState, orders: FleetCommand, flights: QuadrotorState) -> Fleet:
        """The fleet once its vehicles fly like that."""

        def one(before: VelocityDroneState, flight: QuadrotorState) -> VelocityDroneState:
            nose = flight.attitude.forward
            change = (flight.velocity - before.velocity) * (1.0 / self.dt)
            # Whoever flies has trimmed the drag away.
            air = flight.velocity - state.world.weather.wind
            kept = Vec2(air.x, air.y) * self.handling.drag
            yaw = jnp.arctan2(nose.y, nose.x)
            leaning = Vec2(change.x + kept.x, change.y + kept.y)
            lean = replace(change, x=leaning.x, y=leaning.y)
            return VelocityDroneState(flight.position, flight.velocity, yaw, flight.rates.z, lean, kept, leaning)

        drones = jax.vmap(one)(state.body.drones, flights)
        return self._after(state, orders, drones, flights if self.model == "cascade" else None)

    def collision_scene(self, state: SurveyState) -> Scene:
        """What can be run into."""
        return standing(state.world)

    def _piloted(self, state: SurveyState, orders: FleetCommand) -> Fleet:
        """Where rotors take the fleet under the cascade."""
        pilot, vehicle = self.autopilot, self.airframe

        def one(flight: QuadrotorState, wanted: VelocitySetpoint, air: Vec3, country: SurveyWorld) -> QuadrotorState:
            ground = country.terrain(flight.position.x, flight.position.y)

            def tick(_: Array, flight: QuadrotorState) -> QuadrotorState:
                rotors, memory = pilot.control(vehicle, flight, flight.memory, wanted)
                flown = vehicle.step(replace(flight, memory=memory), rotors, air, PhysicsRandomization(), pilot.dt)
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
            state.body.airframes, self.setpoints(state, orders), self.wind_at(state), state.world
        )
        return self.body_from_vehicles(state, orders, flights)

    # Judging

    def judge(self, state: SurveyState, body: Fleet) -> SurveyState:
        """The state once the fleet is there, whoever moved it: our model, MuJoCo or PX4."""
        step = state.step + 1
        flying = ~state.ended & (state.progress.mode != LANDED)
        rngs = jax.vmap(lambda i: state.rng.fork(i + 64))(jnp.arange(self.agents))
        numbers = jnp.arange(self.agents)
        before, after = state.body.drones, body.drones
        sortie, reward, over = jax.vmap(lambda own, shared: judged(self, *own, *shared), in_axes=(0, None))(
            (state.progress, before, after, body.gimbals, numbers, rngs, step),
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
        return stack_features([x for part in told.values() for x in part])

    def parts(self, state: SurveyState) -> dict[str, Float[Array, "agents size"]]:
        """What each drone knows, by name: the same for training and for full-fidelity evaluation."""
        return {name: stack_features(part) for name, part in observation.told(self, state).items()}

    def privileged_observation(self, state: SurveyState) -> Float[Array, "agents secrets"]:
        """Where its own target is: what a drone with a camera is not told, for its critic."""
        return replace(self, sight="none").parts(state)["track"]

    def image(self, state: SurveyState) -> PackedImage:
        """What every drone's camera sees: colours, or nearness in one channel."""
        scene = survey_scene(state.world, state.body.clock, state.body.drones.position, self.plan.own)
        views = jax.vmap(look_of)(
            state.body.drones, state.body.gimbals, state.rng.stream + state.step.astype(jnp.uint32)
        )
        frames = jax.vmap(partial(Camera(self.pixels, self.pixels).render, scene))(views)
        if self.sight == "rgb":
            return frames.packed & 0xFFFFFF
        return (255.0 * 40.0 / (40.0 + jnp.minimum(frames.depth, 1e6))).astype(jnp.uint8)

    # Reporting

    def episode_metrics(self, state: SurveyState) -> dict[str, Float[Array, "agents"]]:
        sortie, plan = state.progress, self.plan
        tells = jnp.ones_like(state.truncated)
        if self.world_life:
            # Only a sortie that had enough time before its country ends tells how many succeed, whatever became of
            # it: crashes end early, so of those with little time they alone would count.
            began = state.body.clock - state.step.astype(jnp.float32) * self.dt
            tells = began + TELLING * sortie.limit <= self.world_life * state.world.life
        found = jax.lax.population_count(sortie.found).astype(jnp.float32) / plan.land.targets
        metrics = {
            "success": jnp.where(tells, sortie.success, jnp.nan),
            "episode_return": sortie.score,
            "duration": state.step.astype(jnp.float32) * self.dt,
            "battery": sortie.battery,
            "zone_violation": sortie.entered.astype(jnp.float32),
            "crash": sortie.hit.astype(jnp.float32),
            "filter_intervention_rate": sortie.overruled / jnp.maximum(state.step, 1),
        }
        if plan.cover:
            metrics["coverage"] = jax.vmap(coverage.share_of)(sortie.covered)
        if plan.find_reward:
            metrics |= {"found": found, "false_alarms": sortie.alarms}
        if plan.value:
            most = jnp.maximum(achievable(state.world), 1.0)
            metrics |= {"value": sortie.value / most, "high_threat": sortie.high, "medium_threat": sortie.medium}
        if plan.own:
            metrics["dwell"] = sortie.best_dwell
        return {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}

    def fit_model(self) -> VelocityModel:
        return VelocityModel()

    def with_fit(self, parameters: dict[str, float], variation: dict[str, float], limits: dict[str, float]) -> "Survey":
        drone = replace(self.handling, **(parameters | limits), tilt=1.2)
        return replace(self, handling=drone, vary_handling=float(np.mean([variation["lag"], variation["lean"]])))

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

    def world_record(self, state: SurveyState) -> dict[str, Array]:
        """The whole country, leaf by leaf, and where the drones are to go."""
        return named_leaves(state.world) | {"goal": jnp.stack(state.progress.goal.parts, -1)}

    def baselines(self) -> dict[str, Any]:
        """The scripts this mission's policy is measured against."""
        if self.plan.own and self.sight != "none":
            # They are told where the target is, which a drone with a camera has to see.
            return {}
        return {name: partial(fly_script, script, self) for name, script in BASELINES.get(self.mission, {}).items()}


TELLING = 0.75
"""Share of its time limit that a sortie in training must have had for its success to count: who succeeds needs less."""
GUSTS = 4.0
"""Speed of a gust of air over the speed at which it moves a drone."""


def shifted(drone: VelocityDroneState, drift: Vec2) -> VelocityDroneState:
    """A drone where it believes itself to be."""
    return replace(drone, position=drone.position + Vec3(drift.x, drift.y, 0.0 * drift.x))
