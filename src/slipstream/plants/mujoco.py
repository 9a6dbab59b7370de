"""The MuJoCo plant: rigid bodies and contacts that are not ours, under PX4's cascade.

The vehicle's model is written from the same `Quadrotor` that trains: mass, inertia, where the rotors are. Rotor speeds
lag as the vehicle's do; their thrust and drag torque act at the rotors, drag and the gyroscopic terms on the body.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core import device
from ..core.geometry import Quat, Vec3
from ..core.rng import Index, Rng
from ..core.struct import struct
from ..core.task import select
from ..dynamics.control_modes import Setpoint
from ..dynamics.px4_controller import ControllerState, Px4Controller
from ..dynamics.quadrotor import GRAVITY, PhysicsRandomization, Quadrotor, QuadrotorState, Rotors, mean_rotor_acceleration
from ..sensors.noise import noise_vector
from ..sensors.scene import Scene, Shapes
from .plant import AnyTask, PlantError, agent_axis, flat, require_quadrotors, zero_actions

SPINS = (1.0, -1.0, 1.0, -1.0)
"""Which way the drag of each rotor turns the body: the order is that of `Rotors`."""


def library() -> Any:
    """MuJoCo, or what to do to have it."""
    try:
        import mujoco
        import mujoco.rollout
    except ImportError as error:
        raise PlantError("the plant mujoco needs the package: pip install mujoco") from error
    # A wreck that tumbles through a gate's frame makes MuJoCo complain, on the terminal and in a file where one stands.
    mujoco.set_mju_user_warning(lambda text: None)
    return mujoco


@dataclass(frozen=True)
class SensorModel:
    """How well something is known: white noise, a bias that stays for an episode, lateness and rate."""

    noise: float = 0.0
    bias: float = 0.0
    """standard deviation between episodes"""
    delay: float = 0.0
    """s"""
    rate: float = 0.0
    """readings a second; 0 is every time it is asked"""


@dataclass(frozen=True)
class SensorSuite:
    """What a flight controller and a policy know of a vehicle. The defaults are a good estimator on small sensors.

    An estimator carries its position and velocity on by the gyroscope and the accelerometer: they are as frequent as
    those, and one reading late.
    """

    gyroscope: SensorModel = SensorModel(noise=0.01, bias=0.002)
    attitude: SensorModel = SensorModel(noise=0.002, bias=0.005)
    """rad, about each axis"""
    velocity: SensorModel = SensorModel(noise=0.03, bias=0.02, delay=0.004, rate=250.0)
    position: SensorModel = SensorModel(noise=0.02, bias=0.05, delay=0.004, rate=250.0)

    @property
    def parts(self) -> dict[str, SensorModel]:
        return {
            "rates": self.gyroscope,
            "attitude": self.attitude,
            "velocity": self.velocity,
            "position": self.position,
        }


PERFECT = SensorSuite(*[SensorModel()] * 4)


@struct
class SensorBuffer:
    """What instruments said, and what they will say once it gets through."""

    past: tuple[QuadrotorState, ...]  # the newest first
    held: QuadrotorState


def known(instruments: SensorSuite, rate: float, flight: QuadrotorState) -> SensorBuffer:
    """Vehicles that have flown like this for a while."""
    late = max(round(part.delay * rate) for part in instruments.parts.values())
    return SensorBuffer((flight,) * (1 + late), flight)


def read(
    instruments: SensorSuite, rate: float, known: SensorBuffer, flight: QuadrotorState, count: Index, rng: Rng
) -> SensorBuffer:
    """After one more look at one vehicle, `rate` times a second. `rng` is the same in every look."""
    past = (flight, *known.past)[: len(known.past)]
    now = rng.fork(jnp.asarray(count, jnp.uint32) + jnp.uint32(8))
    said = {}
    for k, (name, part) in enumerate(instruments.parts.items()):
        value = getattr(past[round(part.delay * rate)], name)
        bias, _ = noise_vector(rng.fork(k), part.bias)
        noise, now = noise_vector(now, part.noise)
        off = bias + noise
        value = value.spun(off, 1.0) if isinstance(value, Quat) else value + off
        every = max(round(rate / part.rate), 1) if part.rate else 1
        said[name] = select(jnp.asarray(count) % every == 0, value, getattr(known.held, name))
    return SensorBuffer(past, replace(flight, **said))


# The model


def numbers(*values: float) -> str:
    return " ".join(f"{value:.9g}" for value in values)


def vehicle_xml(vehicle: Quadrotor, name: str) -> tuple[str, str]:
    """Body and actuators of one vehicle: feet, a disc as wide as it is, and a motor at every rotor."""
    ahead, aside = vehicle.arm
    corners = ((ahead, aside), (ahead, -aside), (-ahead, -aside), (-ahead, aside))
    foot = 0.2 * vehicle.foot_drop
    sites = "".join(f'<site name="{name}_{k}" pos="{numbers(x, y, 0.0)}"/>' for k, (x, y) in enumerate(corners))
    feet = "".join(
        f'<geom type="sphere" size="{numbers(foot)}" pos="{numbers(x, y, foot - vehicle.foot_drop)}"/>'
        for x, y in corners
    )
    body = (
        f'<body name="{name}"><freejoint/>'
        f'<inertial pos="0 0 0" mass="{numbers(vehicle.mass)}" diaginertia="{numbers(*vehicle.inertia)}"/>'
        f'<geom type="cylinder" size="{numbers(vehicle.radius, 0.5 * vehicle.foot_drop)}"/>{feet}{sites}</body>'
    )
    ratio = vehicle.torque_per_thrust
    motors = "".join(
        f'<general site="{name}_{k}" gear="{numbers(0, 0, 1, 0, 0, spin * ratio)}"/>' for k, spin in enumerate(SPINS)
    )
    return body, motors


def scenery_xml(scene: Scene) -> str:
    """Everything that stands around, as shapes that can be hit."""
    parts = []
    if scene.ground is not None:
        parts.append(f'<geom type="plane" size="0 0 1" pos="{numbers(0, 0, float(scene.ground.height))}"/>')
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
                f'<geom type="{"sphere" if same else kind}" size="{numbers(*(size[:1] if same else size))}" '
                f'pos="{numbers(x, y, z)}" quat="{numbers(w, i, j, k)}"/>'
            )
    return "".join(parts)


def world_xml(vehicle: Quadrotor, count: int, scene: Scene | None, dt: float) -> str:
    """A world of so many vehicles."""
    drawn = [vehicle_xml(vehicle, f"drone{k}") for k in range(count)]
    bodies, motors = ("".join(part) for part in zip(*drawn, strict=True))
    return (
        f'<mujoco><option timestep="{numbers(dt)}" gravity="{numbers(0, 0, -GRAVITY)}" integrator="Euler"/>'
        '<default><geom friction="0.6 0.005 0.0001" solref="0.02 1"/></default>'
        f"<worldbody>{scenery_xml(scene) if scene else ''}{bodies}</worldbody><actuator>{motors}</actuator></mujoco>"
    )


class Bodies:
    """Many vehicles in many MuJoCo worlds, stepped together over all cores."""

    def __init__(
        self,
        vehicle: Quadrotor,
        scenes: list[Scene | None],
        agents: int,
        dt: float,
        factors: Sequence[np.ndarray] | None = None,
    ) -> None:
        """`factors` are those on mass and inertia, of every vehicle."""
        mujoco = library()
        self.mujoco, self.agents = mujoco, agents
        self.worlds = len(scenes)
        texts = [world_xml(vehicle, agents, scene, dt) for scene in scenes]
        compiled = {text: mujoco.MjModel.from_xml_string(text) for text in set(texts)}
        self.models = [compiled[text] for text in texts]
        if factors is not None and any(np.any(factor != 1.0) for factor in factors):
            self._vary(*factors)
        self.data = [mujoco.MjData(self.models[0]) for _ in range(min(device.cores(), self.worlds))]
        spec = mujoco.mjtState
        self.spec = int(spec.mjSTATE_CTRL) | int(spec.mjSTATE_XFRC_APPLIED)
        size = mujoco.mj_stateSize(self.models[0], int(spec.mjSTATE_FULLPHYSICS))
        self.state = np.zeros((self.worlds, size))
        self.after = np.zeros((self.worlds, 1, size))
        self.control = np.zeros((self.worlds, 1, 4 * agents + 6 * (agents + 1)))
        self.threads = mujoco.rollout.Rollout(nthread=len(self.data))

    def _vary(self, mass: np.ndarray, inertia: np.ndarray) -> None:
        """Vehicles that differ from their drawing."""
        self.models = [copy.copy(model) for model in self.models]
        for model, m, i in zip(
            self.models, mass.reshape(-1, self.agents), inertia.reshape(-1, self.agents), strict=True
        ):
            model.body_mass[1:] *= m
            model.body_inertia[1:] *= i[:, None]
            self.mujoco.mj_setConst(model, self.mujoco.MjData(model))

    def solid(self, yes: bool) -> None:
        """Whether vehicles can hit what stands on the ground of their world, and rest on it."""
        for model in self.models:
            things = (model.geom_bodyid == 0) & (model.geom_type != self.mujoco.mjtGeom.mjGEOM_PLANE)
            model.geom_contype[things] = model.geom_conaffinity[things] = int(yes)

    def put(self, flights: QuadrotorState) -> None:
        """Vehicles, one row of them, at rest or moving."""
        columns = np.asarray(columns_of(flights))
        places, speeds = columns[:7].T.reshape(self.worlds, -1), columns[7:].T.reshape(self.worlds, -1)
        self.state[:] = np.concatenate([np.zeros((self.worlds, 1)), places, speeds], 1)

    def put_one(self, number: int, flight: QuadrotorState) -> None:
        """One vehicle, given as a row of one."""
        world, agent = divmod(number, self.agents)
        place, speed = 1 + 7 * agent, 1 + 7 * self.agents + 6 * agent
        columns = np.asarray(columns_of(flight))
        self.state[world, place : place + 7], self.state[world, speed : speed + 6] = columns[:7, 0], columns[7:, 0]

    def ground_below(self, points: np.ndarray) -> np.ndarray:
        """Height of what could carry each vehicle below its point, the vehicles themselves left out."""
        heights, hit = [], np.zeros(1, np.int32)
        for number, point in enumerate(points):
            model = self.models[number // self.agents]
            data = self.mujoco.MjData(model)
            # Only what is solid and fixed to the world: vehicles would be in their own way.
            self.mujoco.mj_setState(
                model, data, self.state[number // self.agents], int(self.mujoco.mjtState.mjSTATE_FULLPHYSICS)
            )
            self.mujoco.mj_forward(model, data)
            data.geom_xpos[(model.geom_bodyid > 0) | (model.geom_contype == 0)] += 1e6
            down = self.mujoco.mj_ray(model, data, point, np.array([0.0, 0.0, -1.0]), None, 1, -1, hit)
            heights.append(point[2] - down if down >= 0.0 else 0.0)
        return np.array(heights)

    def get(self) -> np.ndarray:
        """Position, quaternion, velocity and rates, a column for every vehicle."""
        split = 1 + 7 * self.agents
        places = self.state[:, 1:split].reshape(-1, 7)
        speeds = self.state[:, split:].reshape(-1, 6)
        return np.concatenate([places, speeds], 1).astype(np.float32).T

    def step(self, thrusts: np.ndarray, wrenches: np.ndarray) -> None:
        """One step under the thrust of every rotor, and a force and torque in the world on every body."""
        motors = 4 * self.agents
        self.control[:, 0, :motors] = thrusts.reshape(self.worlds, -1)
        self.control[:, 0, motors + 6 :] = wrenches.reshape(self.worlds, -1)
        # Shapes are right by construction; checking them costs as much as the physics of a few vehicles.
        self.threads.rollout(
            self.models, self.data, self.state, self.control,
            control_spec=self.spec, nstep=1, state=self.after, skip_checks=True,
        )  # fmt: skip
        self.state[:] = self.after[:, 0]

    def close(self) -> None:
        self.threads.close()


def columns_of(flights: QuadrotorState) -> Array:
    """Position, quaternion, velocity and rates, a column for every vehicle of a row."""
    q = flights.attitude
    parts = (*flights.position.parts, q.w, q.x, q.y, q.z, *flights.velocity.parts, *flights.rates.parts)
    return jnp.stack(parts)


def flights_of(columns: Any, rotors: Rotors) -> QuadrotorState:
    """The vehicles of those columns."""
    x, y, z, w, i, j, k, *rest = columns
    return QuadrotorState(Vec3(x, y, z), Quat(w, i, j, k), Vec3(*rest[:3]), Vec3(*rest[3:]), rotors)


def pushed(
    vehicle: Quadrotor, flight: QuadrotorState, target: Rotors, air: Vec3, variation: PhysicsRandomization, dt: float
) -> Any:
    """Of one vehicle: rotor speeds after `dt`, their thrusts, and what else acts on the body, in the world."""
    rotors = vehicle.rotor_response(flight.rotors, target, variation, dt)
    slope = mean_rotor_acceleration(flight.rotors, rotors, dt)
    flight = replace(flight, rotors=rotors)
    thrusts = vehicle.thrusts(flight.rotors, variation)
    force, _ = vehicle.wrench(flight, air, variation)
    drag = flight.attitude.rotate(force - Vec3(0.0, 0.0, thrusts.total))
    turn = flight.attitude.rotate(vehicle.gyroscopic_torque(flight, slope))
    return flight.rotors, jnp.stack(thrusts.parts), jnp.stack([*drag.parts, *turn.parts])


class MujocoVehicles:
    """The vehicles of a task in MuJoCo, whoever controls them."""

    def __init__(self, task: Any, rate: int) -> None:
        self.task, self.vehicle, self.rate = task, task.airframe, rate
        self._around = jax.jit(jax.vmap(task.collision_scene))
        self.body_from_vehicles, self.push = jax.jit(self._settled), jax.jit(self._push)

    def start(self, states: Any) -> tuple[Bodies, QuadrotorState, PhysicsRandomization]:
        """Bodies in the worlds of these states, as heavy as each is there; where they would start, and their variation.

        Contacts push away what would stand in the ground.
        """
        flights = flat(jax.vmap(self.task.vehicle_states)(states))
        variation = flat(jax.vmap(self.task.randomization)(states))
        agents, count = self.task.spec.agents, flights.position.x.shape[0]
        around = jax.device_get(self._around(states))
        scenes = [jax.tree.map(lambda x, i=i: x[i], around) for i in range(count // agents)]
        factors = [np.ones(count) if x is None else np.asarray(x) for x in (variation.mass, variation.inertia)]
        bodies = Bodies(self.vehicle, scenes, agents, 1.0 / self.rate, factors)
        bodies.put(flights)
        return bodies, flights, variation

    def _settled(self, states: Any, commands: Any, columns: Any, rotors: Any) -> Any:
        """The bodies of the task, by columns of all vehicles and rows of their rotors' speeds."""
        flights = flights_of(columns, Rotors(*rotors))
        shaped = jax.tree.map(lambda x: jnp.reshape(x, (-1, *agent_axis(self.task))), flights)
        return jax.vmap(self.task.body_from_vehicles)(states, commands, shaped)

    def _push(self, columns: Any, rotors: Any, signals: Any, air: Any, variation: PhysicsRandomization) -> Any:
        """Rotor speeds after one physics step at those motor signals, thrusts and wrenches."""
        flight = flights_of(columns, Rotors(*rotors))
        target = Rotors(*(signals * self.vehicle.max_speed))
        one = jax.vmap(partial(pushed, self.vehicle, dt=1.0 / self.rate))
        after, thrusts, wrench = one(flight, target, Vec3(*air), variation)
        return jnp.stack(after.parts), thrusts, wrench


@struct
class ControlLoopState:
    """What lies between a setpoint and MuJoCo, of one vehicle."""

    known: SensorBuffer
    memory: ControllerState
    target: Rotors
    rotors: Rotors


@struct
class ControlInput:
    """What holds for one control period, of one vehicle."""

    setpoint: Setpoint
    wind: Vec3
    variation: PhysicsRandomization


def packed(tree: Any) -> Array:
    """All leaves of a row of vehicles as one array: handing over many small ones costs more than the program itself."""
    return jnp.stack([jnp.asarray(leaf, jnp.float32) for leaf in jax.tree.leaves(tree)])


@dataclass(frozen=True)
class Controller:
    """Instruments, cascade and rotors of a row of vehicles, as one program a physics step."""

    vehicle: Quadrotor
    controller: Px4Controller
    instruments: SensorSuite
    rate: int
    seed: int

    @property
    def every(self) -> int:
        """physics steps for each of the controller's"""
        return round(self.rate / self.controller.rate)

    def start(self, flight: QuadrotorState) -> ControlLoopState:
        memory = self.controller.start(self.vehicle, flight)
        return ControlLoopState(
            known(self.instruments, self.controller.rate, flight), memory, flight.rotors, flight.rotors
        )

    def tick(
        self, loop: ControlLoopState, told: ControlInput, columns: Any, count: Index
    ) -> tuple[ControlLoopState, Array, Array]:
        """The loop after one physics step, and the thrusts and wrenches of that step."""
        flight = flights_of(columns, loop.rotors)
        numbers = jnp.arange(loop.rotors.front_left.shape[0])

        def decide(loop: ControlLoopState) -> ControlLoopState:
            def one(
                loop: ControlLoopState, told: ControlInput, flight: QuadrotorState, number: Index
            ) -> ControlLoopState:
                rng = Rng.from_seed(self.seed, number)
                now = read(self.instruments, self.controller.rate, loop.known, flight, count // self.every, rng)
                target, memory = self.controller.control(self.vehicle, now.held, loop.memory, told.setpoint)
                return replace(loop, known=now, memory=memory, target=target)

            return jax.vmap(one)(loop, told, flight, numbers)

        loop = jax.lax.cond(count % self.every == 0, decide, lambda loop: loop, loop)
        push = partial(pushed, self.vehicle, dt=1.0 / self.rate)
        rotors, thrusts, wrench = jax.vmap(push)(flight, loop.target, told.wind, told.variation)
        return replace(loop, rotors=rotors), thrusts, wrench


class MujocoPlant:
    """Vehicles in MuJoCo, each flown by a cascade that reads noisy instruments."""

    name = "mujoco"
    keeps_time = False
    max_worlds = 0
    failed = None

    def __init__(
        self,
        controller: Px4Controller = Px4Controller(),
        instruments: SensorSuite = SensorSuite(),
        rate: int = 500,
        seed: int = 0,
    ) -> None:
        if rate % controller.rate:
            raise ValueError(f"physics at {rate} Hz is no whole multiple of the controller's {controller.rate:g} Hz")
        self.controller, self.instruments, self.rate, self.seed = controller, instruments, rate, seed
        self.bodies: Bodies | None = None
        self._task: Any = None
        library()

    def adapt(self, task: AnyTask) -> AnyTask:
        return require_quadrotors(task, self.name)

    def _compile(self, task: Any, states: Any) -> None:
        if task is self._task:
            return
        self._task = task
        self.vehicles = vehicles = MujocoVehicles(task, self.rate)
        controller = Controller(
            task.airframe, self.controller.tuned_for(task.airframe), self.instruments, self.rate, self.seed
        )

        def told(states: Any, commands: Any) -> ControlInput:
            one = jax.vmap(lambda s, c: ControlInput(task.setpoints(s, c), task.wind_at(s), task.randomization(s)))
            return flat(one(states, commands))

        # The shapes of what is packed, found without running anything.
        action = zero_actions(task, states.step.shape[0])
        commands = jax.eval_shape(lambda s: jax.vmap(task.command)(s, action)[1], states)
        told_like = jax.tree.structure(jax.eval_shape(told, states, commands))
        begin = lambda s: jax.vmap(controller.start)(flat(jax.vmap(task.vehicle_states)(s)))  # noqa: E731
        loop_like = jax.tree.structure(jax.eval_shape(begin, states))

        def tick(loop: Array, told: Array, columns: Array, count: Index) -> tuple[Array, Array, Array]:
            after, thrusts, wrench = controller.tick(
                jax.tree.unflatten(loop_like, list(loop)), jax.tree.unflatten(told_like, list(told)), columns, count
            )
            return packed(after), thrusts, wrench

        def estimate(states: Any, commands: Any, loop: Array) -> Any:
            told = jax.tree.unflatten(loop_like, list(loop)).known.held
            return vehicles.body_from_vehicles(states, commands, columns_of(told), told.rotors.parts)

        def sensed(states: Any, commands: Any, loop: Array, columns: Array) -> Any:
            rotors = jax.tree.unflatten(loop_like, list(loop)).rotors
            return vehicles.body_from_vehicles(states, commands, columns, rotors.parts)

        self._told = jax.jit(lambda states, commands: packed(told(states, commands)))
        self._begin = jax.jit(lambda states: packed(begin(states)))
        self._tick, self._seen, self._sensed = jax.jit(tick, donate_argnums=0), jax.jit(estimate), jax.jit(sensed)

    def start(self, task: Any, states: Any) -> Any:
        self._compile(task, states)
        self.close()
        self.bodies, _, _ = self.vehicles.start(states)
        self.loop, self.tick = self._begin(states), 0
        self._held: Any = None
        self._start = states.body
        return states.body

    def command(self, states: Any, commands: Any) -> None:
        assert self.bodies is not None
        told = self._told(states, commands)
        self._held = states, commands
        for _ in range(round(self._task.spec.control_dt * self.rate)):
            self.loop, thrusts, wrench = self._tick(self.loop, told, self.bodies.get(), self.tick)
            self.bodies.step(np.asarray(thrusts), np.asarray(wrench))
            self.tick += 1

    def truth(self) -> Any:
        assert self.bodies is not None
        return self._sensed(*self._held, self.loop, self.bodies.get())

    def estimate(self) -> Any:
        return self._start if self._held is None else self._seen(*self._held, self.loop)

    def diagnostics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self.bodies is not None:
            self.bodies.close()
            self.bodies = None
