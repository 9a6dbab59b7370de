"""One PX4 instance: its executable, parameters, process, simulator link and offboard link."""

import contextlib
import math
import os
import re
import select
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...dynamics.control_modes import PositionSetpoint, Setpoint, VelocitySetpoint
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import Quadrotor, Rotors
from .. import mavlink
from ..plant import PlantError
from ..sitl import Process
from .frames import enu_to_ned, flu_to_frd

SIMULATOR_PORT, OFFBOARD_PORT, PX4_OFFBOARD_PORT = 4560, 14540, 14580
"""Ports of instance 0: ours for the simulator link (TCP), ours for the offboard link (UDP), and PX4's end of that."""
MAX_OFFBOARD_PORT = 9
"""PX4 instances with this number and higher all send to one offboard port."""
SET_MODE, ARM, MESSAGE_INTERVAL, REQUEST_MESSAGE = 176, 400, 511, 512
"""MAV_CMD numbers."""
OFFBOARD_MODE = 6
"""PX4's main mode in the custom mode of a heartbeat."""
PX4_AUTOPILOT = 12
"""MAV_AUTOPILOT_PX4."""
GROUND_STATION = (6, 8, 0, 0, 4, 3)
"""The fields of our heartbeat: MAV_TYPE_GCS, MAV_AUTOPILOT_INVALID, no mode, MAV_STATE_ACTIVE, MAVLink version 3."""
UNUSED_MESSAGES = (
    "ATTITUDE", "HIGHRES_IMU", "GLOBAL_POSITION_INT", "ODOMETRY", "GPS_RAW_INT", "ALTITUDE", "SERVO_OUTPUT_RAW",
    "VFR_HUD", "ATTITUDE_TARGET", "POSITION_TARGET_LOCAL_NED",
)  # fmt: skip
"""Messages that PX4 streams over its offboard link at 10 Hz and more, and that are switched off.

pymavlink decodes every message that arrives; decoding these took 5 % of the plant's CPU time.
"""
LOCAL_NED = 1
"""MAV_FRAME_LOCAL_NED."""
ARMED_FLAG = 128
"""MAV_MODE_FLAG_SAFETY_ARMED."""
VELOCITY_AND_YAW_RATE, POSITION_AND_YAW, BODY_RATES = 1479, 2496, 128
"""Type masks of setpoints: the parts to ignore. Position setpoints keep the velocity as feed-forward."""


@dataclass(frozen=True)
class Px4:
    """A PX4 simulator build on this machine."""

    binary: Path
    etc: Path
    version: str

    @classmethod
    def find(cls, path: str = "") -> "Px4":
        """The build at a path (executable or build folder), by default at the one that SLIPSTREAM_PX4 names."""
        path = path or os.environ.get("SLIPSTREAM_PX4", "")
        if not path:
            raise PlantError(f"the location of PX4 is not set. {INSTALL_HINT}")
        build = Path(path).expanduser()
        binary = build / "bin" / "px4" if build.is_dir() else build
        if not binary.is_file() or not os.access(binary, os.X_OK):
            raise PlantError(f"{binary} is not an executable file. {INSTALL_HINT}")
        binary = binary.resolve()
        etc = Path(os.environ.get("SLIPSTREAM_PX4_ETC", "") or binary.parent.parent / "etc")
        if not (etc / "init.d-posix").is_dir():
            raise PlantError(f"{etc} is not PX4's etc folder (it has no init.d-posix); set SLIPSTREAM_PX4_ETC to it")
        return cls(binary, etc, version_of(binary))

    def check(self) -> None:
        """Raise a PlantError for a version that is known not to work."""
        numbers = re.match(r"v?(\d+)\.(\d+)", self.version)
        if numbers and (int(numbers[1]), int(numbers[2])) < (1, 14):
            raise PlantError(
                f"this is PX4 {self.version}; the plant needs 1.14 or newer, preferably 1.17. {INSTALL_HINT}"
            )


INSTALL_HINT = (
    "To install PX4 1.17: git clone --recursive --branch v1.17.0 https://github.com/PX4/PX4-Autopilot, then in that "
    "folder `make px4_sitl_default`, and set: export SLIPSTREAM_PX4=PX4-Autopilot/build/px4_sitl_default"
)


def version_of(binary: Path) -> str:
    """The release of a PX4 build, read from its version header or from the executable; else "unknown"."""
    with contextlib.suppress(OSError):
        header = binary.parents[1] / "src" / "lib" / "version" / "build_git_version.h"
        if found := re.search(r'PX4_GIT_TAG_STR "(v[^"]+)"', header.read_text(errors="replace")):
            return found[1]
    try:
        data = binary.read_bytes()
    except OSError:
        return "unknown"
    # PX4's tests contain many made-up versions; the real one is followed by the name of the operating system.
    tag = rb"\x00(v\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)\x00"
    found = re.findall(tag + rb"Linux\x00", data) or re.findall(tag, data)
    return max(found, key=lambda tag: (found.count(tag), tag)).decode() if found else "unknown"


def parameters(vehicle: Quadrotor, controller: Px4Controller) -> dict[str, str]:
    """PX4 parameters as environment variables: rotor positions and gains, where they differ from the defaults."""
    forward, left = vehicle.arm
    values: dict[str, float] = {
        "COM_RCL_EXCEPT": 4, "NAV_DLL_ACT": 0, "COM_DISARM_PRFLT": -1, "COM_DISARM_LAND": -1, "SDLOG_MODE": -1,
    }  # fmt: skip
    if controller != Px4Controller():
        for axis, name in enumerate(("ROLL", "PITCH", "YAW")):
            values[f"MC_{name}RATE_P"] = controller.rate_p[axis]
            values[f"MC_{name}RATE_I"] = controller.rate_i[axis]
            values[f"MC_{name}RATE_D"] = controller.rate_d[axis]
            values[f"MC_{name}_P"] = controller.attitude_p[axis]
        values |= {
            "THR_MDL_FAC": controller.thrust_model_factor,
            "MPC_THR_HOVER": float(controller.thrust_curve(vehicle.hover_speed / vehicle.max_speed)),
            "MC_YAW_TQ_CUTOFF": controller.yaw_torque_cutoff,
            "IMU_GYRO_CUTOFF": controller.gyro_cutoff,
            "IMU_DGYRO_CUTOFF": controller.gyro_derivative_cutoff,
        }
        # Only the sign of the yaw moment matters: PX4 normalizes its magnitude, and ignores an axis that looks weak.
        corners = ((forward, left, 0.05), (-forward, -left, 0.05), (forward, -left, -0.05), (-forward, left, -0.05))
        for k, (x, y, moment) in enumerate(corners):
            values |= {f"CA_ROTOR{k}_PX": x, f"CA_ROTOR{k}_PY": y, f"CA_ROTOR{k}_KM": moment}
    return {f"PX4_PARAM_{name}": f"{value:.6g}" for name, value in values.items()}


def listen(port: int) -> socket.socket:
    """A TCP server on the loopback interface; raises a PlantError if the port is in use."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", port))
        server.listen(1)
    except OSError as error:
        server.close()
        raise PlantError(
            f"port {port} is taken by another simulator or PX4. Stop that one, or choose others with --first-instance N"
        ) from error
    return server


class OffboardSocket:
    """The UDP socket of the offboard link: one for each of the first ten instances, one for all others."""

    def __init__(self, port: int) -> None:
        self.autopilots: list[Autopilot] = []
        self.decoder = mavlink.Decoder()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind(("127.0.0.1", port))
        except OSError as error:
            self.socket.close()
            raise PlantError(
                f"UDP port {port} is taken by a ground station or another simulator. "
                "Stop that one, or choose others with --first-instance N (10 and higher share one port)"
            ) from error
        self.socket.setblocking(False)

    def receive(self) -> None:
        """Pass every message that has arrived to its autopilot."""
        while True:
            try:
                data, _ = self.socket.recvfrom(65536)
            except OSError:
                return
            for message in self.decoder.parse(data):
                for autopilot in self.autopilots:
                    if autopilot.instance + 1 == message.get_srcSystem():
                        autopilot.on_message(message)


class Autopilot:
    """One PX4 instance: its process, its simulator link and its offboard link."""

    def __init__(self, px4: Px4, instance: int, parameters: dict[str, str], sockets: dict[int, OffboardSocket]) -> None:
        self.px4, self.instance, self.parameters, self.sockets = px4, instance, parameters, sockets
        self.process: Process | None = None
        self.server: socket.socket | None = None
        self.connection: socket.socket | None = None
        self.failure = ""
        self.restarts = 0

    # Start and stop

    def start(self) -> None:
        """Listen for PX4, then start it in a fresh folder."""
        self.stop()
        self.server = listen(SIMULATOR_PORT + self.instance)
        port = OFFBOARD_PORT + min(self.instance, MAX_OFFBOARD_PORT)
        if port not in self.sockets:
            self.sockets[port] = OffboardSocket(port)
        self.offboard_socket = self.sockets[port]
        self.offboard_socket.autopilots.append(self)
        self.simulator_encoder, self.offboard_encoder = mavlink.Encoder(), mavlink.Encoder()
        self.decoder = mavlink.Decoder()
        self.time_us, self.answered_us, self.replies = 1_000_000, 0, 0
        self.motor_signals = np.zeros(4)
        self.armed = self.offboard = self.messages_requested = False
        self.position: np.ndarray | None = None
        self.velocity, self.attitude, self.rates = np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(3)
        self.status_texts: list[str] = []
        self.failure, self.missed_in_a_row = "", 0
        environment = self.parameters | {"PX4_SIM_MODEL": "none_iris", "PX4_SIM_HOSTNAME": "127.0.0.1"}
        command = [str(self.px4.binary), "-i", str(self.instance), "-d", str(self.px4.etc)]
        self.process = Process(command, environment=environment)

    def stop(self) -> None:
        """Close the links and end the process."""
        for part in (self.connection, self.server):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()
        for port, offboard_socket in list(self.sockets.items()):
            offboard_socket.autopilots = [other for other in offboard_socket.autopilots if other is not self]
            if not offboard_socket.autopilots:
                offboard_socket.socket.close()
                del self.sockets[port]
        self.connection = self.server = None
        if self.process is not None:
            self.process.stop()
            self.process = None

    def fail(self, reason: str) -> None:
        """Note the first reason why this instance cannot go on, and stop it."""
        if not self.failure:
            line = self.process.last_line() if self.process is not None else ""
            self.failure = reason + (f"; its last output: {line}" if line else "")
        self.motor_signals = np.zeros(4)
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it has not failed."""
        return not self.failure

    # The simulator link

    def send_sensors(self, data: bytes) -> None:
        """Send sensor messages, once PX4 has connected."""
        if self.connection is None and self.server is not None:
            ready, _, _ = select.select([self.server], [], [], 0.002)
            if ready:
                self.connection, _ = self.server.accept()
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.connection is None:
            return
        try:
            self.connection.settimeout(5.0)
            self.connection.sendall(data)
        except OSError as error:
            self.fail(f"PX4 {self.instance} closed its link ({error})")

    def wait_for_actuators(self, timeout: float) -> bool:
        """Whether PX4 answers the newest sensor message within `timeout` seconds."""
        if self.connection is None:
            return False
        deadline = time.perf_counter() + timeout
        while self.answered_us < self.time_us:
            left = deadline - time.perf_counter()
            if left <= 0.0:
                return False
            ready, _, _ = select.select([self.connection], [], [], left)
            if not ready:
                return False
            try:
                data = self.connection.recv(65536)
            except OSError as error:
                self.fail(f"PX4 {self.instance} closed its link ({error})")
                return False
            if not data:
                code = self.process.child.poll() if self.process else None
                self.fail(f"PX4 {self.instance} ended" + ("" if code is None else f" with code {code}"))
                return False
            for message in self.decoder.parse(data):
                if message.get_type() == "HIL_ACTUATOR_CONTROLS":
                    self.answered_us = max(self.answered_us, message.time_usec)
                    self.replies += 1
                    self.motor_signals = np.clip(np.array(message.controls[:4]), 0.0, 1.0)
                    self.armed = bool(message.mode & ARMED_FLAG)
        return True

    # The offboard link

    def send(self, name: str, *values: mavlink.Value, **fields: mavlink.Value) -> None:
        """Send one message over the offboard link; a lost datagram is no error."""
        with contextlib.suppress(OSError):
            data = self.offboard_encoder.pack(name, *values, **fields)
            self.offboard_socket.socket.sendto(data, ("127.0.0.1", PX4_OFFBOARD_PORT + self.instance))

    def send_command(self, command: int, *values: float) -> None:
        """Send a COMMAND_LONG; missing parameters are 0."""
        padded = (*values, *[0.0] * (7 - len(values)))
        self.send("COMMAND_LONG", self.instance + 1, 1, command, 0, *padded)

    def on_message(self, message: mavlink.Message) -> None:
        """Store what a message of the offboard link tells about PX4."""
        match message.get_type():
            case "LOCAL_POSITION_NED":
                self.position = np.array([message.x, message.y, message.z])
                self.velocity = np.array([message.vx, message.vy, message.vz])
            case "ATTITUDE_QUATERNION":
                self.attitude = np.array([message.q1, message.q2, message.q3, message.q4])
                self.rates = np.array([message.rollspeed, message.pitchspeed, message.yawspeed])
            case "HEARTBEAT" if message.autopilot == PX4_AUTOPILOT:
                self.offboard = (message.custom_mode >> 16) & 0xFF == OFFBOARD_MODE
            case "STATUSTEXT":
                self.status_texts = [*self.status_texts[-9:], message.text]
            case "AUTOPILOT_VERSION":
                n = message.flight_sw_version
                self.px4 = replace(self.px4, version=f"v{n >> 24}.{n >> 16 & 255}.{n >> 8 & 255}")

    def send_heartbeat(self) -> None:
        """Send our heartbeat; the first time after PX4 has a position, also choose the messages that it sends."""
        self.send("HEARTBEAT", *GROUND_STATION)
        if not self.messages_requested and self.position is not None:
            for name in ("LOCAL_POSITION_NED", "ATTITUDE_QUATERNION"):
                self.send_command(MESSAGE_INTERVAL, mavlink.message_id(name), 10_000.0)
            for name in UNUSED_MESSAGES:
                self.send_command(MESSAGE_INTERVAL, mavlink.message_id(name), -1.0)
            self.send_command(REQUEST_MESSAGE, mavlink.message_id("AUTOPILOT_VERSION"))
            self.messages_requested = True

    def send_setpoint(
        self, setpoint: Setpoint, vehicle: Quadrotor, controller: Px4Controller, origin: np.ndarray
    ) -> None:
        """Send the setpoint of one vehicle; `origin` is where PX4 has its local origin, in our world."""
        if isinstance(setpoint, Rotors):
            raise PlantError("PX4 takes no rotor speeds; train with --task.control-mode body_rates or velocity")
        now, target = self.time_us // 1000, (self.instance + 1, 1)
        if isinstance(setpoint, VelocitySetpoint):
            v = enu_to_ned(np.array(setpoint.velocity.parts, float))
            yaw_rate = -float(setpoint.yaw_rate)
            parts = (*[0.0] * 3, *v, *[0.0] * 3, 0.0, yaw_rate)
            self.send("SET_POSITION_TARGET_LOCAL_NED", now, *target, LOCAL_NED, VELOCITY_AND_YAW_RATE, *parts)
        elif isinstance(setpoint, PositionSetpoint):
            p = enu_to_ned(np.array(setpoint.position.parts, float) - origin)
            v = enu_to_ned(np.array(setpoint.velocity.parts, float))
            yaw = 0.5 * math.pi - float(setpoint.yaw)
            parts = (*p, *v, *[0.0] * 3, yaw, 0.0)
            self.send("SET_POSITION_TARGET_LOCAL_NED", now, *target, LOCAL_NED, POSITION_AND_YAW, *parts)
        else:
            thrust = float(controller.thrust_curve(vehicle.signal_for(setpoint.thrust)))
            self.send_rates(np.array(setpoint.rates.parts, float), thrust)

    def send_rates(self, rates: np.ndarray, thrust: float) -> None:
        """Send body rates and a normalized thrust."""
        now, target = self.time_us // 1000, (self.instance + 1, 1)
        level = (1.0, 0.0, 0.0, 0.0)
        self.send("SET_ATTITUDE_TARGET", now, *target, BODY_RATES, level, *flu_to_frd(rates), thrust)
