"""Control packets between neighbours: many words of many meshes in one packet.

A packet is JSON, `{"v": 1, "from": site, "epoch": run, <kind>: [word, …], …}`; a word is an array
of its fields. A packet without words is a hello. So ten thousand meshes cost as many packets as
one, up to `MOST_WORDS` in each.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ingest.federation.envelope import ChainKey
from mqlake.errors import InvalidTopic, MqlakeError
from mqlake.topics.names import validate_topic_filter, validate_topic_name

VERSION: Final = 1
MOST_WORDS: Final = 500
CONTROL: Final = "control"
"""The level below the prefix where packets are published: `<prefix>/control/<sender>`."""


class InvalidPacket(MqlakeError):  # noqa: N818 - it names the thing refused
    """A control packet that is none of ours."""


class Core(NamedTuple):
    """A core at one moment of one of its runs."""

    site: int
    epoch: int
    sequence: int
    """Number of the announcement; a later one has a higher one."""

    @property
    def age(self) -> tuple[int, int]:
        """Order of the announcements of a site: the later one is greater."""
        return self.epoch, self.sequence


class Announcement(NamedTuple):
    """A core tells that it is one; flooded."""

    topic_filter: str
    core: Core
    distance: int
    """Hops from the core to the sender."""
    wanted_ms: int = 0
    """How long messages of the filter have been wanted, as far as the sender knows."""
    has_resigned: bool = False
    replaces: Core | None = None
    """A core that this one takes the place of, since it was not to be found."""


class Membership(NamedTuple):
    """A member of a mesh asks a parent for its messages, or does no more."""

    topic_filter: str
    core_site: int
    core_epoch: int
    wanted_ms: int
    has_left: bool = False


class CoreSearch(NamedTuple):
    """A site has lost its way to a core: flooded, the core answers by announcing itself."""

    topic_filter: str
    core: Core


class Head(NamedTuple):
    """How far a chain has come."""

    key: ChainKey
    sequence: int
    age_ms: int
    stamp: int
    """Stamp of the latest retained message of the topic, if this is it, else 0."""


class Wave(NamedTuple):
    """One round of asking everybody: each site takes part once."""

    site: int
    """That began it."""
    epoch: int
    number: int


class Want(NamedTuple):
    """A site asks for messages of a chain."""

    key: ChainKey
    after: int
    upto: int
    within_ms: int
    """Only `upto`, and messages published so long ago at most; 0: of any age."""
    wave: Wave | None = None
    """None: answer at once. Else a site that has nothing asks its own neighbours first."""


class Lack(NamedTuple):
    """The answer when the messages wanted are not there."""

    key: ChainKey
    upto: int
    """The last sequence that is not."""
    wave: Wave | None = None
    """The one of the Want: nor has anybody else that the sender could ask."""


Word = Announcement | Membership | CoreSearch | Head | Want | Lack

KINDS: Final[dict[type, str]] = {
    Announcement: "cores",
    Membership: "members",
    CoreSearch: "searches",
    Head: "heads",
    Want: "wants",
    Lack: "lacks",
}


@dataclass(slots=True)
class ControlPacket:
    """One control packet."""

    sender: int
    epoch: int
    words: list[Word] = field(default_factory=list)


def to_packets(sender: int, epoch: int, words: list[Word]) -> Iterator[ControlPacket]:
    """Spread words over as few packets as hold them, in their order; one packet for none."""
    for start in range(0, max(len(words), 1), MOST_WORDS):
        yield ControlPacket(sender, epoch, words[start : start + MOST_WORDS])


def encode(control: ControlPacket) -> bytes:
    """Return the payload of a control packet."""
    found: dict[str, Any] = {"v": VERSION, "from": control.sender, "epoch": control.epoch}
    for word in control.words:
        found.setdefault(KINDS[type(word)], []).append(word)
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()


def decode(payload: bytes) -> ControlPacket:
    """Read a control packet.

    Raises:
        InvalidPacket: It is none, or one of a version that is not known.
    """
    try:
        found = json.loads(payload)
        if found["v"] != VERSION:
            raise InvalidPacket(f"control packet of version {found['v']!r}, expected {VERSION}")
        control = ControlPacket(_number(found["from"]), _number(found["epoch"]))
        for kind, name in KINDS.items():
            read = _READERS[kind]
            control.words.extend(read(*word) for word in found.get(name, ()))
    except (ValueError, TypeError, KeyError, InvalidTopic, RecursionError) as exc:
        raise InvalidPacket(f"control packet cannot be read: {exc!r}") from exc
    return control


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a number, got {value!r}")
    return value


def _filter(value: Any) -> str:
    if not isinstance(value, str) or value.startswith("$"):
        raise ValueError(f"expected a topic filter, got {value!r}")
    validate_topic_filter(value)
    return value


def _core(value: Any) -> Core:
    site, epoch, sequence = value
    return Core(_number(site), _number(epoch), _number(sequence))


def _key(value: Any) -> ChainKey:
    origin, epoch, topic = value
    if not isinstance(topic, str) or topic.startswith("$"):
        raise ValueError(f"expected a topic name, got {topic!r}")
    validate_topic_name(topic)
    return ChainKey(_number(origin), _number(epoch), topic)


def _announcement(
    topic_filter: Any,
    core: Any,
    distance: Any,
    wanted_ms: Any,
    has_resigned: Any,
    replaces: Any,
) -> Announcement:
    return Announcement(
        _filter(topic_filter),
        _core(core),
        _number(distance),
        _number(wanted_ms),
        bool(has_resigned),
        None if replaces is None else _core(replaces),
    )


def _wave(value: Any) -> Wave | None:
    return None if value is None else Wave(*map(_number, value))


_READERS: Final[dict[type, Any]] = {
    Announcement: _announcement,
    Membership: lambda topic_filter, site, epoch, wanted_ms, has_left: Membership(
        _filter(topic_filter), _number(site), _number(epoch), _number(wanted_ms), bool(has_left)
    ),
    CoreSearch: lambda topic_filter, core: CoreSearch(_filter(topic_filter), _core(core)),
    Head: lambda key, *numbers: Head(_key(key), *map(_number, numbers)),
    Want: lambda key, after, upto, within, wave: Want(
        _key(key), _number(after), _number(upto), _number(within), _wave(wave)
    ),
    Lack: lambda key, upto, wave: Lack(_key(key), _number(upto), _wave(wave)),
}
