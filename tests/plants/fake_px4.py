"""A fake PX4: it keeps PX4's side of the protocol (lockstep, boot silence, arming checks) and can fly.

Started like PX4 (-i INSTANCE -d ETC). FAKE_PX4 names how it misbehaves: die:SECONDS and hang:SECONDS (simulated), mute,
noarm; once:FILE dies soon after it is first told a velocity, but only the first of its kind to come.
It knows where it is from HIL_STATE_QUATERNION, in place of an estimator.
"""

import math
import os
import socket
import sys
import time
from pathlib import Path

from slipstream.plants import mavlink as m

BOOT_SILENCE, STALE, LOSS, SWITCH = 20, 100, 1.0, 0.26
WEAK = 0.05 / 6.5
"""Rotors that yaw less than that are not used for it."""
HOVER = 0.72
ROLL, PITCH, YAW = (-1, 1, 1, -1), (1, -1, 1, -1), (1, 1, -1, -1)
FULL = 0x1BFF
POSITION_TARGET, ATTITUDE_TARGET = "SET_POSITION_TARGET_LOCAL_NED", "SET_ATTITUDE_TARGET"


class Fake:
    def __init__(self, instance, fault):
        self.instance, self.fault = instance, fault
        self.simulator_encoder, self.offboard_encoder = m.Encoder(1, 200), m.Encoder(instance + 1, 1)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 14580 + instance))
        self.udp.setblocking(False)
        self.remote = ("127.0.0.1", 14540 + min(instance, 9))
        self.heard, self.aired = m.Decoder(), m.Decoder()
        self.sensors, self.clock, self.same, self.last_force = 0, 0, 0, None
        self.armed = self.offboard = self.failsafe = False
        self.setpoint, self.setpoint_time = None, -1e9
        self.place_told, self.place_time, self.flown_time = None, -1e9, 1e9
        self.turns = abs(float(os.environ.get("PX4_PARAM_CA_ROTOR0_KM", "0.05"))) > WEAK
        self.update, self.fix = 0, False
        self.home, self.place, self.velocity = None, [0.0] * 3, [0.0] * 3
        self.q, self.rates = (1.0, 0.0, 0.0, 0.0), [0.0] * 3
        self.force_z, self.slow_integral = -9.8, 0.0

    def connect(self):
        while True:
            try:
                self.tcp = socket.create_connection(("127.0.0.1", 4560 + self.instance), 1.0)
                self.tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.tcp.settimeout(None)
                self.tcp.sendall(self.simulator_encoder.pack("HEARTBEAT", 2, 12, 0, 0, 0, 3))
                return
            except OSError:
                time.sleep(0.02)

    def run(self):
        self.connect()
        while True:
            data = self.tcp.recv(65536)
            if not data:
                break
            for message in self.heard.parse(data):
                if message.get_type() == "HIL_GPS":
                    self.fix = message.fix_type >= 3 and message.satellites_visible >= 6 and message.eph <= 300
                elif message.get_type() == "HIL_STATE_QUATERNION":
                    self.know(message)
                elif message.get_type() == "HIL_SENSOR":
                    self.step(message)
        # PX4 does not reconnect: it spins until somebody ends it.
        while True:
            time.sleep(1.0)

    def know(self, message):
        north = math.radians(message.lat * 1e-7) * 6_371_000.0
        east = math.radians(message.lon * 1e-7) * 6_371_000.0 * math.cos(math.radians(47.397742))
        here = [north, east, -1e-3 * message.alt]
        self.home = self.home or here
        self.place = [a - b for a, b in zip(here, self.home, strict=True)]
        self.velocity = [0.01 * v for v in (message.vx, message.vy, message.vz)]
        self.q = tuple(message.attitude_quaternion)

    def step(self, message):
        now = message.time_usec
        if now <= self.clock:
            print(f"the clock went from {self.clock} to {now}", flush=True)
            sys.exit(3)
        self.clock, self.sensors = now, self.sensors + 1
        fields = message.fields_updated
        for mask in (0x007, 0x038, 0x1C0, 0x1A00):
            # A group counts only if all of it is there.
            if fields & mask == mask:
                self.update |= mask
        force = (message.xacc, message.yacc, message.zacc)
        self.same = self.same + 1 if force == self.last_force else 0
        self.last_force, self.force_z = force, message.zacc
        self.rates = [message.xgyro, message.ygyro, message.zgyro]
        if abs(message.xacc) > 16 * 9.81 or max(map(abs, self.rates)) > math.radians(2000.0):
            print("an inertial reading does not fit its number", flush=True)
            sys.exit(4)
        seconds = 1e-6 * now
        kind, _, at = self.fault.partition(":")
        if kind == "once" and seconds > self.flown_time + 0.2 and not Path(at).exists():
            Path(at).touch()
            sys.exit(7)
        if kind == "die" and seconds > float(at):
            sys.exit(7)
        if kind == "hang" and seconds > float(at):
            time.sleep(3600.0)
        self.listen(seconds)
        if self.sensors <= BOOT_SILENCE or kind == "mute":
            return
        if self.armed and self.offboard and seconds - self.setpoint_time > LOSS:
            self.offboard, self.failsafe = False, True
            self.text("offboard signal lost")
        if self.same > STALE:
            self.armed = False
        signals = self.control(seconds) if self.armed else [0.0] * 4
        self.tcp.sendall(
            self.simulator_encoder.pack(
                "HIL_ACTUATOR_CONTROLS", now, [*signals, *[0.0] * 12], 1 | (128 if self.armed else 0), 1
            )
        )
        self.tell(seconds)

    # The offboard link

    def say(self, name, *values):
        self.udp.sendto(self.offboard_encoder.pack(name, *values), self.remote)

    def text(self, words):
        self.say("STATUSTEXT", 4, words.encode())

    def tell(self, seconds):
        if self.sensors % 5 == 0 and self.fix and self.update & FULL == FULL & ~0x400:
            stamp = int(1e3 * seconds)
            self.say("LOCAL_POSITION_NED", stamp, *self.place, *self.velocity)
            self.say("ATTITUDE_QUATERNION", stamp, *self.q, *self.rates)
        if self.sensors % 125 == 0:
            mode = 6 if self.offboard else 4
            self.say("HEARTBEAT", 2, 12, 128 if self.armed else 0, mode << 16, 4, 3)

    def listen(self, seconds):
        while True:
            try:
                data, _ = self.udp.recvfrom(65536)
            except BlockingIOError:
                return
            for message in self.aired.parse(data):
                if message.get_type() in (POSITION_TARGET, ATTITUDE_TARGET):
                    if message.target_system == self.instance + 1:
                        self.setpoint, self.setpoint_time = message, seconds
                        if message.get_type() == POSITION_TARGET:
                            self.place_told, self.place_time = message, seconds
                            if message.type_mask == 1479:
                                self.flown_time = min(self.flown_time, seconds)
                elif message.get_type() == "COMMAND_LONG" and message.target_system == self.instance + 1:
                    self.obey(message, seconds)

    def obey(self, message, seconds):
        command, fresh = message.command, seconds - self.setpoint_time < LOSS
        good = True
        if command == 176:
            good = fresh and not self.failsafe
            self.offboard = self.offboard or good
        elif command == 400:
            healthy = self.fix and self.same <= STALE and self.update & FULL == FULL & ~0x400
            good = healthy and self.offboard and fresh and self.fault != "noarm"
            self.armed = self.armed or good
            if not good:
                self.text("Arming denied: the fake is told to")
        elif command == 512:
            self.say("AUTOPILOT_VERSION", 0, 0x010E0300, 0, 0, 0, *[[0] * 8] * 3, 0, 0, 0)
        self.say("COMMAND_ACK", command, 0 if good else 2)

    # Flying

    def control(self, seconds):
        w, x, y, z = self.q
        roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
        pitch = math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
        yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        told, turn = self.setpoint, 0.0
        if told is not None and told.get_type() == ATTITUDE_TARGET and seconds - self.place_time < SWITCH:
            told = self.place_told  # the change of mode takes its time
        if told is None or self.failsafe:
            wanted = (0.0, 0.0, -1.0)
        elif told.get_type() == ATTITUDE_TARGET:
            return self.allocate(told.thrust, [told.body_roll_rate, told.body_pitch_rate, told.body_yaw_rate])
        elif told.type_mask == 1479:
            wanted, turn = (told.vx, told.vy, told.vz), told.yaw_rate
        else:
            gap = [a - p for a, p in zip((told.x, told.y, told.z), self.place, strict=True)]
            wanted = [max(-3.0, min(3.0, 0.95 * g)) for g in gap]
            off = (told.yaw - yaw + math.pi) % (2 * math.pi) - math.pi
            turn = max(-1.0, min(1.0, off))
        north, east = (1.8 * (v - now) for v, now in zip(wanted[:2], self.velocity[:2], strict=True))
        down = max(-3.0, min(1.5, wanted[2])) - self.velocity[2]
        self.slow_integral = max(-3.0, min(3.0, self.slow_integral + 1.0 * down * 0.004))
        thrust = HOVER * (1.0 - (3.0 * down + self.slow_integral) / 9.81)
        cos, sin = math.cos(yaw), math.sin(yaw)
        lean = [max(-0.6, min(0.6, a / 9.81)) for a in (-(cos * north + sin * east), cos * east - sin * north)]
        rates = [4.0 * (lean[1] - roll), 4.0 * (lean[0] - pitch), turn]
        return self.allocate(max(0.12, min(1.0, thrust)), rates)

    def allocate(self, thrust, rates):
        rates = [*rates[:2], rates[2] if self.turns else self.rates[2]]
        torque = [g * (a - b) for g, a, b in zip((0.08, 0.1, 0.2), rates, self.rates, strict=True)]
        return [
            max(0.0, min(1.0, thrust + 0.5 * r * torque[0] + 0.7 * p * torque[1] + y * torque[2]))
            for r, p, y in zip(ROLL, PITCH, YAW, strict=True)
        ]


def install(folder):
    """A build folder of PX4 whose executable is this program."""
    build = folder / "build"
    (build / "bin").mkdir(parents=True)
    (build / "etc" / "init.d-posix").mkdir(parents=True)
    program = build / "bin" / "px4"
    program.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n")
    program.chmod(0o755)
    return build


if __name__ == "__main__":
    Fake(int(sys.argv[sys.argv.index("-i") + 1]), os.environ.get("FAKE_PX4", "")).run()
