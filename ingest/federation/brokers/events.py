"""Events, effects, limits and counters of a site of a federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.packets import ControlPacket
from ingest.protocol.properties import NO_PROPERTIES, Properties


@dataclass(frozen=True, slots=True)
class SiteLimits:
    """Limits and intervals of a site; durations in seconds."""

    redundancy: int = 2
    beacon_interval: float = 5.0
    hop_limit: int = 16
    keep_order: bool = True
    cache_size: int = 5_000
    """Identifiers remembered without order."""
    most_chains: int = 100_000
    most_waiting: int = 10_000
    most_meshes: int = 256
    """Filters of its own that it announces; more are summarised."""
    store_seconds: float = 120.0
    store_messages: int = 20_000
    store_bytes: int = 64 * 1024 * 1024
    most_retained: int = 10_000
    ask_seconds: float = 0.1
    again_seconds: float = 1.0
    patience_seconds: float = 10.0
    clock_skew: float = 0.001
    """By what part of a duration the clocks of two sites may differ; real ones do by 0.0002."""


# Events.


@dataclass(slots=True)
class PublishedHere:
    """A client of the own broker has published."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    at_ms: int
    """Wall clock, UTC epoch."""
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Beacon:
    """There are local subscribers for a filter."""

    topic_filter: str
    is_permanent: bool = False
    age_seconds: float = 0.0
    """For how long there have been, when a former run has known."""


@dataclass(slots=True)
class LinkUp:
    neighbour: int


@dataclass(slots=True)
class LinkDown:
    neighbour: int


@dataclass(slots=True)
class Gone:
    """A neighbour's broker says that its federator is not there any more; the link still is."""

    neighbour: int


@dataclass(slots=True)
class Neighbours:
    """These are the neighbours from now on."""

    sites: tuple[int, ...]


@dataclass(slots=True)
class PassedOn:
    """A neighbour has passed a message on."""

    sender: int
    message: SiteMessage


StepEvent = (
    PublishedHere | Beacon | LinkUp | LinkDown | Gone | Neighbours | PassedOn | ControlPacket
)


# Effects.


@dataclass(slots=True)
class Send:
    """Give a packet to a neighbour, in order with the others."""

    neighbour: int
    packet: ControlPacket | SiteMessage


@dataclass(slots=True)
class Deliver:
    """Publish a message at the own broker."""

    message: SiteMessage
    retain: bool
    """False for a retained message that a later one has overtaken."""


@dataclass(slots=True)
class SiteNote:
    """Something that people may want to know."""

    words: str
    fields: dict[str, object]


Effect = Send | Deliver | SiteNote


@dataclass(slots=True)
class MeshCounters:
    published: int = 0
    received: int = 0
    duplicates: int = 0
    echoes: int = 0
    """Copies of messages that this site has published itself."""
    sent: int = 0
    delivered: int = 0
    unwanted: int = 0
    """Came by a summary, and no local subscriber wants it."""
    repaired: int = 0
    """Sent again to neighbours that missed it."""
    waves: int = 0
    """Times that everybody was asked for messages that one neighbour had not."""
    over_hop_limit: int = 0
    control_sent: int = 0
    control_received: int = 0
    elections: int = 0
    strangers: int = 0
    """Packets from sites that are no neighbours."""


@dataclass(slots=True)
class SavedSite:
    """State that one run leaves to the next."""

    marks: Sequence[tuple[ChainKey, int]] = ()
    messages: Sequence[SiteMessage] = ()
    interests: Mapping[str, float] = field(default_factory=dict)
    """Filter -> for how many seconds there have been subscribers."""
    stamp: int = 0
