"""Encoder and decoder of the dozen MAVLink 2 messages that the PX4 plant uses.

With it the plant needs no MAVLink package. A message costs about as much CPU time as with pymavlink
(benchmarks/mavlink_cost.py), and the tests compare the frames with pymavlink's.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Value = int | float | bytes
"""A field of a payload."""


@dataclass(frozen=True)
class Kind:
    """A message type."""

    number: int
    """message ID"""
    crc_extra: int
    """checksum seed, which MAVLink derives from the fields"""
    layout: struct.Struct
    """payload, in the order of transmission"""
    names: tuple[str, ...]
    """names of the fields"""


def kind(number: int, crc_extra: int, layout: str, names: str) -> Kind:
    return Kind(number, crc_extra, struct.Struct("<" + layout), tuple(names.split()))


HEARTBEAT = kind(0, 50, "IBBBBB", "custom_mode type autopilot base_mode status version")
ATTITUDE_QUATERNION = kind(31, 246, "I7f", "time_ms w x y z roll pitch yaw")
LOCAL_POSITION_NED = kind(32, 185, "I6f", "time_ms x y z vx vy vz")
COMMAND_LONG = kind(76, 152, "7fHBBB", "p1 p2 p3 p4 p5 p6 p7 command system component confirmation")
COMMAND_ACK = kind(77, 143, "HB", "command result")
SET_ATTITUDE_TARGET = kind(82, 49, "I8fBBB", "time_ms w x y z roll pitch yaw thrust system component mask")
SET_POSITION_TARGET = kind(
    84, 143, "I11fHBBB", "time_ms x y z vx vy vz ax ay az yaw yaw_rate mask system component frame"
)
HIL_ACTUATOR_CONTROLS = kind(
    93, 47, "QQ16fB", "time_us flags " + " ".join(f"c{i}" for i in range(16)) + " mode"
)  # fmt: skip
HIL_SENSOR = kind(
    107, 108, "Q13fIB", "time_us ax ay az gx gy gz mx my mz pressure diff_pressure altitude temperature fields sensor"
)
HIL_GPS = kind(113, 124, "QiiiHHHhhhHBB", "time_us lat lon alt eph epv speed vn ve vd course fix satellites")
HIL_STATE = kind(115, 4, "Q7f3i3hHH3h", "time_us w x y z roll pitch yaw lat lon alt vx vy vz indicated true ax ay az")
AUTOPILOT_VERSION = kind(148, 178, "QQIIIIHH24s", "capabilities uid flight middleware os board vendor product custom")
STATUSTEXT = kind(253, 83, "B50s", "severity text")

KINDS = {
    k.number: k
    for k in (
        HEARTBEAT, ATTITUDE_QUATERNION, LOCAL_POSITION_NED, COMMAND_LONG, COMMAND_ACK, SET_ATTITUDE_TARGET,
        SET_POSITION_TARGET, HIL_ACTUATOR_CONTROLS, HIL_SENSOR, HIL_GPS, HIL_STATE, AUTOPILOT_VERSION, STATUSTEXT,
    )
}  # fmt: skip


def _crc_table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ 0x8408 if crc & 1 else crc >> 1
        rows.append(crc)
    return tuple(rows)


CRC_TABLE = _crc_table()


def checksum(data: bytes, crc_extra: int) -> int:
    """CRC-16/MCRF4XX of the bytes and the message type's seed."""
    crc, table = 0xFFFF, CRC_TABLE
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return (crc >> 8) ^ table[(crc ^ crc_extra) & 0xFF]


@dataclass(frozen=True)
class Message:
    """A received message."""

    kind: Kind
    system: int
    values: tuple[Any, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[self.kind.names.index(name)]


class Speaker:
    """Encodes the messages of one sender, with their sequence numbers."""

    def __init__(self, system: int = 255, component: int = 190) -> None:
        self.system, self.component, self.sequence = system, component, 0

    def pack(self, kind: Kind, *values: Value) -> bytes:
        """A whole frame; MAVLink 2 leaves out zeros at the end of a payload."""
        payload = kind.layout.pack(*values).rstrip(b"\0") or b"\0"
        number = kind.number
        head = bytes(
            (len(payload), 0, 0, self.sequence, self.system, self.component,
             number & 0xFF, number >> 8 & 0xFF, number >> 16)
        )  # fmt: skip
        self.sequence = (self.sequence + 1) & 0xFF
        body = head + payload
        return b"\xfd" + body + checksum(body, kind.crc_extra).to_bytes(2, "little")


class Listener:
    """Decodes messages from a stream of bytes; it skips other protocols, damaged frames and unknown messages."""

    def __init__(self) -> None:
        self.pending = b""
        self.damaged = 0
        """frames with a wrong checksum"""

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes."""
        self.pending += data
        pending, at = self.pending, 0
        try:
            while True:
                at = pending.find(b"\xfd", at)
                if at < 0:
                    at = len(pending)
                    return
                if len(pending) - at < 12:
                    return
                length, signed = pending[at + 1], pending[at + 2] & 1
                end = at + 12 + length
                if len(pending) < end + 13 * signed:
                    return
                number = int.from_bytes(pending[at + 7 : at + 10], "little")
                kind = KINDS.get(number)
                if kind is None:
                    # Without its seed the checksum cannot be verified; a false start byte costs one message at most.
                    at = end + 13 * signed
                    continue
                body = pending[at + 1 : end - 2]
                if checksum(body, kind.crc_extra) != int.from_bytes(pending[end - 2 : end], "little"):
                    self.damaged += 1
                    at += 1
                    continue
                size = kind.layout.size
                payload = body[9:].ljust(size, b"\0")[:size]
                at = end + 13 * signed
                yield Message(kind, body[4], kind.layout.unpack(payload))
        finally:
            self.pending = pending[at:]
