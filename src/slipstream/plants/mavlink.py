"""MAVLink 2 messages of the dialect `common`, encoded and decoded by pymavlink.

pymavlink is imported when the first encoder or decoder is made, so that only the PX4 plant needs it. Its connections
(mavutil) are not used: they bind to all network interfaces, and the plant's sockets bind to the loopback interface.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from .plant import PlantError

if TYPE_CHECKING:
    from pymavlink.dialects.v20.common import MAVLink, MAVLink_message

Value = float | bytes | Sequence[float]
"""A field of a message."""


class Message(Protocol):
    """A decoded message of pymavlink; its fields are attributes."""

    def get_type(self) -> str:
        """Name of the message, such as HEARTBEAT."""
        ...

    def get_srcSystem(self) -> int:  # noqa: N802
        """System ID of the sender."""
        ...

    def __getattr__(self, field: str) -> Any: ...


@cache
def load_dialect() -> ModuleType:
    """The module of pymavlink's dialect `common`; raises a PlantError that says how to install it."""
    try:
        from pymavlink.dialects.v20 import common
    except ImportError as error:
        raise PlantError("the plant px4 needs the package pymavlink: pip install pymavlink") from error
    return common


@cache
def message_type(name: str) -> type["MAVLink_message"]:
    """pymavlink's class of a message, by the name of the message."""
    return getattr(load_dialect(), f"MAVLink_{name.lower()}_message")


def message_id(name: str) -> int:
    return message_type(name).id


class Encoder:
    """Encodes the messages of one sender, with their sequence numbers."""

    def __init__(self, system: int = 255, component: int = 190) -> None:
        self.link: MAVLink = load_dialect().MAVLink(None, system, component)

    def pack(self, name: str, *values: Value, **fields: Value) -> bytes:
        """A whole frame; positional values are in the order of the message's definition."""
        make = cast(Any, message_type(name))
        data: bytes = make(*values, **fields).pack(self.link)
        self.link.seq = (self.link.seq + 1) & 0xFF
        return data


class Decoder:
    """Decodes messages from a stream of bytes; it skips other protocols, damaged frames and unknown messages."""

    def __init__(self) -> None:
        dialect = load_dialect()
        self.link: MAVLink = dialect.MAVLink(None)
        self.link.robust_parsing = True
        self.skipped = (dialect.MAVLink_bad_data, dialect.MAVLink_unknown)

    @property
    def errors(self) -> int:
        """Damaged frames and stretches of other bytes so far."""
        return self.link.total_receive_errors

    def parse(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes."""
        for message in self.link.parse_buffer(data) or ():
            if not isinstance(message, self.skipped):
                yield cast(Message, message)
