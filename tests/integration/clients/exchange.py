"""What two clients of one kind do with the gateway in a test, whatever the client."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol
from urllib.parse import SplitResult, urlsplit

Version = Literal["3.1.1", "5.0"]
ANSWER_SECONDS = 90.0
"""How long a client waits for what must come."""


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    payload: str
    qos: int = 0
    retain: bool = False
    user_properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One publisher, then one subscriber; each step waits for the answers to the one before.

    1. the publisher connects, with its will if there is one, and publishes `kept`;
    2. the subscriber connects and subscribes;
    3. the publisher publishes `sent`, then disconnects, or vanishes if it has a will;
    4. the subscriber waits for as many messages as are expected.
    """

    version: Version
    publisher: str
    subscriber: str
    topic_filter: str
    qos: int
    expected: int
    kept: tuple[Message, ...] = ()
    sent: tuple[Message, ...] = ()
    will: Message | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    connack: int
    """Code of the subscriber's CONNACK."""
    received: list[Message]


class Client(Protocol):
    """A kind of client: a function that does an exchange."""

    def __call__(self, exchange: Exchange) -> Result: ...


@dataclass(frozen=True, slots=True)
class Server:
    """A server's URL as most clients want it: `mqtt://host:port` or `ws://host:port/path`."""

    host: str
    port: int
    transport: Literal["tcp", "websockets"]
    path: str

    @classmethod
    def of(cls, url: str) -> "Server":
        parts: SplitResult = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        transport: Literal["tcp", "websockets"] = "websockets" if parts.scheme == "ws" else "tcp"
        return cls(parts.hostname, parts.port, transport, parts.path)
