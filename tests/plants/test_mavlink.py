"""Our messages are the standard's: checked against the reference implementation, byte for byte."""

import pytest
from pymavlink.dialects.v20 import common

from slipstream.plants import mavlink
from slipstream.plants.mavlink import KINDS, Listener, Speaker


class Sink:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def reference(send, *values):
    sink = Sink()
    link = common.MAVLink(sink, srcSystem=255, srcComponent=190)
    getattr(link, send)(*values)
    return sink.data


SENSOR = (123456, 1.0, 2.0, -9.8, 0.1, 0.2, 0.3, 0.21, 0.01, 0.43, 955.0, 0.0, 488.0, 20.0, 0x1BFF, 0)
FIX = (5, 473977420, 85455940, 488000, 90, 140, 320, 100, -200, 30, 65535, 3, 12)
SAME = {
    "hil_sensor_send": (mavlink.HIL_SENSOR, SENSOR),
    "hil_gps_send": (mavlink.HIL_GPS, FIX),
    "heartbeat_send": (mavlink.HEARTBEAT, (0, 6, 8, 0, 4, 3)),
}


@pytest.mark.parametrize("send", SAME)
def test_frames_equal_those_of_the_reference(send):
    kind, values = SAME[send]
    ordered = {"heartbeat_send": (6, 8, 0, 0, 4, 3), "hil_gps_send": (5, 3, *FIX[1:11], 12)}.get(send, values)
    assert Speaker().pack(kind, *values) == reference(send, *ordered)


def test_setpoints_and_commands_are_read_by_the_reference():
    reader = common.MAVLink(None)
    position = Speaker().pack(mavlink.SET_POSITION_TARGET, 7, *range(11), 1479, 2, 1, 1)
    (message,) = reader.parse_buffer(position)
    assert (message.get_type(), message.vx, message.yaw_rate) == ("SET_POSITION_TARGET_LOCAL_NED", 3.0, 10.0)
    assert (message.type_mask, message.target_system, message.coordinate_frame) == (1479, 2, 1)
    rates = Speaker().pack(mavlink.SET_ATTITUDE_TARGET, 7, 1, 0, 0, 0, 0.1, 0.2, 0.3, 0.6, 2, 1, 128)
    (message,) = reader.parse_buffer(rates)
    assert (round(message.body_yaw_rate, 3), round(message.thrust, 3), message.type_mask) == (0.3, 0.6, 128)
    order = Speaker().pack(mavlink.COMMAND_LONG, 1.0, 6.0, 0, 0, 0, 0, 0, 176, 2, 1, 0)
    (message,) = reader.parse_buffer(order)
    assert (message.command, message.param2, message.target_system) == (176, 6.0, 2)


def test_what_the_reference_sends_is_heard_in_pieces_and_among_noise():
    data = reference("local_position_ned_send", 5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    data += reference("statustext_send", 4, b"Armed")
    listener, heard = Listener(), []
    for byte in b"\x00\x55\x01" + data:
        heard += listener.feed(bytes([byte]))
    assert [message.kind.number for message in heard] == [32, 253]
    assert heard[0]["vz"] == 6.0
    assert heard[1]["text"].startswith(b"Armed")


def test_a_damaged_message_is_passed_over_and_the_next_one_heard():
    good = Speaker().pack(mavlink.HEARTBEAT, 0, 6, 8, 0, 4, 3)
    bad = bytearray(good)
    bad[12] ^= 0x40
    listener = Listener()
    heard = list(listener.feed(bytes(bad) + good + good))
    assert len(heard) == 2
    assert listener.damaged >= 1


def test_all_messages_survive_the_way_there_and_back():
    for kind in KINDS.values():
        values = kind.layout.unpack(bytes([1]) * kind.layout.size)
        (message,) = Listener().feed(Speaker().pack(kind, *values))
        assert message.values == tuple(values)
