"""The survey: its settings, and what it offers to training, evaluation and plants."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...core.errors import require_choice
from ...core.geometry import Vec3
from ...core.rng import Rng
from ...core.spaces import Box
from ...core.task import PackedImage, Spec, Task, named_leaves, stack_features
from ...dynamics.control_modes import VelocitySetpoint
from ...dynamics.identification import VelocityModel
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import VEHICLES, PhysicsRandomization, Quadrotor, QuadrotorState
from ...dynamics.velocity_drone import VelocityDrone
from ...sensors.camera import CameraSettings
from ...sensors.detection import Detector, Lens
from ...sensors.scene import Scene
from . import coverage, flight, observation, reset, rewards, smooth
from .baselines import BASELINES, fly_script
from .behavior import Behavior
from .mission import MISSIONS, Mission, MissionName
from .reset import Start
from .safety import SafetyFilter
from .scene import static_scene
from .settings import Navigation, Randomization
from .state import Fleet, FleetCommand, SurveyState

LONG_ENOUGH = 0.75
"""Fraction of its time limit that a sortie in training must have been allowed for its success to count."""


@dataclass(frozen=True)
class Survey(Task[SurveyState]):
    """Survey a world with a fleet: every drone has its own mission, camera, reward and end."""

    report: ClassVar[str] = "slipstream.tasks.survey.report"

    mission: MissionName = "transit"
    """transit to a goal, coverage or search of a square, multi-objective views, dwell on a target, or free flight"""
    agents: int = 16
    """drones in one world"""
    camera: CameraSettings = CameraSettings()
    """with a camera a drone observes images instead of the tracked position of its target"""
    start_mode: Literal["anywhere", "pad", "both"] = "anywhere"
    """where sorties start: in the air anywhere, on a landing pad, or either with equal probability"""
    control_rate: int = 5
    """actions a second"""
    safety_filter: bool = True
    """whether a safety filter corrects the commands of the policy"""
    navigation: Navigation = Navigation()
    """GNSS outages, and the error of the drones' position estimate"""
    randomize: Randomization = Randomization()
    """what differs between worlds and episodes"""
    battery_drain: float = 0.1
    """battery charge used, percent per second"""
    max_coverage_height: float = 70.0
    """height above the ground up to which an image counts as coverage, m"""
    mean_world_lifetime: float = 300.0
    """mean time after which a world is replaced by another, s; 0 is never"""
    vehicle: Literal["racer", "crazyflie", "iris"] = "iris"
    """quadrotor of controller=px4 and of plants"""
    controller: Literal["simple", "px4"] = "simple"
    """simple: drones that follow velocity commands by velocity_model; px4: quadrotors under PX4's controller"""
    camera_model: Lens = Lens()
    """field of view and range of the detecting camera"""
    detector: Detector = Detector()
    """the model of the object detector"""
    velocity_model: VelocityDrone = VelocityDrone()
    """how a drone answers a velocity command"""

    def __post_init__(self) -> None:
        require_choice("mission", self.mission, MISSIONS)
        require_choice("vehicle", self.vehicle, VEHICLES)
        require_choice("start mode", self.start_mode, ("anywhere", "pad", "both"))
        require_choice("controller", self.controller, ("simple", "px4"))
        if not 2 <= self.agents <= 32:
            raise ValueError(f"agents must be 2 to 32, not {self.agents}")
        if not 2 <= self.control_rate <= 50:
            raise ValueError(f"control_rate must be between 2 and 50 Hz, not {self.control_rate}")
        if min(self.battery_drain, self.mean_world_lifetime) < 0.0:
            raise ValueError("battery_drain and mean_world_lifetime must not be negative")

    # Parts

    @property
    def mission_spec(self) -> Mission:
        """The settings of the mission."""
        return MISSIONS[self.mission]

    @property
    def control_dt(self) -> float:
        return 1.0 / self.control_rate

    @property
    def behavior(self) -> Behavior:
        return Behavior()

    @cached_property
    def filter(self) -> SafetyFilter:
        """The safety filter, with margins for the position error of drones."""
        generator = self.mission_spec.generator
        drift = self.navigation.position_drift_std
        return SafetyFilter(
            margin=3.0 + 6.0 * drift,
            drone_margin=8.0 + 6.0 * drift,
            east=generator.east,
            north=generator.north,
            velocity_model=self.velocity_model,
            dt=self.control_dt,
        )

    @cached_property
    def airframe(self) -> Quadrotor:
        return VEHICLES[self.vehicle]

    @cached_property
    def autopilot(self) -> Px4Controller:
        return Px4Controller().tuned_for(self.airframe)

    @cached_property
    def spec(self) -> Spec:
        mission, camera = self.mission_spec, self.camera
        return Spec(
            observation=sum(observation.sizes(mission, camera.on).values()),
            action=Box(6 if mission.gimbal == "policy" else 4),
            control_dt=self.control_dt,
            agents=self.agents,
            image_shape=camera.image_shape,
            image_interval=camera.interval if camera.on else 1,
            privileged_size=observation.TRACK_SIZE if camera.on and mission.target_per_drone else 0,
        )

    @property
    def description(self) -> str:
        camera = f", by {self.camera.kind} cameras" if self.camera.on else ""
        return f"survey: {self.mission}, {self.agents} drones in each world{camera}"

    def for_evaluation(self) -> "Survey":
        """Sorties start on the pads, and worlds last; a mission with a target per drone starts near the target."""
        start_mode = "anywhere" if self.mission_spec.target_per_drone else "pad"
        return replace(self, start_mode=start_mode, mean_world_lifetime=0.0)

    # Starting

    def reset(self, rng: Rng) -> SurveyState:
        return reset.reset(self, rng)

    def draw_respawns(self, rng: Rng, state: SurveyState) -> Start:
        return reset.draw_starts(self, rng, state.world, state.body.clock)

    def respawn(self, state: SurveyState, respawns: Start, who: Bool[Array, "agents"]) -> SurveyState:
        return reset.respawn(self, state, respawns, who)

    # Flying

    def step(self, state: SurveyState, action: Float[Array, "agents size"]) -> SurveyState:
        """Fly for one control period, then judge it."""
        state, command = self.command(state, action)
        return self.judge(state, self.move(state, command))

    def command(self, state: SurveyState, action: Float[Array, "agents size"]) -> tuple[SurveyState, FleetCommand]:
        return flight.command(self, state, action)

    def move(self, state: SurveyState, command: FleetCommand) -> Fleet:
        return flight.move(self, state, command)

    def judge(self, state: SurveyState, body: Fleet) -> SurveyState:
        return rewards.judge(self, state, body)

    # Differentiating

    def differentiable_state(self, state: SurveyState) -> smooth.DifferentiableFleet:
        return smooth.differentiable_state(state)

    def with_differentiable_state(self, state: SurveyState, part: smooth.DifferentiableFleet) -> SurveyState:
        return smooth.with_differentiable_state(state, part)

    def smooth_reward(self, before: SurveyState, after: SurveyState) -> Float[Array, "agents"]:
        return smooth.smooth_reward(self, before, after)

    # Observing

    def observe(self, state: SurveyState) -> Float[Array, "agents features"]:
        """All parts of each drone's observation, one after the other."""
        parts = observation.encode(self, state)
        return stack_features([x for part in parts.values() for x in part])

    def observation_parts(self, state: SurveyState) -> dict[str, Float[Array, "agents size"]]:
        """The parts of each drone's observation by name."""
        return {name: stack_features(part) for name, part in observation.encode(self, state).items()}

    def privileged_observation(self, state: SurveyState) -> Float[Array, "agents features"]:
        """The tracked position of the own target: what a drone with a camera does not know, for its critic."""
        return replace(self, camera=CameraSettings()).observation_parts(state)["track"]

    def image(self, state: SurveyState) -> PackedImage:
        return observation.image(self, state)

    # On another plant

    def without_controller(self) -> "Survey":
        return replace(self, controller="simple")

    def vehicle_states(self, state: SurveyState) -> QuadrotorState:
        return flight.hovering(self, state.body.drones)

    def setpoints(self, state: SurveyState, command: FleetCommand) -> VelocitySetpoint:
        return flight.setpoints(self, state, command)

    def wind_at(self, state: SurveyState) -> Vec3:
        return flight.wind_at(self, state)

    def randomization(self, state: SurveyState) -> PhysicsRandomization:
        return PhysicsRandomization()

    def body_from_vehicles(self, state: SurveyState, command: FleetCommand, vehicles: QuadrotorState) -> Fleet:
        return flight.body_from_vehicles(self, state, command, vehicles)

    def collision_scene(self, state: SurveyState) -> Scene:
        return static_scene(state.world)

    def fit_model(self) -> VelocityModel:
        return VelocityModel()

    def with_fit(self, parameters: dict[str, float], variation: dict[str, float], limits: dict[str, float]) -> "Survey":
        model = replace(self.velocity_model, **(parameters | limits), max_tilt=1.2)
        response = float(np.mean([variation["velocity_time_constant"], variation["tilt_time_constant"]]))
        return replace(self, velocity_model=model, randomize=replace(self.randomize, response=response))

    # Reporting

    def episode_metrics(self, state: SurveyState) -> dict[str, Float[Array, "agents"]]:
        sortie, mission = state.progress, self.mission_spec
        counts = jnp.ones_like(state.truncated)
        if self.mean_world_lifetime:
            # Only a sortie that had enough time before the end of its world counts, whether it ended early or not:
            # crashes always end early.
            began = state.body.clock - state.step.astype(jnp.float32) * self.control_dt
            counts = began + LONG_ENOUGH * sortie.time_limit <= self.mean_world_lifetime * state.world.lifetime
        metrics = {
            "success": jnp.where(counts, sortie.success, jnp.nan),
            "episode_return": sortie.episode_return,
            "duration": state.step.astype(jnp.float32) * self.control_dt,
            "battery": sortie.battery,
            "zone_violation": sortie.zone_violation,
            "crash": sortie.crashed,
            "filter_intervention_rate": sortie.filter_interventions / jnp.maximum(state.step, 1),
        }
        if mission.coverage_half_extent:
            metrics["coverage"] = jax.vmap(coverage.covered_fraction)(sortie.covered)
        if mission.reward.detection:
            found = jax.lax.population_count(sortie.found).astype(jnp.float32) / mission.generator.targets
            metrics |= {"found": found, "false_alarms": sortie.false_alarms}
        if mission.required.value:
            achievable = jnp.maximum(rewards.achievable_value(state.world), 1.0)
            metrics |= {
                "value": sortie.value / achievable,
                "high_threat_time": sortie.high_threat_time,
                "medium_threat_time": sortie.medium_threat_time,
            }
        if mission.target_per_drone:
            metrics["dwell"] = sortie.best_dwell
        return {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}

    def record(self, state: SurveyState) -> dict[str, Array]:
        drones, sortie = state.body.drones, state.progress
        record = {
            "position": jnp.stack(drones.position.parts, -1),
            "velocity": jnp.stack(drones.velocity.parts, -1),
            "yaw": jnp.asarray(drones.yaw),
            "gimbal": jnp.stack([state.body.gimbals.yaw, state.body.gimbals.pitch], -1),
            "reward": state.reward,
            "battery": jnp.asarray(sortie.battery),
            "mode": sortie.mode,
            "filter_correction": jnp.asarray(sortie.filter_correction),
            "filter_reason": sortie.filter_reason,
            "found": sortie.found,
            "clock": jnp.broadcast_to(state.body.clock, (self.agents,)),
            "ended": state.ended,
        }
        if self.mission_spec.coverage_half_extent:
            record["covered"] = jnp.stack(sortie.covered, -1)
        if self.mission_spec.target_per_drone:
            record["view_quality"] = jnp.asarray(sortie.view_quality)
        return record

    def world_record(self, state: SurveyState) -> dict[str, Array]:
        """Every leaf of the world by name, and the goals of the drones."""
        return named_leaves(state.world) | {"goal": jnp.stack(state.progress.goal.parts, -1)}

    def baselines(self) -> dict[str, Callable[[SurveyState], Any]]:
        """The scripts that the policy of this mission is compared with."""
        if self.mission_spec.target_per_drone and self.camera.on:
            # They use the tracked position of the target, which a drone with a camera does not observe.
            return {}
        return {name: partial(fly_script, script, self) for name, script in BASELINES.get(self.mission, {}).items()}
