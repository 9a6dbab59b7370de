"""The MuJoCo plant: rigid bodies and contacts by MuJoCo, flown by PX4's controller with modeled sensors.

The MuJoCo model is generated from the same `Quadrotor` that trains: mass, inertia and rotor positions. Rotor speeds
follow the vehicle's first-order response; thrust and drag torque act at the rotors, drag and gyroscopic torque on the
body.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..core import device
from ..core.geometry import Quat, Scalar, Vec3
from ..core.rng import Index, Rng
from ..core.struct import struct
from ..core.task import select
from ..dynamics.control_modes import Setpoint
from ..dynamics.px4_controller import ControllerState, Px4Controller
from ..dynamics.quadrotor import (
    GRAVITY,
    PhysicsRandomization,
    Quadrotor,
    QuadrotorState,
    Rotors,
    mean_rotor_acceleration,
)
from ..sensors.noise import noise_vector
from ..sensors.scene import Scene, Shapes
from .plant import (
    AnyState,
    AnyTask,
    PlantError,
    VehicleTask,
    agent_axis,
    flatten_agents,
    require_quadrotors,
    unstack,
    vehicle_task,
    zero_actions,
)

Columns = Float[Array, "13 vehicles"] | Float[np.ndarray, "13 vehicles"]
"""Position, quaternion, velocity and body rates, one column for each vehicle."""
Rows = Float[Array, "rows vehicles"] | Float[np.ndarray, "rows vehicles"] | tuple[Scalar, ...]
"""One row for each rotor or axis, one column for each vehicle."""
YAW_SIGNS = (1.0, -1.0, 1.0, -1.0)
"""Sign of each rotor's drag torque about the body's z axis, in the order of `Rotors`."""


def load_mujoco() -> ModuleType:
    """The MuJoCo package; raises a PlantError that says how to install it."""
    try:
        import mujoco
        import mujoco.rollout
    except ImportError as error:
        raise PlantError("the plant mujoco needs the package: pip install mujoco") from error
    # A wreck that tumbles through a gate's frame makes MuJoCo print warnings and write them to a file.
    mujoco.set_mju_user_warning(lambda text: None)  # pyright: ignore[reportAttributeAccessIssue]
    return mujoco


# Sensors


@dataclass(frozen=True)
class SensorModel:
    """Errors of one measured quantity: white noise, a constant bias, a delay, and a sampling rate."""

    noise_std: float = 0.0
    """standard deviation of the white noise, in the quantity's unit"""
    bias_std: float = 0.0
    """standard deviation of the bias between episodes, in the quantity's unit"""
    delay: float = 0.0
    """s"""
    rate: float = 0.0
    """samples per second; 0 is one for every step of the controller"""


@dataclass(frozen=True)
class SensorSuite:
    """Errors of the estimated state that controller and policy get. The defaults are a good estimator on small sensors.

    Position and velocity are as frequent as the inertial sensors that an estimator integrates between GPS fixes, and
    one sample late.
    """

    gyroscope: SensorModel = SensorModel(noise_std=0.01, bias_std=0.002)
    """rad/s"""
    attitude: SensorModel = SensorModel(noise_std=0.002, bias_std=0.005)
    """rad, about each axis"""
    velocity: SensorModel = SensorModel(noise_std=0.03, bias_std=0.02, delay=0.004, rate=250.0)
    """m/s"""
    position: SensorModel = SensorModel(noise_std=0.02, bias_std=0.05, delay=0.004, rate=250.0)
    """m"""

    @property
    def parts(self) -> dict[str, SensorModel]:
        """The models by the field of `QuadrotorState` that they measure."""
        return {
            "rates": self.gyroscope,
            "attitude": self.attitude,
            "velocity": self.velocity,
            "position": self.position,
        }


PERFECT_SENSORS = SensorSuite(*[SensorModel()] * 4)


@struct
class SensorBuffer:
    """True states that delayed sensors have yet to show, and the newest estimate."""

    history: tuple[QuadrotorState, ...]  # the newest first
    estimate: QuadrotorState


def fill_buffer(sensors: SensorSuite, rate: float, state: QuadrotorState) -> SensorBuffer:
    """The buffer of a vehicle that has been in `state` for longer than any delay."""
    delay = max(round(part.delay * rate) for part in sensors.parts.values())
    return SensorBuffer((state,) * (1 + delay), state)


def read_sensors(
    sensors: SensorSuite, rate: float, buffer: SensorBuffer, state: QuadrotorState, count: Index, rng: Rng
) -> SensorBuffer:
    """The buffer after sample number `count` of one vehicle, at `rate` samples a second.

    `rng` is the same for all samples of an episode: the bias is drawn from it, and forks of it give the noise.
    """
    history = (state, *buffer.history)[: len(buffer.history)]
    now = rng.fork(jnp.asarray(count, jnp.uint32) + jnp.uint32(8))
    estimate = {}
    for k, (name, part) in enumerate(sensors.parts.items()):
        value = getattr(history[round(part.delay * rate)], name)
        bias, _ = noise_vector(rng.fork(k), part.bias_std)
        noise, now = noise_vector(now, part.noise_std)
        error = bias + noise
        value = value.spun(error, 1.0) if isinstance(value, Quat) else value + error
        interval = max(round(rate / part.rate), 1) if part.rate else 1
        estimate[name] = select(jnp.asarray(count) % interval == 0, value, getattr(buffer.estimate, name))
    return SensorBuffer(history, replace(state, **estimate))


# The MuJoCo model


def xml_numbers(*values: float) -> str:
    """Numbers as MuJoCo's XML has them."""
    return " ".join(f"{value:.9g}" for value in values)


def vehicle_xml(vehicle: Quadrotor, name: str) -> tuple[str, str]:
    """Body and actuators of one vehicle: feet, a disc of its radius, and a motor at every rotor."""
    forward, left = vehicle.arm
    corners = ((forward, left), (forward, -left), (-forward, -left), (-forward, left))
    foot = 0.2 * vehicle.foot_drop
    sites = "".join(f'<site name="{name}_{k}" pos="{xml_numbers(x, y, 0.0)}"/>' for k, (x, y) in enumerate(corners))
    feet = "".join(
        f'<geom type="sphere" size="{xml_numbers(foot)}" pos="{xml_numbers(x, y, foot - vehicle.foot_drop)}"/>'
        for x, y in corners
    )
    body = (
        f'<body name="{name}"><freejoint/>'
        f'<inertial pos="0 0 0" mass="{xml_numbers(vehicle.mass)}" diaginertia="{xml_numbers(*vehicle.inertia)}"/>'
        f'<geom type="cylinder" size="{xml_numbers(vehicle.radius, 0.5 * vehicle.foot_drop)}"/>{feet}{sites}</body>'
    )
    ratio = vehicle.torque_per_thrust
    motors = "".join(
        f'<general site="{name}_{k}" gear="{xml_numbers(0, 0, 1, 0, 0, sign * ratio)}"/>'
        for k, sign in enumerate(YAW_SIGNS)
    )
    return body, motors


def scene_xml(scene: Scene) -> str:
    """The shapes of a scene as geometry that vehicles collide with."""
    parts = []
    if scene.ground is not None:
        parts.append(f'<geom type="plane" size="0 0 1" pos="{xml_numbers(0, 0, float(scene.ground.height))}"/>')
    kinds: dict[str, Shapes | None] = {
        "box": scene.boxes, "ellipsoid": scene.ellipsoids, "cylinder": scene.cylinders, "capsule": scene.capsules,
    }  # fmt: skip
    for kind, shapes in kinds.items():
        if shapes is None:
            continue
        q = shapes.attitude
        rows = np.stack([*shapes.position.parts, q.w, q.x, q.y, q.z, *shapes.size.parts], -1)
        for x, y, z, w, i, j, k, a, b, c in rows:
            size = {"box": (a, b, c), "ellipsoid": (a, b, c), "cylinder": (a, c), "capsule": (a, c)}[kind]
            same = kind == "ellipsoid" and a == b == c
            parts.append(
                f'<geom type="{"sphere" if same else kind}" size="{xml_numbers(*(size[:1] if same else size))}" '
                f'pos="{xml_numbers(x, y, z)}" quat="{xml_numbers(w, i, j, k)}"/>'
            )
    return "".join(parts)


def world_xml(vehicle: Quadrotor, count: int, scene: Scene | None, dt: float) -> str:
    """A world with `count` vehicles."""
    vehicles = [vehicle_xml(vehicle, f"drone{k}") for k in range(count)]
    bodies, motors = ("".join(part) for part in zip(*vehicles, strict=True))
    return (
        f'<mujoco><option timestep="{xml_numbers(dt)}" gravity="{xml_numbers(0, 0, -GRAVITY)}" integrator="Euler"/>'
        '<default><geom friction="0.6 0.005 0.0001" solref="0.02 1"/></default>'
        f"<worldbody>{scene_xml(scene) if scene else ''}{bodies}</worldbody><actuator>{motors}</actuator></mujoco>"
    )


class Bodies:
    """Vehicles in many MuJoCo worlds, stepped together on all cores."""

    def __init__(
        self,
        vehicle: Quadrotor,
        scenes: list[Scene | None],
        agents: int,
        dt: float,
        factors: Sequence[np.ndarray] | None = None,
    ) -> None:
        """`factors` are those on mass and inertia, one of each for every vehicle."""
        mujoco = load_mujoco()
        self.mujoco, self.agents = mujoco, agents
        self.worlds = len(scenes)
        texts = [world_xml(vehicle, agents, scene, dt) for scene in scenes]
        compiled = {text: mujoco.MjModel.from_xml_string(text) for text in set(texts)}
        self.models = [compiled[text] for text in texts]
        if factors is not None and any(np.any(factor != 1.0) for factor in factors):
            self._scale_masses(*factors)
        self.data = [mujoco.MjData(self.models[0]) for _ in range(min(device.cores(), self.worlds))]
        spec = mujoco.mjtState
        self.spec = int(spec.mjSTATE_CTRL) | int(spec.mjSTATE_XFRC_APPLIED)
        size = mujoco.mj_stateSize(self.models[0], int(spec.mjSTATE_FULLPHYSICS))
        self.state = np.zeros((self.worlds, size))
        self.after = np.zeros((self.worlds, 1, size))
        self.control = np.zeros((self.worlds, 1, 4 * agents + 6 * (agents + 1)))
        self.threads = mujoco.rollout.Rollout(nthread=len(self.data))

    def _scale_masses(self, mass: np.ndarray, inertia: np.ndarray) -> None:
        """Multiply mass and inertia of every vehicle by its factors."""
        self.models = [copy.copy(model) for model in self.models]
        for model, m, i in zip(
            self.models, mass.reshape(-1, self.agents), inertia.reshape(-1, self.agents), strict=True
        ):
            model.body_mass[1:] *= m
            model.body_inertia[1:] *= i[:, None]
            self.mujoco.mj_setConst(model, self.mujoco.MjData(model))

    def enable_obstacles(self, enabled: bool) -> None:
        """Whether vehicles collide with the scene; they always collide with the ground plane."""
        for model in self.models:
            obstacles = (model.geom_bodyid == 0) & (model.geom_type != self.mujoco.mjtGeom.mjGEOM_PLANE)
            model.geom_contype[obstacles] = model.geom_conaffinity[obstacles] = int(enabled)

    def set_states(self, states: QuadrotorState) -> None:
        """Set position, attitude, velocity and rates of all vehicles; leaves have one axis of vehicles."""
        columns = np.asarray(columns_from_states(states))
        poses, twists = columns[:7].T.reshape(self.worlds, -1), columns[7:].T.reshape(self.worlds, -1)
        self.state[:] = np.concatenate([np.zeros((self.worlds, 1)), poses, twists], 1)

    def set_state(self, index: int, state: QuadrotorState) -> None:
        """Set the state of one vehicle; leaves have an axis of length 1."""
        world, agent = divmod(index, self.agents)
        pose, twist = 1 + 7 * agent, 1 + 7 * self.agents + 6 * agent
        columns = np.asarray(columns_from_states(state))
        self.state[world, pose : pose + 7], self.state[world, twist : twist + 6] = columns[:7, 0], columns[7:, 0]

    def ground_below(self, points: np.ndarray) -> np.ndarray:
        """Height of the ground or obstacle below each vehicle's point; 0 where there is none."""
        heights, hit = [], np.zeros(1, np.int32)
        for index, point in enumerate(points):
            model = self.models[index // self.agents]
            data = self.mujoco.MjData(model)
            self.mujoco.mj_setState(
                model, data, self.state[index // self.agents], int(self.mujoco.mjtState.mjSTATE_FULLPHYSICS)
            )
            self.mujoco.mj_forward(model, data)
            # The ray must hit neither vehicles nor disabled obstacles, so they are moved away.
            data.geom_xpos[(model.geom_bodyid > 0) | (model.geom_contype == 0)] += 1e6
            distance = self.mujoco.mj_ray(model, data, point, np.array([0.0, 0.0, -1.0]), None, 1, -1, hit)
            heights.append(point[2] - distance if distance >= 0.0 else 0.0)
        return np.array(heights)

    def columns(self) -> Float[np.ndarray, "13 vehicles"]:
        """Position, quaternion, velocity and rates of all vehicles."""
        split = 1 + 7 * self.agents
        poses = self.state[:, 1:split].reshape(-1, 7)
        twists = self.state[:, split:].reshape(-1, 6)
        return np.concatenate([poses, twists], 1).astype(np.float32).T

    def step(self, thrusts: np.ndarray, wrenches: np.ndarray) -> None:
        """One physics step, by the thrust of every rotor and a force and torque in the world frame on every body."""
        motors = 4 * self.agents
        self.control[:, 0, :motors] = thrusts.reshape(self.worlds, -1)
        self.control[:, 0, motors + 6 :] = wrenches.reshape(self.worlds, -1)
        # Checking the shapes would cost as much as the physics of a few vehicles.
        self.threads.rollout(
            self.models, self.data, self.state, self.control,
            control_spec=self.spec, nstep=1, state=self.after, skip_checks=True,
        )  # fmt: skip
        self.state[:] = self.after[:, 0]

    def close(self) -> None:
        self.threads.close()


def columns_from_states(states: QuadrotorState) -> Float[Array, "13 vehicles"]:
    """The columns of vehicles, without their rotors."""
    q = states.attitude
    parts = (*states.position.parts, q.w, q.x, q.y, q.z, *states.velocity.parts, *states.rates.parts)
    return jnp.stack(parts)


def states_from_columns(columns: Columns, rotors: Rotors) -> QuadrotorState:
    """The states of vehicles from their columns and rotor speeds."""
    x, y, z, w, i, j, k, *rest = columns
    return QuadrotorState(Vec3(x, y, z), Quat(w, i, j, k), Vec3(*rest[:3]), Vec3(*rest[3:]), rotors)


def rotor_wrench(
    vehicle: Quadrotor,
    state: QuadrotorState,
    target: Rotors,
    wind: Vec3,
    randomization: PhysicsRandomization,
    dt: float,
) -> tuple[Rotors, Float[Array, "4"], Float[Array, "6"]]:
    """Of one vehicle: rotor speeds after `dt`, rotor thrusts, and all other force and torque in the world frame."""
    rotors = vehicle.rotor_response(state.rotors, target, randomization, dt)
    acceleration = mean_rotor_acceleration(state.rotors, rotors, dt)
    state = replace(state, rotors=rotors)
    thrusts = vehicle.thrusts(state.rotors, randomization)
    force, _ = vehicle.wrench(state, wind, randomization)
    drag = state.attitude.rotate(force - Vec3(0.0, 0.0, thrusts.total))
    torque = state.attitude.rotate(vehicle.gyroscopic_torque(state, acceleration))
    return state.rotors, jnp.stack(thrusts.parts), jnp.stack([*drag.parts, *torque.parts])


class MujocoVehicles:
    """The vehicles of a task in MuJoCo, for any flight controller."""

    def __init__(self, task: VehicleTask, rate: int) -> None:
        self.task, self.vehicle, self.rate = task, task.airframe, rate
        self._scenes = jax.jit(jax.vmap(task.collision_scene))
        self.body_from_columns, self.apply_signals = jax.jit(self._body_from_columns), jax.jit(self._apply_signals)

    def start(self, states: AnyState) -> tuple[Bodies, QuadrotorState, PhysicsRandomization]:
        """Bodies placed as in these states, and the vehicles' states and randomization, all with one vehicle axis."""
        vehicles = flatten_agents(jax.vmap(self.task.vehicle_states)(states))
        randomization = flatten_agents(jax.vmap(self.task.randomization)(states))
        agents, count = self.task.spec.agents, int(jnp.size(vehicles.position.x))
        scenes: list[Scene | None] = list(unstack(jax.device_get(self._scenes(states)), count // agents))
        factors = [np.ones(count) if x is None else np.asarray(x) for x in (randomization.mass, randomization.inertia)]
        bodies = Bodies(self.vehicle, scenes, agents, 1.0 / self.rate, factors)
        bodies.set_states(vehicles)
        return bodies, vehicles, randomization

    def _body_from_columns(self, states: AnyState, commands: PyTree, columns: Columns, rotors: Rows) -> Any:
        """The task's bodies from the columns of all vehicles and the speeds of their rotors."""
        vehicles = states_from_columns(columns, Rotors(*rotors))
        shaped = jax.tree.map(lambda x: jnp.reshape(x, (-1, *agent_axis(self.task.spec))), vehicles)
        return jax.vmap(self.task.body_from_vehicles)(states, commands, shaped)

    def _apply_signals(
        self, columns: Columns, rotors: Rows, signals: Array, wind: Rows, randomization: PhysicsRandomization
    ) -> tuple[Array, Array, Array]:
        """Rotor speeds after one physics step at those motor signals, thrusts, and wrenches."""
        vehicles = states_from_columns(columns, Rotors(*rotors))
        target = Rotors(*(signals * self.vehicle.max_speed))
        one = jax.vmap(partial(rotor_wrench, self.vehicle, dt=1.0 / self.rate))
        after, thrusts, wrench = one(vehicles, target, Vec3(*wind), randomization)
        return jnp.stack(after.parts), thrusts, wrench


# The control loop


@struct
class ControlLoopState:
    """Sensors, controller and rotors of one vehicle."""

    sensors: SensorBuffer
    memory: ControllerState
    target: Rotors
    rotors: Rotors


@struct
class ControlInput:
    """What is constant during one control period of one vehicle."""

    setpoint: Setpoint
    wind: Vec3
    randomization: PhysicsRandomization


def pack_leaves(tree: PyTree) -> Float[Array, "leaves vehicles"]:
    """All leaves as one array: passing many small arrays costs more than the program itself."""
    return jnp.stack([jnp.asarray(leaf, jnp.float32) for leaf in jax.tree.leaves(tree)])


@dataclass(frozen=True)
class ControlLoop:
    """Sensors, controller and rotors of many vehicles, as one program for each physics step."""

    vehicle: Quadrotor
    controller: Px4Controller
    sensors: SensorSuite
    rate: int
    """physics steps a second"""
    seed: int

    @property
    def interval(self) -> int:
        """Physics steps for each step of the controller."""
        return round(self.rate / self.controller.rate)

    def start(self, state: QuadrotorState) -> ControlLoopState:
        memory = self.controller.start(self.vehicle, state)
        buffer = fill_buffer(self.sensors, self.controller.rate, state)
        return ControlLoopState(buffer, memory, state.rotors, state.rotors)

    def tick(
        self, loop: ControlLoopState, inputs: ControlInput, columns: Columns, count: Index
    ) -> tuple[ControlLoopState, Array, Array]:
        """The loop after physics step number `count`, and the thrusts and wrenches of that step."""
        vehicles = states_from_columns(columns, loop.rotors)
        numbers = jnp.arange(jnp.size(loop.rotors.front_left))

        def control(loop: ControlLoopState) -> ControlLoopState:
            def one(
                loop: ControlLoopState, inputs: ControlInput, state: QuadrotorState, number: Index
            ) -> ControlLoopState:
                rng = Rng.from_seed(self.seed, number)
                sensors = read_sensors(
                    self.sensors, self.controller.rate, loop.sensors, state, count // self.interval, rng
                )
                target, memory = self.controller.control(self.vehicle, sensors.estimate, loop.memory, inputs.setpoint)
                return replace(loop, sensors=sensors, memory=memory, target=target)

            return jax.vmap(one)(loop, inputs, vehicles, numbers)

        loop = jax.lax.cond(count % self.interval == 0, control, lambda loop: loop, loop)
        one_step = partial(rotor_wrench, self.vehicle, dt=1.0 / self.rate)
        rotors, thrusts, wrench = jax.vmap(one_step)(vehicles, loop.target, inputs.wind, inputs.randomization)
        return replace(loop, rotors=rotors), thrusts, wrench


class MujocoPlant:
    """Vehicles in MuJoCo, each flown by PX4's controller on modeled sensors."""

    name = "mujoco"
    keeps_time = False
    max_worlds = 0
    failed = None

    def __init__(
        self,
        controller: Px4Controller = Px4Controller(),
        sensors: SensorSuite = SensorSuite(),
        rate: int = 500,
        seed: int = 0,
    ) -> None:
        if rate % controller.rate:
            raise ValueError(
                f"physics at {rate} Hz is not a whole multiple of the controller's rate of {controller.rate:g} Hz"
            )
        self.controller, self.sensors, self.rate, self.seed = controller, sensors, rate, seed
        self.bodies: Bodies | None = None
        self._task: AnyTask | None = None
        load_mujoco()

    def adapt(self, task: AnyTask) -> AnyTask:
        return require_quadrotors(task, self.name)

    def _compile(self, task: AnyTask, states: AnyState) -> None:
        if task is self._task:
            return
        self._task = task
        flown = vehicle_task(task, self.name)
        self.vehicles = vehicles = MujocoVehicles(flown, self.rate)
        controller = self.controller.tuned_for(flown.airframe)
        control_loop = ControlLoop(flown.airframe, controller, self.sensors, self.rate, self.seed)

        def control_input(states: AnyState, commands: PyTree) -> ControlInput:
            one = jax.vmap(lambda s, c: ControlInput(flown.setpoints(s, c), flown.wind_at(s), flown.randomization(s)))
            return flatten_agents(one(states, commands))

        def start_loop(states: AnyState) -> ControlLoopState:
            return jax.vmap(control_loop.start)(flatten_agents(jax.vmap(flown.vehicle_states)(states)))

        # The structure of what is packed, found without running anything.
        action = zero_actions(flown.spec, states.step.shape[0])
        commands = jax.eval_shape(lambda s: jax.vmap(flown.command)(s, action)[1], states)
        input_tree = jax.tree.structure(jax.eval_shape(control_input, states, commands))
        loop_tree = jax.tree.structure(jax.eval_shape(start_loop, states))

        def unpack_loop(loop: Array) -> ControlLoopState:
            return jax.tree.unflatten(loop_tree, list(loop))

        def tick(loop: Array, inputs: Array, columns: Columns, count: Index) -> tuple[Array, Array, Array]:
            unpacked = jax.tree.unflatten(input_tree, list(inputs))
            after, thrusts, wrench = control_loop.tick(unpack_loop(loop), unpacked, columns, count)
            return pack_leaves(after), thrusts, wrench

        def estimate(states: AnyState, commands: PyTree, loop: Array) -> Any:
            state = unpack_loop(loop).sensors.estimate
            return vehicles.body_from_columns(states, commands, columns_from_states(state), state.rotors.parts)

        def truth(states: AnyState, commands: PyTree, loop: Array, columns: Columns) -> Any:
            return vehicles.body_from_columns(states, commands, columns, unpack_loop(loop).rotors.parts)

        self._control_input = jax.jit(lambda states, commands: pack_leaves(control_input(states, commands)))
        self._start_loop = jax.jit(lambda states: pack_leaves(start_loop(states)))
        self._tick, self._estimate, self._truth = jax.jit(tick, donate_argnums=0), jax.jit(estimate), jax.jit(truth)
        self._steps = round(flown.spec.control_dt * self.rate)

    def start(self, task: AnyTask, states: AnyState) -> Any:
        self._compile(task, states)
        self.close()
        self.bodies, _, _ = self.vehicles.start(states)
        self.loop, self.tick = self._start_loop(states), 0
        self._start = states.body
        self._commanded: tuple[AnyState, Any] | None = None
        return states.body

    def command(self, states: AnyState, commands: PyTree) -> None:
        assert self.bodies is not None
        inputs = self._control_input(states, commands)
        self._commanded = states, commands
        for _ in range(self._steps):
            self.loop, thrusts, wrench = self._tick(self.loop, inputs, self.bodies.columns(), self.tick)
            self.bodies.step(np.asarray(thrusts), np.asarray(wrench))
            self.tick += 1

    def truth(self) -> Any:
        if self._commanded is None:
            return self._start
        assert self.bodies is not None
        return self._truth(*self._commanded, self.loop, self.bodies.columns())

    def estimate(self) -> Any:
        return self._start if self._commanded is None else self._estimate(*self._commanded, self.loop)

    def diagnostics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self.bodies is not None:
            self.bodies.close()
            self.bodies = None
