"""How a fleet is commanded, and how it moves: by the velocity model, under PX4's controller, or on a plant."""

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...core.geometry import Flag, Quat, Scalar, Vec2, Vec3, sin_cos
from ...core.rng import Rng
from ...core.task import select_agents
from ...dynamics.control_modes import VelocitySetpoint
from ...dynamics.quadrotor import PhysicsRandomization, QuadrotorState
from ...dynamics.velocity_drone import Gimbal, VelocityCommand, VelocityDrone, VelocityDroneState, fly, target_velocity
from . import gimbal as gimbals
from .behavior import LANDED, MISSION, BehaviorInput
from .rewards import mission_complete
from .safety import BATTERY, FilteredCommand, FilterInput
from .state import Fleet, FleetCommand, Sortie, SurveyState, believed
from .world import SurveyWorld

if TYPE_CHECKING:
    from .task import Survey

GUST_AIRSPEED_RATIO = 4.0
"""Speed of a gust of air over the speed at which it moves a drone."""

# Commands


def command(
    task: "Survey", state: SurveyState, action: Float[Array, "agents size"]
) -> tuple[SurveyState, FleetCommand]:
    """The state that remembers the commands, and the commands: those of each drone's mode, after the safety filter."""
    _, rng = state.rng.bits()
    fleet, world = state.body, state.world
    drones = jax.vmap(believed)(fleet.drones, state.progress.drift)
    inputs = FilterInput(world, fleet.clock, drones, ~state.ended & (state.progress.mode != LANDED))
    each = jax.vmap(partial(request, task), in_axes=(0, 0, 0, 0, 0, None))
    requested, modes, low_battery, rates = each(action, drones, fleet.gimbals, state.progress, state.step, inputs)
    if task.safety_filter:
        filtered = task.filter.check(requested, task.behavior.may_be_low(modes), inputs)
    else:
        filtered = FilteredCommand(requested, 0.0 * drones.yaw, 0 * modes)
    changed = filtered.correction > 0.0
    sortie = replace(
        state.progress,
        mode=modes,
        command=filtered.command,
        filter_correction=filtered.correction,
        filter_interventions=state.progress.filter_interventions + changed,
        filter_reason=jnp.where(
            changed, filtered.reason, jnp.where(low_battery, BATTERY, state.progress.filter_reason)
        ),
    )
    return replace(state, progress=sortie, rng=rng), FleetCommand(filtered.command, rates)


def request(
    task: "Survey",
    action: Float[Array, "size"],
    drone: VelocityDroneState,
    gimbal: Gimbal,
    sortie: Sortie,
    step: Int[Array, ""],
    inputs: FilterInput,
) -> tuple[VelocityCommand, Int[Array, ""], Flag, Vec2]:
    """One drone before the filter: its command, its mode, whether the battery is the reason, and the gimbal's rates."""
    mission, world = task.mission_spec, inputs.world
    wanted = VelocityCommand(*(jnp.clip(action[i], -1.0, 1.0) for i in range(4)))
    if mission.frame == "world":
        sin, cos = sin_cos(drone.yaw)
        wanted = replace(
            wanted,
            forward=cos * wanted.forward + sin * wanted.left,
            left=cos * wanted.left - sin * wanted.forward,
        )
    now = behavior_input(task, drone, sortie, step, world)
    mode = task.behavior.next(sortie.mode, now)
    wanted = task.behavior.command(mode, wanted, drone, now, world.weather.wind, task.velocity_model, task.control_dt)
    if mission.gimbal == "policy":
        rates = Vec2(action[4], action[5])
    elif mission.gimbal == "nearest_target":
        target = gimbals.nearest_unfound(drone, sortie, world, inputs.clock)
        rates = gimbals.gimbal_rates(gimbal, gimbals.gimbal_towards(drone, target), task.control_dt)
    else:
        rates = Vec2(0.0 * drone.yaw, 0.0 * drone.yaw)
    return wanted, mode, (mode != MISSION) & (now.battery <= now.reserve), rates


def behavior_input(
    task: "Survey", drone: VelocityDroneState, sortie: Sortie, step: Int[Array, ""], world: SurveyWorld
) -> BehaviorInput:
    """What the behavior controller knows of one drone."""
    here, mission = drone.position, task.mission_spec
    home = sortie.home - here
    # A mission with a goal keeps no extra charge against a head wind on the way home: its home is the goal.
    factor = 1.0 if mission.has_goal else 1.3
    reserve = 10.0 + factor * task.battery_drain * world.drain * home.norm() / task.behavior.return_speed
    done = jnp.zeros_like(sortie.crashed)
    if mission.return_home:
        done = mission_complete(task, sortie)
        # The charge required at home is kept for it.
        reserve = reserve - 10.0 + mission.battery_reserve + 2.0
    if math.isfinite(mission.link_loss_time):
        time = step.astype(jnp.float32) * task.control_dt
        reserve = jnp.where(time >= mission.link_loss_time, 1.2 * reserve, reserve)
    return BehaviorInput(
        battery=sortie.battery,
        reserve=reserve,
        home=home,
        height=here.z - world.terrain(here.x, here.y),
        done=done,
        lost=sortie.gnss_lost & sortie.vio_failed,
    )


# The velocity model


def move(task: "Survey", state: SurveyState, command: FleetCommand) -> Fleet:
    """The fleet one control period later."""
    if task.controller == "px4":
        return _step_px4(task, state, command)

    def step(own: tuple[VelocityDroneState, VelocityCommand, Rng, Scalar | None], wind: Vec3) -> VelocityDroneState:
        drone, command, rng, response_factor = own
        after = fly(drone, command, perturbed_model(task, response_factor), wind, task.control_dt)
        gust_std = task.randomize.gust_std
        if not gust_std:
            return after
        east, rng = rng.normal(gust_std * task.control_dt)
        north, rng = rng.normal(gust_std * task.control_dt)
        return replace(after, position=after.position + Vec3(east, north, 0.0 * east))

    rngs = jax.vmap(state.rng.fork)(jnp.arange(task.agents))
    moving = (state.body.drones, command.commands, rngs, state.progress.response_factor)
    return fleet_after(task, state, command, jax.vmap(step, in_axes=(0, None))(moving, state.world.weather.wind))


def perturbed_model(task: "Survey", response_factor: Scalar | None) -> VelocityDrone:
    """The velocity model of a drone with that factor on its time constants."""
    model = task.velocity_model
    if response_factor is None:
        return model
    slower = {
        "velocity_time_constant": model.velocity_time_constant * response_factor,
        "yaw_time_constant": model.yaw_time_constant * response_factor,
    }
    if model.tilt_time_constant:
        slower |= {
            "tilt_time_constant": model.tilt_time_constant * response_factor,
            "drag": model.drag * response_factor,
        }
    return replace(model, **slower)


def fleet_after(
    task: "Survey",
    state: SurveyState,
    command: FleetCommand,
    drones: VelocityDroneState,
    airframes: QuadrotorState | None = None,
) -> Fleet:
    """The fleet once its drones have moved. A drone that has landed stays on its pad."""
    fleet, landed = state.body, state.progress.mode == LANDED
    turned = jax.vmap(lambda gimbal, rates: gimbal.step(rates.x, rates.y, gimbals.MAX_RATE, task.control_dt))(
        fleet.gimbals, command.gimbals
    )
    return Fleet(select_agents(landed, fleet.drones, drones), turned, fleet.clock + task.control_dt, airframes)


# Quadrotors: under PX4's controller, or on a plant


def hovering(task: "Survey", drones: VelocityDroneState) -> QuadrotorState:
    """Level quadrotors at the positions and velocities of the drones."""

    def hover(drone: VelocityDroneState) -> QuadrotorState:
        zero = 0.0 * drone.yaw
        level = Quat.from_euler(zero, zero, drone.yaw)
        return task.airframe.hovering(drone.position, level, drone.velocity, Vec3(zero, zero, drone.yaw_rate))

    return jax.vmap(hover)(drones)


def airframes(task: "Survey", drones: VelocityDroneState) -> QuadrotorState | None:
    """Hovering quadrotors with the state of their controllers; none for the velocity model."""
    if task.controller == "simple":
        return None
    return jax.vmap(lambda q: replace(q, memory=task.autopilot.start(task.airframe, q)))(hovering(task, drones))


def setpoints(task: "Survey", state: SurveyState, command: FleetCommand) -> VelocitySetpoint:
    """The setpoints of the vehicles' controllers."""
    model = task.velocity_model

    def setpoint(drone: VelocityDroneState, command: VelocityCommand) -> VelocitySetpoint:
        return VelocitySetpoint(target_velocity(drone.yaw, command, model), command.yaw_rate * model.max_yaw_rate)

    return jax.vmap(setpoint)(state.body.drones, command.commands)


def wind_at(task: "Survey", state: SurveyState) -> Vec3:
    """The wind at each drone, with gusts that move it about as far as those of the velocity model."""
    rngs = jax.vmap(state.rng.fork)(jnp.arange(task.agents))

    def gusty(rng: Rng, wind: Vec3) -> Vec3:
        east, rng = rng.normal(GUST_AIRSPEED_RATIO * task.randomize.gust_std)
        north, rng = rng.normal(GUST_AIRSPEED_RATIO * task.randomize.gust_std)
        return Vec3(wind.x + east, wind.y + north, wind.z)

    return jax.vmap(gusty, in_axes=(0, None))(rngs, state.world.weather.wind)


def body_from_vehicles(task: "Survey", state: SurveyState, command: FleetCommand, vehicles: QuadrotorState) -> Fleet:
    """The fleet whose drones move like those vehicles."""

    def convert(before: VelocityDroneState, vehicle: QuadrotorState) -> VelocityDroneState:
        nose = vehicle.attitude.forward
        change = (vehicle.velocity - before.velocity) * (1.0 / task.control_dt)
        # The vehicle's controller has compensated drag.
        air = vehicle.velocity - state.world.weather.wind
        integral = Vec2(air.x, air.y) * task.velocity_model.drag
        yaw = jnp.arctan2(nose.y, nose.x)
        tilt = Vec2(change.x + integral.x, change.y + integral.y)
        acceleration = replace(change, x=tilt.x, y=tilt.y)
        return VelocityDroneState(
            vehicle.position, vehicle.velocity, yaw, vehicle.rates.z, acceleration, integral, tilt
        )

    drones = jax.vmap(convert)(state.body.drones, vehicles)
    return fleet_after(task, state, command, drones, vehicles if task.controller == "px4" else None)


def _step_px4(task: "Survey", state: SurveyState, command: FleetCommand) -> Fleet:
    """The fleet one control period later, as quadrotors under PX4's controller."""
    pilot, airframe = task.autopilot, task.airframe

    def step(vehicle: QuadrotorState, setpoint: VelocitySetpoint, wind: Vec3, world: SurveyWorld) -> QuadrotorState:
        ground = world.terrain(vehicle.position.x, vehicle.position.y)

        def tick(_: Array, vehicle: QuadrotorState) -> QuadrotorState:
            rotors, memory = pilot.control(airframe, vehicle, vehicle.memory, setpoint)
            after = airframe.step(replace(vehicle, memory=memory), rotors, wind, PhysicsRandomization(), pilot.dt)
            down = after.position.z < ground
            climb = jnp.where(down, jnp.maximum(after.velocity.z, 0.0), after.velocity.z)
            return replace(
                after,
                position=replace(after.position, z=jnp.maximum(after.position.z, ground)),
                velocity=replace(after.velocity, z=climb),
            )

        return jax.lax.fori_loop(0, round(pilot.rate * task.control_dt), tick, vehicle)

    assert state.body.airframes is not None
    vehicles = jax.vmap(step, in_axes=(0, 0, 0, None))(
        state.body.airframes, setpoints(task, state, command), wind_at(task, state), state.world
    )
    return body_from_vehicles(task, state, command, vehicles)
