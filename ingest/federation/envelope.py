"""The envelope of a message between sites, the same on each kind of hop.

`write` makes one line of text of it, the only function that does; `read` reads it. Where the text
stands depends on the hop alone:

| hop | topic | text |
| --- | --- | --- |
| MQTT 5.0 | `<prefix>/routing/<topic>` | user property `mqlake-federation` |
| MQTT 3.1.1 | `<prefix>/routed/<text>/<topic>` | a level of the topic, with the 5.0 properties |
| log record | the message's own | header `mqlake-federation`; properties have a header already |

The text is numbers between dots, so it is valid in a topic name and needs no escaping:

    2.<origin>.<epoch>.<partition>.<sequence>.<after>.<gap ms>.<age ms>.<hops>.<stamp>.<flags>
    .<sender>

and one field more for properties. Between brokers the partition is 0 and the sequence counts the
messages of the origin's run; between logs both say where the message is in its origin's log.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from ingest.protocol.errors import RemoteProtocolError
from ingest.protocol.packets import MQTT_5_0
from ingest.protocol.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyContext,
    decode_properties,
    encode_properties,
)
from mqlake.errors import InvalidTopic, MqlakeError
from mqlake.topics.names import SEPARATOR, validate_topic_name

VERSION: Final = "2"
NAME: Final = "mqlake-federation"
"""Name of the user property and of the log record's header."""

ROUTING: Final = "routing"
ROUTED: Final = "routed"

_FIELDS: Final = 12
_LONGEST_NUMBER: Final = 19
_RETAIN: Final = 4
_QOS: Final = 3
_OF_THE_HOP: Final = ("topic_alias", "subscription_identifier")


class InvalidEnvelope(MqlakeError):  # noqa: N818 - it names the thing refused
    """A packet from a neighbour that is none of ours."""


class ChainKey(NamedTuple):
    """Key of a chain: messages of one topic from one run of one site, which keep their order."""

    origin: int
    """Identifier of the site where a client published them."""

    epoch: int
    """Epoch of that site's run: higher after each start."""

    topic: str


@dataclass(slots=True)
class SiteMessage:
    """A message of a client, somewhere between its origin and the sites that want it."""

    key: ChainKey
    sequence: int
    """Number at the origin, over all its topics: with origin and epoch it names the message."""
    after: int
    """Sequence of the message before it in its chain; 0: none that its origin remembers."""
    gap_ms: int
    """How long after that one it was published, by the origin's clock."""
    stamp: int
    """Hybrid logical clock of the origin: orders retained messages across sites."""
    payload: bytes
    qos: int
    retain: bool
    properties: Properties = NO_PROPERTIES
    hops: int = 0
    age_ms: int = 0
    """How long it has been held on its way, the time on the links not counted."""
    partition: int = 0
    since: float = 0.0
    """When it was published, by this site's monotonic clock."""

    @property
    def topic(self) -> str:
        return self.key.topic


def write(message: SiteMessage, sender: int, *, with_properties: bool) -> str:
    """Return the text of the envelope, as `sender` passes the message on."""
    flags = message.qos | (_RETAIN if message.retain else 0)
    origin, epoch, _ = message.key
    text = (
        f"{VERSION}.{origin}.{epoch}.{message.partition}.{message.sequence}.{message.after}"
        f".{message.gap_ms}.{message.age_ms}.{message.hops}.{message.stamp}.{flags}.{sender}"
    )
    if with_properties and message.properties:
        encoded = encode_properties(message.properties, PropertyContext.PUBLISH)
        text += "." + urlsafe_b64encode(encoded).decode().rstrip("=")
    return text


def read(text: str, topic: str, payload: bytes) -> tuple[SiteMessage, int]:
    """Return the message and the site that passed it on.

    Raises:
        InvalidEnvelope: The text is not one of version 2, or the topic is none.
    """
    parts = text.split(".")
    if parts[0] != VERSION or not _FIELDS <= len(parts) <= _FIELDS + 1:
        raise InvalidEnvelope(f"envelope has {len(parts)} fields of version {parts[0][:8]!r}")
    numbers = parts[1:_FIELDS]
    if not all(one.isascii() and one.isdigit() and len(one) <= _LONGEST_NUMBER for one in numbers):
        raise InvalidEnvelope("envelope has a field that is no number")
    origin, epoch, partition, sequence, after = map(int, numbers[:5])
    gap, age, hops, stamp, flags, sender = map(int, numbers[5:])
    qos = flags & _QOS
    if flags > (_RETAIN | _QOS) or qos == _QOS or after >= sequence:
        raise InvalidEnvelope("envelope has flags or a sequence that cannot be")
    try:
        validate_topic_name(topic)
    except InvalidTopic as exc:
        raise InvalidEnvelope(str(exc)) from exc
    if topic.startswith("$"):
        raise InvalidEnvelope("topics that begin with $ are not federated")
    properties = _read_properties(parts[_FIELDS]) if len(parts) > _FIELDS else NO_PROPERTIES
    key = ChainKey(origin, epoch, topic)
    message = SiteMessage(
        key,
        sequence,
        after,
        gap,
        stamp,
        payload,
        qos,
        bool(flags & _RETAIN),
        properties,
        hops,
        age,
        partition=partition,
    )
    return message, sender


def _read_properties(text: str) -> Properties:
    try:
        encoded = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        properties, end = decode_properties(encoded, 0, PropertyContext.PUBLISH)
    except (Base64Error, ValueError, RemoteProtocolError) as exc:
        raise InvalidEnvelope(f"envelope has properties that cannot be read: {exc}") from exc
    if end != len(encoded):
        raise InvalidEnvelope("envelope has bytes behind its properties")
    return properties


def to_mqtt(
    message: SiteMessage, sender: int, *, prefix: str, protocol_level: int
) -> tuple[str, Properties]:
    """Return topic name and properties of the PUBLISH that takes the message to a neighbour."""
    if protocol_level < MQTT_5_0:
        text = write(message, sender, with_properties=True)
        return f"{prefix}/{ROUTED}/{text}/{message.topic}", NO_PROPERTIES
    text = write(message, sender, with_properties=False)
    found = dict(message.properties)
    found["user_property"] = [(NAME, text), *message.properties.get("user_property", ())]
    return f"{prefix}/{ROUTING}/{message.topic}", cast("Properties", found)


def from_mqtt(
    topic_name: str, payload: bytes, properties: Properties, *, prefix: str
) -> tuple[SiteMessage, int]:
    """Read the topic and properties of `to_mqtt`, as a broker has passed them on.

    Raises:
        InvalidEnvelope: It is not such a PUBLISH.
    """
    kind, separator, rest = topic_name[len(prefix) + 1 :].partition(SEPARATOR)
    if not topic_name.startswith(prefix + SEPARATOR) or not separator:
        raise InvalidEnvelope("topic is none that carries messages")
    if kind == ROUTED:
        text, _, topic = rest.partition(SEPARATOR)
        return read(text, topic, payload)
    users = properties.get("user_property", [])
    if kind != ROUTING or not users or users[0][0] != NAME:
        raise InvalidEnvelope(f"topic below {kind[:16]!r} without an envelope")
    message, sender = read(users[0][1], rest, payload)
    own = {name: value for name, value in properties.items() if name not in _OF_THE_HOP}
    if users[1:]:
        own["user_property"] = users[1:]
    else:
        del own["user_property"]
    message.properties = cast("Properties", own) if own else NO_PROPERTIES
    return message, sender


def to_header(message: SiteMessage, sender: int) -> tuple[str, bytes]:
    """Return the header of a log record that holds the message; its properties have their own."""
    return NAME, write(message, sender, with_properties=False).encode()


def from_header(value: bytes, topic: str, payload: bytes) -> tuple[SiteMessage, int]:
    """Read the header of `to_header`.

    Raises:
        InvalidEnvelope: It is not such a header.
    """
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError as exc:
        raise InvalidEnvelope("envelope is not ASCII") from exc
    return read(text, topic, payload)
