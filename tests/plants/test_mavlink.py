"""MAVLink messages have the bytes of the standard, survive damage, and need pymavlink only for PX4."""

import importlib.util
import math
import subprocess
import sys

import pytest

from slipstream import doctor
from slipstream.plants import mavlink
from slipstream.plants.mavlink import Decoder, Encoder
from slipstream.plants.plant import PlantError
from slipstream.plants.px4 import Px4Plant

FIX = (5, 3, 473977420, 85455940, 488000, 90, 140, 320, 100, -200, 30, 65535, 12)
SENSOR = (123456, 1.0, 2.0, -9.8, 0.1, 0.2, 0.3, 0.21, 0.01, 0.43, 955.0, 0.0, 488.0, 20.0, 0x1BFF, 0)
TRUTH = (7, [1, 0, 0, 0], 0.1, 0.2, 0.3, 473977420, 85455940, 488000, 100, -200, 30, 0, 0, 0, 0, 0)
HEARTBEAT = (6, 8, 0, 0, 4, 3)
VECTORS = {
    "HEARTBEAT": (HEARTBEAT, "fd09000000ffbe0000000000000006080004033d48"),
    "HIL_SENSOR": (
        SENSOR,
        "fd3e000000ffbe6b000040e20100000000000000803f00000040cdcc1cc1cdcccc3dcdcc4c3e9a99993e3d0a573e0ad7233cf628dc3e"
        "00c06e44000000000000f4430000a041ff1b960f",
    ),
    "HIL_GPS": (
        FIX,
        "fd24000000ffbe71000005000000000000004c52401c44f41705407207005a008c004001640038ff1e00ffff030c3e88",
    ),
    "HIL_STATE_QUATERNION": (
        TRUTH,
        "fd35000000ffbe73000007000000000000000000803f000000000000000000000000cdcccc3dcdcc4c3e9a99993e4c52401c44f41705"
        "40720700640038ff1e0bcc",
    ),
    "SET_POSITION_TARGET_LOCAL_NED": (
        (7, 2, 1, 1, 1479, *range(11)),
        "fd35000000ffbe54000007000000000000000000803f0000004000004040000080400000a0400000c0400000e0400000004100001041"
        "00002041c7050201017d91",
    ),
    "SET_ATTITUDE_TARGET": (
        (7, 2, 1, 128, [1, 0, 0, 0], 0.1, 0.2, 0.3, 0.6),
        "fd27000000ffbe520000070000000000803f000000000000000000000000cdcccc3dcdcc4c3e9a99993e9a99193f020180197f",
    ),
    "COMMAND_LONG": (
        (2, 1, 176, 0, 1.0, 6.0, 0, 0, 0, 0, 0),
        "fd20000000ffbe4c00000000803f0000c0400000000000000000000000000000000000000000b00002013e4f",
    ),
}
"""Values and frames of system 255, component 190; the frames are from an encoder written from the specification."""


@pytest.mark.parametrize("name", VECTORS)
def test_frames_equal_known_bytes(name):
    values, frame = VECTORS[name]
    assert Encoder().pack(name, *values).hex() == frame


@pytest.mark.parametrize("name", VECTORS)
def test_messages_survive_the_way_there_and_back(name):
    values, _ = VECTORS[name]
    (message,) = Decoder().parse(Encoder(7, 1).pack(name, *values))
    assert (message.get_type(), message.get_srcSystem()) == (name, 7)
    names = mavlink.message_type(name).fieldnames[: len(values)]
    assert [getattr(message, field) for field in names] == [pytest.approx(value, rel=1e-6) for value in values]


def test_fields_by_name_and_by_position_make_the_same_frame():
    fields = dict(zip(("type", "autopilot", "base_mode", "custom_mode", "system_status"), HEARTBEAT, strict=False))
    assert Encoder().pack("HEARTBEAT", **fields, mavlink_version=3) == Encoder().pack("HEARTBEAT", *HEARTBEAT)


def test_sequence_numbers_count_up_and_wrap_at_256():
    encoder = Encoder()
    assert [encoder.pack("HEARTBEAT", *HEARTBEAT)[4] for _ in range(258)] == [*range(256), 0, 1]


def test_numbers_of_messages_are_the_standards():
    names = ("HEARTBEAT", "ATTITUDE_QUATERNION", "LOCAL_POSITION_NED", "AUTOPILOT_VERSION")
    assert [mavlink.message_id(name) for name in names] == [0, 31, 32, 148]


def test_actuator_controls_of_known_bytes_are_read():
    frame = (
        "fd5100000001015d000040e201000000000001000000000000000000003f5c8f023fb81e053f14ae073f" + "00" * 48 + "81d57f"
    )
    (message,) = Decoder().parse(bytes.fromhex(frame))
    assert (message.get_type(), message.time_usec, message.mode) == ("HIL_ACTUATOR_CONTROLS", 123456, 129)
    assert message.controls == pytest.approx([0.5, 0.51, 0.52, 0.53, *[0.0] * 12])


def test_zeros_that_were_trimmed_off_a_payload_are_restored():
    frame = bytes.fromhex("fd140000000101200000050000000000803f000000400000404000008040d308")
    (message,) = Decoder().parse(frame)
    assert frame[1] == 20  # of 28 bytes
    assert [message.x, message.y, message.z, message.vx, message.vy, message.vz] == [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]
    (text,) = Decoder().parse(bytes.fromhex("fd060000000101fd00000441726d65647ee2"))
    assert (text.severity, text.text) == (4, "Armed")


def test_a_message_of_zeros_only_is_read():
    data = Encoder().pack("LOCAL_POSITION_NED", 0, *[0.0] * 6)
    (message,) = Decoder().parse(data)
    assert data[1] == 1
    assert message.vz == 0.0


def test_messages_are_read_in_pieces_and_among_garbage():
    encoder = Encoder(1, 1)
    position = encoder.pack("LOCAL_POSITION_NED", 5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    data = b"\x00\x55\x01" + position + b"garbage" + encoder.pack("STATUSTEXT", 4, b"Armed") + b"\r\n" + position
    decoder = Decoder()
    messages = [message for byte in data for message in decoder.parse(bytes([byte]))]
    assert [message.get_type() for message in messages] == ["LOCAL_POSITION_NED", "STATUSTEXT", "LOCAL_POSITION_NED"]
    assert messages[0].vz == 6.0
    assert messages[1].text == "Armed"
    assert [message.get_type() for message in Decoder().parse(data)] == [message.get_type() for message in messages]


def test_a_damaged_message_is_skipped_and_the_next_one_read():
    good = Encoder().pack("HEARTBEAT", *HEARTBEAT)
    bad = bytearray(good)
    bad[12] ^= 0x40
    decoder = Decoder()
    assert len(list(decoder.parse(bytes(bad) + good + good))) == 2
    assert decoder.errors == 1


def test_a_false_start_byte_costs_at_most_the_messages_within_one_frame():
    good = Encoder().pack("HEARTBEAT", *HEARTBEAT)
    longest = 10 + 255 + 2 + 13
    decoder, count = Decoder(), 40
    messages = list(decoder.parse(b"\xfd\xff\x01" + good * count))
    assert count - math.ceil(longest / len(good)) - 1 <= len(messages) < count
    assert len(list(decoder.parse(good))) == 1


def test_a_message_of_another_dialect_is_skipped():
    good = Encoder().pack("HEARTBEAT", *HEARTBEAT)
    unknown = bytes.fromhex("fd010000000101fffffe") + b"\x07\x00\x00"
    assert len(list(Decoder().parse(unknown + good))) == 1


def test_pymavlink_that_is_missing_is_asked_for_in_words(fake_px4, monkeypatch):
    mavlink.load_dialect.cache_clear()
    monkeypatch.setitem(sys.modules, "pymavlink.dialects.v20", None)
    with pytest.raises(PlantError, match="pip install pymavlink"):
        Px4Plant(fake_px4())


def test_doctor_says_how_to_install_pymavlink(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pymavlink" else find(name))
    (found,) = [finding for finding in doctor.examine() if finding["name"] == "pymavlink"]
    assert not found["good"]
    assert found["text"].endswith("pymavlink: for --plant px4; pip install pymavlink")


def test_importing_the_plants_does_not_import_pymavlink():
    code = "import sys, slipstream.plants.registry, slipstream.plants.px4; assert 'pymavlink' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
