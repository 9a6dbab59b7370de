"""The PX4 plant: the real autopilot, in lockstep, with the MuJoCo vehicle as its world.

The simulator listens and PX4 connects. Every HIL_SENSOR is one step of PX4's clock and is answered by one
HIL_ACTUATOR_CONTROLS; commands go to PX4 over its offboard link. All waits are bounded, every process is ours and ends
with us, and north-east-down appears in this file only.
"""

import contextlib
import math
import os
import re
import select
import socket
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dynamics.cascade import Cascade
from ..dynamics.control import PositionSetpoint, Setpoint, VelocitySetpoint
from ..dynamics.quadrotor import GRAVITY, Flight, Quadrotor, Rotors, Variation
from ..geometry import Vec3
from . import mavlink
from .mujoco import Bodies, agents_of, flat, flights_of, idle_actions, pushed
from .plant import PlantError, Task, flown_by_vehicles
from .sitl import Process

HOME = (47.397742, 8.545594, 488.0)
"""Latitude, longitude and height of the world's origin: where the magnetic field below is that of the Earth."""
FIELD = np.array([0.2151, 0.0102, 0.4297])
"""Gauss, north-east-down."""
EARTH = 6_371_000.0
MOTORS = [1, 3, 0, 2]
"""Of our rotors, in PX4's order: front right, rear left, front left, rear right."""
RATE = 250
"""HIL_SENSOR a second: at 500 a PX4 with stock parameters answers every other one."""
SIMULATOR, OFFBOARD, REMOTE = 4560, 14540, 14580
SET_MODE, ARM, MESSAGE_INTERVAL, REQUEST_MESSAGE = 176, 400, 511, 512
IMU, MAGNETOMETER, BAROMETER = 0x03F, 0x1C0, 0x1A00
OFFBOARD_MODE = 6


# Frames


def turned(v: np.ndarray) -> np.ndarray:
    """East-north-up to north-east-down, or back."""
    return np.stack([v[..., 1], v[..., 0], -v[..., 2]], -1)


def flipped(v: np.ndarray) -> np.ndarray:
    """Forward-left-up to forward-right-down, or back."""
    return v * np.array([1.0, -1.0, -1.0])


def attitude_ned(q: np.ndarray) -> np.ndarray:
    """An attitude from forward-left-up to east-north-up, as one from forward-right-down to north-east-down; or back.

    Turning the world's axes about the line between x and y, and the body's about x, by half a turn each.
    """
    w, x, y, z = (q[..., k] for k in range(4))
    return math.sqrt(0.5) * np.stack([w + z, x + y, x - y, w - z], -1)


# The program


@dataclass(frozen=True)
class Px4:
    """Where PX4 is on this machine."""

    binary: Path
    etc: Path
    version: str

    @classmethod
    def find(cls, named: str = "") -> "Px4":
        """The one named, or that of SLIPSTREAM_PX4: the executable, or the folder of a build."""
        named = named or os.environ.get("SLIPSTREAM_PX4", "")
        if not named:
            raise PlantError(f"PX4 is not named. {HOW}")
        path = Path(named).expanduser()
        binary = path / "bin" / "px4" if path.is_dir() else path
        if not binary.is_file() or not os.access(binary, os.X_OK):
            raise PlantError(f"{binary} is no program that can be run. {HOW}")
        binary = binary.resolve()
        etc = Path(os.environ.get("SLIPSTREAM_PX4_ETC", "") or binary.parent.parent / "etc")
        if not (etc / "init.d-posix").is_dir():
            raise PlantError(f"{etc} is not PX4's etc folder (it has no init.d-posix); name it by SLIPSTREAM_PX4_ETC")
        return cls(binary, etc, version_of(binary))

    def check(self) -> None:
        """Refuse a version that is known not to work."""
        numbers = re.match(r"v?(\d+)\.(\d+)", self.version)
        if numbers and (int(numbers[1]), int(numbers[2])) < (1, 14):
            raise PlantError(f"this is PX4 {self.version}; the bridge needs 1.14 or newer, best 1.17. {HOW}")


HOW = (
    "Get PX4 1.17: git clone --recursive --branch v1.17.0 https://github.com/PX4/PX4-Autopilot, then in that folder "
    "`make px4_sitl_default`, and name the result: export SLIPSTREAM_PX4=PX4-Autopilot/build/px4_sitl_default"
)


def version_of(binary: Path) -> str:
    """The release a PX4 says it is, read from its file; unknown if it does not say."""
    try:
        found = re.findall(rb"\x00(v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)\x00", binary.read_bytes())
    except OSError:
        return "unknown"
    return max(found, key=lambda tag: (found.count(tag), tag)).decode() if found else "unknown"


def parameters(vehicle: Quadrotor, cascade: Cascade) -> dict[str, str]:
    """What PX4 is told about the vehicle: where its rotors are, and gains where they are not the stock ones."""
    ahead, aside = vehicle.arm
    told: dict[str, float] = {
        "COM_RCL_EXCEPT": 4, "NAV_DLL_ACT": 0, "COM_DISARM_PRFLT": -1, "COM_DISARM_LAND": -1, "SDLOG_MODE": -1,
    }  # fmt: skip
    stock = Cascade()
    if cascade != stock:
        for axis, name in enumerate(("ROLL", "PITCH", "YAW")):
            told[f"MC_{name}RATE_P"] = cascade.rate_gain[axis]
            told[f"MC_{name}RATE_I"] = cascade.rate_integral[axis]
            told[f"MC_{name}RATE_D"] = cascade.rate_damping[axis]
            told[f"MC_{name}_P"] = cascade.attitude_gain[axis]
        hover = float(cascade.bent(vehicle.hover_speed / vehicle.max_speed))
        told |= {
            "THR_MDL_FAC": cascade.thrust_model, "MPC_THR_HOVER": hover, "MC_YAW_TQ_CUTOFF": cascade.yaw_torque_cutoff,
            "IMU_GYRO_CUTOFF": cascade.gyroscope_cutoff, "IMU_DGYRO_CUTOFF": cascade.spin_cutoff,
        }  # fmt: skip
        corners = ((ahead, aside, 1.0), (-ahead, -aside, 1.0), (ahead, -aside, -1.0), (-ahead, aside, -1.0))
        for k, (x, y, spin) in enumerate(corners):
            told |= {
                f"CA_ROTOR{k}_PX": x, f"CA_ROTOR{k}_PY": y, f"CA_ROTOR{k}_KM": spin * vehicle.torque_per_thrust,
            }  # fmt: skip
    return {f"PX4_PARAM_{name}": f"{value:.6g}" for name, value in told.items()}


def listening(port: int) -> socket.socket:
    """A server on loopback, or who is in the way."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", port))
        server.listen(1)
    except OSError as error:
        server.close()
        raise PlantError(
            f"port {port} is taken: another simulator or PX4 uses it. End that one, or choose others by --instance N"
        ) from error
    return server


class Station:
    """Where PX4s send what they have to say: a port for each of the first ten, one port for all others."""

    def __init__(self, port: int) -> None:
        self.pilots: list[Autopilot] = []
        self.heard = mavlink.Listener()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind(("127.0.0.1", port))
        except OSError as error:
            self.socket.close()
            raise PlantError(
                f"UDP port {port} is taken: a ground station or another simulator uses it. "
                "End that one, or choose others by --instance N"
            ) from error
        self.socket.setblocking(False)

    def hear(self) -> None:
        """Everything that has arrived, to whom it concerns."""
        while True:
            try:
                data, _ = self.socket.recvfrom(65536)
            except OSError:
                return
            for message in self.heard.feed(data):
                for pilot in self.pilots:
                    if pilot.instance + 1 == message.system:
                        pilot.take(message)


class Autopilot:
    """One PX4: its process, the simulator link and the offboard link."""

    def __init__(self, px4: Px4, instance: int, told: dict[str, str], stations: dict[int, Station]) -> None:
        self.px4, self.instance, self.told, self.stations = px4, instance, told, stations
        self.process: Process | None = None
        self.server: socket.socket | None = None
        self.conn: socket.socket | None = None
        self.trouble = ""
        self.missed = self.restarts = 0

    # Starting and ending

    def start(self) -> None:
        """Listen first, then start PX4 in a fresh folder."""
        self.end()
        self.server = listening(SIMULATOR + self.instance)
        port = OFFBOARD + min(self.instance, 9)
        if port not in self.stations:
            self.stations[port] = Station(port)
        self.station = self.stations[port]
        self.station.pilots.append(self)
        self.sent, self.said = mavlink.Speaker(), mavlink.Speaker()
        self.heard = mavlink.Listener()
        self.time_us, self.answered, self.replies = 1_000_000, 0, 0
        self.signals = np.zeros(4)
        self.armed = self.offboard = self.version_asked = False
        self.position: np.ndarray | None = None
        self.velocity, self.attitude, self.rates = np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(3)
        self.texts: list[str] = []
        self.trouble, self.silent = "", 0
        environment = self.told | {"PX4_SIM_MODEL": "none_iris", "PX4_SIM_HOSTNAME": "127.0.0.1"}
        words = [str(self.px4.binary), "-i", str(self.instance), "-d"]
        self.process = Process([*words, str(self.px4.etc)], environment=environment)

    def end(self) -> None:
        """Everything this opened is closed, and the process is gone."""
        for part in (self.conn, self.server):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()
        for port, station in list(self.stations.items()):
            station.pilots = [pilot for pilot in station.pilots if pilot is not self]
            if not station.pilots:
                station.socket.close()
                del self.stations[port]
        self.conn = self.server = None
        if self.process is not None:
            self.process.end()
            self.process = None

    def fail(self, trouble: str) -> None:
        """It cannot go on: say why once, and let go."""
        if not self.trouble:
            words = self.process.last_words() if self.process is not None else ""
            self.trouble = trouble + (f"; PX4's last words: {words.splitlines()[-1]}" if words else "")
        self.signals = np.zeros(4)
        self.end()

    @property
    def up(self) -> bool:
        return not self.trouble

    # The simulator link

    def send(self, data: bytes) -> None:
        """Sensor messages; before PX4 has connected, to nobody."""
        if self.conn is None and self.server is not None:
            ready, _, _ = select.select([self.server], [], [], 0.002)
            if ready:
                self.conn, _ = self.server.accept()
                self.conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.conn is None:
            return
        try:
            self.conn.settimeout(5.0)
            self.conn.sendall(data)
        except OSError as error:
            self.fail(f"PX4 {self.instance} closed its link ({error})")

    def wait(self, patience: float) -> bool:
        """Until PX4 has answered the newest sensor message, but no longer than that."""
        if self.conn is None:
            return False
        deadline = time.perf_counter() + patience
        while self.answered < self.time_us:
            left = deadline - time.perf_counter()
            if left <= 0.0:
                return False
            ready, _, _ = select.select([self.conn], [], [], left)
            if not ready:
                return False
            try:
                data = self.conn.recv(65536)
            except OSError as error:
                self.fail(f"PX4 {self.instance} closed its link ({error})")
                return False
            if not data:
                code = self.process.child.poll() if self.process else None
                self.fail(f"PX4 {self.instance} ended" + ("" if code is None else f" with code {code}"))
                return False
            for message in self.heard.feed(data):
                if message.kind is mavlink.HIL_ACTUATOR_CONTROLS:
                    self.answered = max(self.answered, message.values[0])
                    self.replies += 1
                    self.signals = np.clip(np.array(message.values[2:6]), 0.0, 1.0)
                    self.armed = bool(message.values[18] & 128)
        return True

    # The offboard link

    def say(self, kind: mavlink.Kind, *values: Any) -> None:
        with contextlib.suppress(OSError):
            self.station.socket.sendto(self.said.pack(kind, *values), ("127.0.0.1", REMOTE + self.instance))

    def order(self, command: int, *numbers: float) -> None:
        padded = (*numbers, *[0.0] * (7 - len(numbers)))
        self.say(mavlink.COMMAND_LONG, *padded, command, self.instance + 1, 1, 0)

    def take(self, message: mavlink.Message) -> None:
        if message.kind is mavlink.LOCAL_POSITION_NED:
            self.position = np.array(message.values[1:4])
            self.velocity = np.array(message.values[4:7])
        elif message.kind is mavlink.ATTITUDE_QUATERNION:
            self.attitude = np.array(message.values[1:5])
            self.rates = np.array(message.values[5:8])
        elif message.kind is mavlink.HEARTBEAT and message["autopilot"] == 12:
            self.offboard = (message["custom_mode"] >> 16) & 0xFF == OFFBOARD_MODE
        elif message.kind is mavlink.STATUSTEXT:
            self.texts = [*self.texts[-9:], message["text"].split(b"\0")[0].decode(errors="replace")]
        elif message.kind is mavlink.AUTOPILOT_VERSION:
            n = message["flight"]
            self.px4 = replace(self.px4, version=f"v{n >> 24}.{n >> 16 & 255}.{n >> 8 & 255}")

    def greet(self) -> None:
        """Once a simulated second: we are here, and this is what we want to hear."""
        self.say(mavlink.HEARTBEAT, 0, 6, 8, 0, 4, 3)
        if not self.version_asked and self.position is not None:
            for number in (mavlink.LOCAL_POSITION_NED.number, mavlink.ATTITUDE_QUATERNION.number):
                self.order(MESSAGE_INTERVAL, number, 10_000.0)
            self.order(REQUEST_MESSAGE, mavlink.AUTOPILOT_VERSION.number)
            self.version_asked = True

    def target(self, setpoint: Setpoint, vehicle: Quadrotor, cascade: Cascade, origin: np.ndarray) -> None:
        """A setpoint of one vehicle, in PX4's words."""
        if isinstance(setpoint, Rotors):
            raise PlantError("PX4 takes no rotor speeds; train with --task.action rates or velocity to fly it")
        now, who = self.time_us // 1000, (self.instance + 1, 1)
        if isinstance(setpoint, VelocitySetpoint):
            v = turned(np.array(setpoint.velocity.parts, float))
            turn = -float(setpoint.yaw_rate)
            self.say(mavlink.SET_POSITION_TARGET, now, 0, 0, 0, *v, 0, 0, 0, 0, turn, 1479, *who, 1)
        elif isinstance(setpoint, PositionSetpoint):
            p = turned(np.array(setpoint.position.parts, float) - origin)
            v = turned(np.array(setpoint.velocity.parts, float))
            yaw = 0.5 * math.pi - float(setpoint.yaw)
            self.say(mavlink.SET_POSITION_TARGET, now, *p, *v, 0, 0, 0, yaw, 0, 2496, *who, 1)
        else:
            r = flipped(np.array(setpoint.rates.parts, float))
            share = min(max(float(setpoint.thrust) * 0.25 / vehicle.max_thrust, 0.0), 1.0)
            signal = float(cascade.bent(float(vehicle.speed_for(share * vehicle.max_thrust)) / vehicle.max_speed))
            self.say(mavlink.SET_ATTITUDE_TARGET, now, 1, 0, 0, 0, *r, signal, *who, 128)


# Sensors


@dataclass(frozen=True)
class Sensors:
    """How well the sensors work. Noise is always on: PX4 calls a quiet sensor stale."""

    force_noise: float = 0.05
    rates_noise: float = 0.004
    field_noise: float = 0.003
    height_noise: float = 0.15
    place_noise: float = 0.1
    speed_noise: float = 0.02
    force_limit: float = 15.5 * GRAVITY
    rates_limit: float = math.radians(1990.0)

    def feel(self, flight: Flight, before: Vec3, noise: Any) -> list[Any]:
        """Of one vehicle, forward-right-down: specific force, rates and magnetic field, within what PX4 can hold.

        `noise` is nine standard Gaussian numbers; `before` the velocity one message ago, so that a contact is felt.
        """
        push = (flight.velocity - before) * float(RATE) + Vec3(0.0, 0.0, GRAVITY)
        force = flight.attitude.unrotate(push).parts
        field = flight.attitude.unrotate(Vec3(*(float(x) for x in turned(FIELD)))).parts
        signs = (1.0, -1.0, -1.0)
        felt = [s * f + self.force_noise * n for s, f, n in zip(signs, force, noise[:3], strict=True)]
        spin = [s * r + self.rates_noise * n for s, r, n in zip(signs, flight.rates.parts, noise[3:6], strict=True)]
        pull = [s * m + self.field_noise * n for s, m, n in zip(signs, field, noise[6:], strict=True)]
        return [
            *(jnp.clip(x, -self.force_limit, self.force_limit) for x in felt),
            *(jnp.clip(x, -self.rates_limit, self.rates_limit) for x in spin),
            *pull,
        ]


def pressure_at(height: float) -> float:
    """Of the standard atmosphere, hPa."""
    return 1013.25 * (1.0 - 2.25577e-5 * height) ** 5.25588


BOOT, REST, ARMED, CLIMB = 30.0, 3.0, 45.0, 90.0
"""Seconds a PX4 has: to answer (of the wall), to rest, to arm, and to reach its start (simulated)."""


@dataclass
class Waking:
    """How far a PX4 is on its way to the start of its episode; times are its own, but for the first."""

    started: float
    answered: float = 0.0
    asked: float = 0.0
    there: float = 0.0
    ready: bool = False


@dataclass
class Counts:
    """What an evaluation on PX4 was like."""

    steps: int = 0
    seconds: float = 0.0
    simulated: float = 0.0
    missed: int = 0
    restarts: int = 0
    failures: list[str] = field(default_factory=list)
    arming: list[float] = field(default_factory=list)
    version: str = ""


class Px4Plant:
    """PX4s in lockstep, each with a MuJoCo vehicle."""

    name = "px4"

    def __init__(
        self,
        px4: str = "",
        instances: int = 2,
        first: int = 0,
        physics_rate: int = 500,
        patience: float = 0.2,
        seed: int = 0,
        sensors: Sensors = Sensors(),
    ) -> None:
        self.sensors = sensors
        self.px4 = Px4.find(px4)
        self.px4.check()
        if instances < 1 or first < 0:
            raise ValueError("at least 1 instance is needed, and the first is not negative")
        self.instances, self.first, self.rate, self.patience, self.seed = instances, first, physics_rate, patience, seed
        self.width = 1
        self.pilots: list[Autopilot] = []
        self.bodies: Bodies | None = None
        self.counts = Counts(version=self.px4.version)
        self._task: Any = None
        self.lost: np.ndarray | None = None

    def adapt(self, task: Task) -> Task:
        self.width = max(1, self.instances // task.spec.agents)
        return flown_by_vehicles(task, self.name)

    def _compile(self, task: Any) -> None:
        if task is self._task:
            return
        self._task, vehicle = task, task.airframe
        self.vehicle, self.cascade = vehicle, Cascade().suited(vehicle)
        shape = (-1, *agents_of(task))
        self._told = jax.jit(lambda s, c: (flat(jax.vmap(task.setpoints)(s, c)), flat(jax.vmap(task.air)(s))))
        self._settled = jax.jit(
            lambda s, c, f: jax.vmap(task.settled)(s, c, jax.tree.map(lambda x: jnp.reshape(x, shape), f))
        )
        self._around = jax.jit(jax.vmap(task.surroundings))

        def push(columns: Any, rotors: Any, signals: Any, air: Any, variation: Variation) -> Any:
            flight = flights_of(columns, Rotors(*rotors))
            target = Rotors(*(signals * vehicle.max_speed))
            one = jax.vmap(partial(pushed, vehicle, dt=1.0 / self.rate))
            after, thrusts, wrench = one(flight, target, Vec3(*air), variation)
            return jnp.stack(after.parts), thrusts, wrench

        def feel(columns: Any, before: Any, noise: Any) -> Any:
            flight = flights_of(columns, Rotors(*before, before[0]))
            return jnp.stack(jax.vmap(self.sensors.feel)(replace(flight, rotors=None), Vec3(*before), noise), -1)

        self._push, self._feel = jax.jit(push), jax.jit(feel)

    # Flying

    def start(self, task: Any, states: Any) -> Any:
        """Boot, arm and bring every vehicle to its start; those that start on the ground stay there, armed."""
        began = time.perf_counter()
        self._compile(task)
        flights = jax.device_get(flat(jax.vmap(task.flights)(states)))
        self.variation = flat(jax.vmap(task.variations)(states))
        agents, count = task.spec.agents, flights.position.x.shape[0]
        worlds = count // agents
        around = jax.device_get(self._around(states))
        scenes = [jax.tree.map(lambda x, i=i: x[i], around) for i in range(worlds)]
        self.close()
        self.bodies = Bodies(self.vehicle, scenes, agents, 1.0 / self.rate)
        self.starts = np.stack(flights.position.parts, -1).astype(float)
        q = flights.attitude
        yaw = np.arctan2(2.0 * (q.w * q.z + q.x * q.y), 1.0 - 2.0 * (q.y**2 + q.z**2))
        self.yaws = yaw
        ground = self.bodies.ground_below(self.starts + np.array([0.0, 0.0, 0.5]))
        self.grounded = self.starts[:, 2] - ground < 1.0
        self.origins = np.stack([self.starts[:, 0], self.starts[:, 1], ground + self.vehicle.foot_drop], -1)
        self.rotors, self.air = np.zeros((4, count), np.float32), np.zeros((3, count), np.float32)
        self.generator = np.random.default_rng(self.seed)
        self.tick = 0
        self._held: Any = None
        self.bodies.put(self._resting(np.arange(count)))
        self.before = self.bodies.get()[7:10]
        told = parameters(self.vehicle, self.cascade)
        stations: dict[int, Station] = {}
        self.pilots = [Autopilot(self.px4, self.first + k, told, stations) for k in range(count)]
        for pilot in self.pilots:
            pilot.start()
        self._prepare()
        self.lost = np.zeros((worlds, *agents_of(task)), np.bool_)
        self._note_losses()
        self.counts.seconds += time.perf_counter() - began
        self._states = states
        nothing = jax.vmap(task.command)(states, idle_actions(task, worlds))[1]
        self._held = states, nothing
        return self.sense()

    def _resting(self, which: np.ndarray) -> Flight:
        """Those vehicles, standing where their PX4s wake up."""
        columns = np.zeros((13, len(which)))
        columns[:3] = self.origins[which].T
        columns[3], columns[6] = np.cos(0.5 * self.yaws[which]), np.sin(0.5 * self.yaws[which])
        return flights_of(columns, Rotors(*np.zeros((4, len(which)))))  # pyright: ignore[reportArgumentType]

    def _prepare(self) -> None:
        """Every PX4 booted, armed, in offboard and where its episode begins; what fails is started again, twice."""
        wakings = [Waking(time.perf_counter()) for _ in self.pilots]
        while not all(w.ready if p.up else p.restarts >= 2 for w, p in zip(wakings, self.pilots, strict=True)):
            self._advance()
            where = self.bodies.get()  # pyright: ignore[reportOptionalMemberAccess]
            for k, (pilot, waking) in enumerate(zip(self.pilots, wakings, strict=True)):
                if pilot.up:
                    self._wake(k, pilot, waking, where[:, k])
                elif pilot.restarts < 2:
                    self._again(k)
                    wakings[k] = Waking(time.perf_counter())

    def _wake(self, k: int, pilot: "Autopilot", waking: "Waking", where: np.ndarray) -> None:
        """One look at a PX4 on its way to the start of its episode."""
        now = 1e-6 * pilot.time_us
        if not pilot.replies:
            if time.perf_counter() - waking.started > BOOT:
                pilot.fail(f"PX4 {pilot.instance} did not answer within {BOOT:g} s of its start")
            return
        waking.answered = waking.answered or now
        since = now - waking.answered
        if self.tick % 5 == 0:
            self._hold(k)
        if since <= REST:
            return
        if pilot.armed and pilot.offboard:
            off = np.linalg.norm(where[:3] - self.starts[k])
            near = self.grounded[k] or (off < 0.4 and np.linalg.norm(where[7:10]) < 0.4)
            waking.there = (waking.there or now) if near else 0.0
            if near and now - waking.there > 0.5 and not waking.ready:
                waking.ready = True
                self.counts.arming.append(since)
            elif since > REST + ARMED + CLIMB:
                pilot.fail(f"PX4 {pilot.instance} did not reach its start: {off:.1f} m short")
            return
        waking.ready, waking.there = False, 0.0
        if since > REST + ARMED:
            why = "; ".join(pilot.texts[-3:]) or "it gave no reason"
            pilot.fail(f"PX4 {pilot.instance} did not arm within {ARMED:g} s: {why}")
        elif pilot.position is not None and now - waking.asked >= 1.0:
            waking.asked = now
            pilot.order(SET_MODE, 1.0, float(OFFBOARD_MODE))
            if pilot.offboard:
                pilot.order(ARM, 1.0)

    def _again(self, k: int) -> None:
        """Start a PX4 anew before its flight, with its vehicle at rest; after the second time it stays lost."""
        pilot = self.pilots[k]
        pilot.restarts += 1
        self.counts.restarts += 1
        self.counts.failures.append(pilot.trouble)
        self.bodies.put_one(k, self._resting(np.array([k])))  # pyright: ignore[reportOptionalMemberAccess]
        self.rotors[:, k] = 0.0
        pilot.start()

    def _hold(self, k: int) -> None:
        """Before the flight: stay at the start."""
        pilot = self.pilots[k]
        if self.grounded[k]:
            pilot.target(VelocitySetpoint(Vec3(0.0, 0.0, 0.0), 0.0), self.vehicle, self.cascade, self.origins[k])
            return
        goal = PositionSetpoint(Vec3(*self.starts[k]), Vec3(0.0, 0.0, 0.0), self.yaws[k])
        pilot.target(goal, self.vehicle, self.cascade, self.origins[k])

    def command(self, states: Any, commands: Any) -> None:
        began = time.perf_counter()
        setpoint, air = jax.device_get(self._told(states, commands))
        self._held = states, commands
        self.air = np.stack(air.parts).astype(np.float32)
        rows = [jax.tree.map(lambda x, k=k: x[k], setpoint) for k in range(len(self.pilots))]
        physics = round(self._task.spec.control_dt * self.rate)
        per_message = self.rate // RATE
        due = self.tick_physics + physics
        first = True
        while self.tick_physics < due:
            if first or self.tick % 5 == 0:
                for pilot, row in zip(self.pilots, rows, strict=True):
                    if pilot.up:
                        pilot.target(row, self.vehicle, self.cascade, np.zeros(3))
                first = False
            self._advance(min(per_message, due - self.tick_physics))
        self._note_losses()
        self.counts.seconds += time.perf_counter() - began
        self.counts.simulated += self._task.spec.control_dt

    tick_physics = 0

    def _advance(self, most: int | None = None) -> None:
        """Physics up to the next sensor message or by `most` steps, and the message if it is due."""
        bodies, per = self.bodies, self.rate // RATE
        assert bodies is not None
        steps = per if most is None else most
        for _ in range(steps):
            signals = np.empty((4, len(self.pilots)), np.float32)
            signals[MOTORS, :] = np.array([pilot.signals for pilot in self.pilots]).T
            rotors, thrusts, wrench = self._push(bodies.get(), self.rotors, signals, self.air, self.variation)
            self.rotors = np.array(rotors)
            bodies.step(np.asarray(thrusts), np.asarray(wrench))
            self.tick_physics += 1
            if self.tick_physics % per == 0:
                self._exchange()

    def _exchange(self) -> None:
        """One sensor message to every PX4, and its answer."""
        assert self.bodies is not None
        columns, count, sensors = self.bodies.get(), len(self.pilots), self.sensors
        noise = self.generator.standard_normal((count, 16), np.float32)
        felt = np.asarray(self._feel(columns, self.before, noise[:, :9])).tolist()
        self.before = columns[7:10]
        slow, fix = self.tick % 5 == 0, self.tick % 25 == 0  # 50 and 10 Hz
        fields = IMU | (MAGNETOMETER | BAROMETER if slow else 0)
        place, velocity = turned(columns[:3].T.astype(float)), turned(columns[7:10].T.astype(float))
        truth, rates = attitude_ned(columns[3:7].T), flipped(columns[10:13].T)
        heights = HOME[2] - place[:, 2] + sensors.height_noise * noise[:, 9]
        for k, pilot in enumerate(self.pilots):
            if not pilot.up:
                continue
            pilot.time_us += 1_000_000 // RATE
            data = b""
            if fix:
                at = place[k] + sensors.place_noise * noise[k, 10:13]
                speed = velocity[k] + sensors.speed_noise * noise[k, 13:]
                data = pilot.sent.pack(mavlink.HIL_GPS, *fix_of(pilot.time_us, at, speed))
            if slow:
                now = state_of(pilot.time_us, truth[k], rates[k], place[k], velocity[k])
                data += pilot.sent.pack(mavlink.HIL_STATE, *now)
            height = float(heights[k])
            data += pilot.sent.pack(
                mavlink.HIL_SENSOR, pilot.time_us, *felt[k],
                pressure_at(height), 0.0, height, 20.0, fields, 0,
            )  # fmt: skip
            pilot.send(data)
        booted = False
        for pilot in self.pilots:
            if not pilot.up:
                continue
            if not pilot.replies:
                pilot.wait(0.002)
                continue
            booted = True
            if pilot.wait(self.patience):
                pilot.silent = 0
            elif pilot.up:
                pilot.missed += 1
                self.counts.missed += 1
                pilot.silent += 1
                if pilot.silent * self.patience > 5.0:
                    pilot.fail(f"PX4 {pilot.instance} has not answered for {pilot.silent * self.patience:.0f} s")
            pilot.station.hear()
            if self.tick % RATE == 0:
                pilot.greet()
        self.tick += 1
        self.counts.steps += booted

    def _note_losses(self) -> None:
        assert self.lost is not None
        down = np.array([not pilot.up for pilot in self.pilots]).reshape(self.lost.shape)
        for k, pilot in enumerate(self.pilots):
            if not pilot.up and not self.lost.reshape(-1)[k]:
                self.counts.failures.append(pilot.trouble)
            elif pilot.up:
                self.counts.version = pilot.px4.version
        self.lost = self.lost | down

    @property
    def _rotors(self) -> Rotors:
        return Rotors(*self.rotors)  # pyright: ignore[reportArgumentType]

    def sense(self) -> Any:
        assert self.bodies is not None
        return self._settled(*self._held, flights_of(self.bodies.get(), self._rotors))

    def seen(self) -> Any:
        """What PX4's own estimators say."""
        for pilot in self.pilots:
            if pilot.up:
                pilot.station.hear()
        rows = []
        for pilot, origin in zip(self.pilots, self.origins, strict=True):
            place = np.zeros(3) if pilot.position is None else pilot.position
            q = attitude_ned(pilot.attitude)
            q = q if q[0] >= 0.0 else -q
            rows.append([*(turned(place) + origin), *q, *turned(pilot.velocity), *flipped(pilot.rates)])
        columns = np.array(rows, np.float32).T
        return self._settled(*self._held, flights_of(columns, self._rotors))

    def figures(self) -> dict[str, Any]:
        c = self.counts
        flown = max(c.seconds, 1e-9)
        return {
            "px4": {
                "version": c.version,
                "instances": self.instances,
                "steps_per_second": round(c.steps / flown, 1),
                "times_real_time": round(c.steps / RATE / flown, 2),
                "missed_replies": c.missed,
                "restarts": c.restarts,
                "failures": c.failures,
                "ready_after": round(float(np.mean(c.arming)), 2) if c.arming else None,
            }
        }

    def close(self) -> None:
        for pilot in self.pilots:
            pilot.end()
        self.pilots = []
        if self.bodies is not None:
            self.bodies.close()
            self.bodies = None


def fix_of(time_us: int, place: np.ndarray, speed: np.ndarray) -> tuple[int, ...]:
    """What a satellite receiver says at a place, north-east-down from home."""
    north, east, down = place
    lat = HOME[0] + math.degrees(north / EARTH)
    lon = HOME[1] + math.degrees(east / (EARTH * math.cos(math.radians(HOME[0]))))
    v = [max(min(round(100.0 * part), 32767), -32768) for part in speed]
    over_ground = min(round(100.0 * math.hypot(speed[0], speed[1])), 65534)
    return (
        time_us, round(lat * 1e7), round(lon * 1e7), round(1000.0 * (HOME[2] - down)), 90, 140, over_ground, *v,
        65535, 3, 12,
    )  # fmt: skip


def state_of(time_us: int, q: np.ndarray, rates: np.ndarray, place: np.ndarray, speed: np.ndarray) -> tuple[Any, ...]:
    """The truth, for PX4's log."""
    north, east, down = place
    lat = HOME[0] + math.degrees(north / EARTH)
    lon = HOME[1] + math.degrees(east / (EARTH * math.cos(math.radians(HOME[0]))))
    v = [max(min(round(100.0 * part), 32767), -32768) for part in speed]
    return (
        time_us, *q, *rates, round(lat * 1e7), round(lon * 1e7), round(1000.0 * (HOME[2] - down)), *v, 0, 0, 0, 0, 0,
    )  # fmt: skip
