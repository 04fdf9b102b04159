"""Packets as the client and the double know them; a transport gives them their bytes."""

from asyncio import Future, shield, timeout
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

Addresses = Mapping[str, tuple[str, int]]
"""Host and port of each node; read at each connection, so that they may change."""


@dataclass(slots=True)
class Frame:
    """One MQTT control packet.

    Attributes:
        kind: The packet's name in small letters: "connect", "puback", …
        topic: Topic name or topic filter.
        code: Reason code as 5.0 counts them; SUBACK has the granted QoS here.
        fields: Options and properties, by their names in `ConnectOptions` and `publish`.
    """

    kind: str
    packet_id: int = 0
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    dup: bool = False
    retain: bool = False
    code: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WillOptions:
    """The will that each connection of a client leaves; its message names the connection."""

    topic: str
    qos: int = 1
    retain: bool = False
    delay: int = 0


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Options of a client in CONNECT.

    Attributes:
        node: Name of the part that it connects to.
        expiry: Session Expiry Interval, seconds; 5.0 only.
        receive_maximum: 5.0 only.
    """

    client_id: str
    node: str = "broker"
    version: int = 4
    clean: bool = True
    expiry: int = 0
    keep_alive: int = 0
    receive_maximum: int = 65_535
    will: WillOptions | None = None
    tenant: str = ""
    username: str | None = None
    password: str | None = None


class Transport(Protocol):
    """An open network connection."""

    def send(self, frame: Frame) -> None: ...

    def end(self) -> None:
        """Close it in order: frames that were sent still arrive."""

    def abort(self) -> None:
        """Cut it."""


class Opener(Protocol):
    """Opens network connections to the parts of a target."""

    async def __call__(
        self,
        options: ConnectOptions,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
    ) -> Transport:
        """Open one.

        Args:
            options: Names node and protocol level.
            on_frame: Called with each packet.
            on_end: Called once, when the connection is over, with the reason.

        Raises:
            OSError: There is no connection.
        """


DISCONNECT_SECONDS: Final = 1.0
"""So long the broker may take to close after DISCONNECT."""


async def closes_in_time(closed: Future[None]) -> bool:
    """Wait until the broker has closed a connection after DISCONNECT; False: it does not."""
    try:
        async with timeout(DISCONNECT_SECONDS):
            await shield(closed)
    except TimeoutError:
        return False
    return True


class FrameClient(Protocol):
    """A driver: one client identity that writes down all that it does.

    `connect` raises `OSError` when there is no connection or no CONNACK, and `Refused` when the
    answer is no. The futures of `publish` end with the type of the operation: ok, fail or info.
    """

    name: str

    @property
    def is_connected(self) -> bool: ...

    @property
    def unfinished(self) -> int:
        """How many exchanges with the broker are open."""

    @property
    def receive_maximum(self) -> int:
        """How many messages the broker lets the client have unacknowledged."""

    async def connect(self, options: ConnectOptions, timeout_seconds: float) -> bool:
        """Connect; return Session Present."""

    async def subscribe(
        self,
        topic_filter: str,
        qos: int,
        *,
        no_local: bool = False,
        retain_handling: int = 0,
    ) -> str: ...

    async def unsubscribe(self, topic_filter: str) -> str: ...

    def publish(
        self,
        message_id: str,
        topic: str,
        *,
        qos: int = 0,
        retain: bool = False,
        empty: bool = False,
        expiry: int | None = None,
        size: int = 0,
    ) -> Future[str]: ...

    async def disconnect(self) -> None: ...

    def abort(self, reason: str) -> None: ...

    def give_up(self) -> None:
        """Write down that open operations stay unknown."""
