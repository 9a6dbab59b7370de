"""One PX4: where it is on this machine, what it is told at its start, its process and its two links."""

import contextlib
import math
import os
import re
import select
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...dynamics.control_modes import PositionSetpoint, Setpoint, VelocitySetpoint
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import Quadrotor, Rotors
from .. import mavlink
from ..plant import PlantError
from ..sitl import Process
from .frames import flipped, turned

SIMULATOR, OFFBOARD, REMOTE = 4560, 14540, 14580
"""Ports of the first instance: ours for sensors, ours for what it says, its own for what it is told."""
SET_MODE, ARM, MESSAGE_INTERVAL, REQUEST_MESSAGE = 176, 400, 511, 512
OFFBOARD_MODE = 6


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
    """The release a PX4 says it is, by the header its build left beside it or by its file; unknown if neither says."""
    with contextlib.suppress(OSError):
        header = binary.parents[1] / "src" / "lib" / "version" / "build_git_version.h"
        if told := re.search(r'PX4_GIT_TAG_STR "(v[^"]+)"', header.read_text(errors="replace")):
            return told[1]
    try:
        data = binary.read_bytes()
    except OSError:
        return "unknown"
    # Its tests bring dozens of made-up versions into the file; its own stands before the name of the system.
    tag = rb"\x00(v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)\x00"
    found = re.findall(tag + rb"Linux\x00", data) or re.findall(tag, data)
    return max(found, key=lambda tag: (found.count(tag), tag)).decode() if found else "unknown"


def parameters(vehicle: Quadrotor, controller: Px4Controller) -> dict[str, str]:
    """What PX4 is told about the vehicle: where its rotors are, and gains where they are not the stock ones."""
    ahead, aside = vehicle.arm
    told: dict[str, float] = {
        "COM_RCL_EXCEPT": 4, "NAV_DLL_ACT": 0, "COM_DISARM_PRFLT": -1, "COM_DISARM_LAND": -1, "SDLOG_MODE": -1,
    }  # fmt: skip
    stock = Px4Controller()
    if controller != stock:
        for axis, name in enumerate(("ROLL", "PITCH", "YAW")):
            told[f"MC_{name}RATE_P"] = controller.rate_p[axis]
            told[f"MC_{name}RATE_I"] = controller.rate_i[axis]
            told[f"MC_{name}RATE_D"] = controller.rate_d[axis]
            told[f"MC_{name}_P"] = controller.attitude_p[axis]
        hover = float(controller.thrust_curve(vehicle.hover_speed / vehicle.max_speed))
        told |= {
            "THR_MDL_FAC": controller.thrust_model_factor, "MPC_THR_HOVER": hover, "MC_YAW_TQ_CUTOFF": controller.yaw_torque_cutoff,
            "IMU_GYRO_CUTOFF": controller.gyro_cutoff, "IMU_DGYRO_CUTOFF": controller.gyro_derivative_cutoff,
        }  # fmt: skip
        # Of yaw only the sense of rotation is told: PX4 scales the rest away, and gives up an axis that looks weak.
        corners = ((ahead, aside, 0.05), (-ahead, -aside, 0.05), (ahead, -aside, -0.05), (-ahead, aside, -0.05))
        for k, (x, y, spin) in enumerate(corners):
            told |= {f"CA_ROTOR{k}_PX": x, f"CA_ROTOR{k}_PY": y, f"CA_ROTOR{k}_KM": spin}
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
        self.restarts = 0

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
            self.trouble = trouble + (f"; PX4's last words: {words}" if words else "")
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

    def target(self, setpoint: Setpoint, vehicle: Quadrotor, controller: Px4Controller, origin: np.ndarray) -> None:
        """A setpoint of one vehicle, in PX4's words."""
        if isinstance(setpoint, Rotors):
            raise PlantError("PX4 takes no rotor speeds; train with --task.control-mode body_rates or velocity")
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
            signal = float(controller.thrust_curve(vehicle.signal_for(setpoint.thrust)))
            self.turn(np.array(setpoint.rates.parts, float), signal)

    def turn(self, rates: np.ndarray, signal: float) -> None:
        """Body rates, and a share of the thrust."""
        now, who = self.time_us // 1000, (self.instance + 1, 1)
        self.say(mavlink.SET_ATTITUDE_TARGET, now, 1, 0, 0, 0, *flipped(rates), signal, *who, 128)
