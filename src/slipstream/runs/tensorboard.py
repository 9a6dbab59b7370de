"""TensorBoard's event file: protocol buffers with checksums. A scalar needs four fields, not a dependency."""

import struct as binary
import time
from collections.abc import Mapping


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def event(step: int, values: Mapping[str, float], version: bool = False) -> bytes:
    """An Event: wall time, step, and either the file version or a Summary of scalars."""
    head = b"\x09" + binary.pack("<d", time.time()) + b"\x10" + varint(step)
    if version:
        return head + field(3, b"brain.Event:2")
    summary = b"".join(
        field(1, field(1, name.encode()) + b"\x15" + binary.pack("<f", value)) for name, value in values.items()
    )
    return head + field(5, summary)


def crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC32C = crc32c_table()


def masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return binary.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = binary.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)
