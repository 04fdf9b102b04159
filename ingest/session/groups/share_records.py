"""Memberships of gateways in share groups, and sessions that are members, as a shard has them.

    joining ──► live ──► leaving ──► left ──another membership takes it, or its group ends──► gone
       └──────────┴─ its gateway ─┴─► settling ─┘
                     has died

Messages given to a membership and not dealt with are in its record, `h/...`; a membership that
has left stays in the log until another takes it over. A session that outlives its connection is a
member as long as it has its record `m/...`: that says which messages of the group it has in flight.
All records of a group are in one shard, so their order is the same for every reader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest.session.client.outgoing import MAX_PACKET_ID
from ingest.session.groups.open_work import OpenWork, decode_work
from ingest.session.groups.share_choices import Chosen, decode_chosen
from mqlake.errors import InvalidRecord
from mqlake.records.offsets import at, have_reached
from mqlake.records.shards import MEMBER, MEMBERSHIP, Run, shard_of
from mqlake.records.versions import RECORD_VERSION, check_version

if TYPE_CHECKING:
    from ingest.session.groups.open_work import Position


class GroupKey(NamedTuple):
    tenant: str
    topic_filter: str
    """As subscribed, with `$share/<name>/`."""


class MembershipState(StrEnum):
    JOINING = "joining"
    """Said so; with `starts` it has begun beside others, else it waits for its turn."""
    LIVE = "live"
    """The router has its route."""
    LEAVING = "leaving"
    """It has no members and withdraws its route as soon as the group can do without."""
    SETTLING = "settling"
    """Its gateway is dead, and the owner of the shard withdraws its route."""
    LEFT = "left"
    """The router gives it nothing more."""


@dataclass(slots=True)
class ShareGap:
    """Messages to be read from `mqlake.inbound`: by partition, from `start` up to, without `end`.

    The router gave them to no gateway; or to one, and its deliveries are gone.
    """

    start: list[int]
    end: list[int]
    since_ms: int
    """When the last membership left, or the gateway wrote its own for the last time."""
    chosen: Chosen | None = None
    """Choice among them, if they were a gateway's. None: all."""

    @property
    def is_empty(self) -> bool:
        return have_reached(self.start, self.end)

    def copy(self) -> ShareGap:
        return ShareGap(list(self.start), list(self.end), self.since_ms, self.chosen)


@dataclass(slots=True)
class MembershipRecord:
    """One gateway's membership in a share group."""

    membership_id: str
    """16 hexadecimal digits; a gateway that joins again has another membership."""
    group: GroupKey
    gateway: str
    incarnation: str
    state: MembershipState = MembershipState.JOINING
    number: int = 0
    """Counts the records of this membership."""
    next: int = 0
    """The first offset of its delivery topic that this record does not know of."""
    starts: list[int] | None = None
    """Per partition of `mqlake.inbound` where the group became live; before it is the gap."""
    given: list[int] | None = None
    """Per partition: messages before it were given to this or another membership. None: unknown."""
    open: OpenWork = field(default_factory=OpenWork)
    """Messages given to this membership and not dealt with."""
    gaps: list[ShareGap] = field(default_factory=list)
    """Still to be read from the log."""
    taken_over: list[str] = field(default_factory=list)
    """Memberships that it has taken over: their records are void."""
    assignee: str = ""
    """The membership that takes over one that has left, as the owner of the shard says."""
    asks: int = 0
    """Its gateway was cut off and asks whether it is still there; counts the questions."""
    at_ms: int = 0
    delivered: list[int] | None = None
    """Per partition of `mqlake.inbound`: of its gateway's deliveries before `next`, the offset
    behind the last. A message from before that is a repetition. None: an earlier release."""

    @property
    def run(self) -> Run:
        return Run(self.gateway, self.incarnation)

    def has(self, partition: int, offset: int) -> bool:
        """Tell whether a message of its gateway is among those that it has, or is to read."""
        return (partition, offset) in self.open or any(
            at(gap.start, partition) <= offset < at(gap.end, partition)
            and (gap.chosen is None or (partition, offset) not in gap.chosen.in_flight)
            for gap in self.gaps
        )


def membership_key(record: MembershipRecord) -> bytes:
    return key_of_membership(record.membership_id, record.group)


def key_of_membership(membership_id: str, group: GroupKey) -> bytes:
    return f"{MEMBERSHIP}/{membership_id}/{group.tenant}/{group.topic_filter}".encode()


def member_key(group: GroupKey, client_id: str) -> bytes:
    # No filter has a zero byte. [MQTT5-4.7.3-2]
    return f"{MEMBER}/{group.tenant}/{group.topic_filter}\0{client_id}".encode()


def decode_member_key(rest: str) -> tuple[GroupKey, str]:
    """Return group and client of the key behind `m/`.

    Raises:
        InvalidRecord: A part of the key is missing.
    """
    tenant, _, names = rest.partition("/")
    topic_filter, zero, client_id = names.partition("\0")
    if not zero:
        raise InvalidRecord(f"sessions key m/{rest}, expected m/tenant/filter, zero, client")
    return GroupKey(tenant, topic_filter), client_id


@dataclass(slots=True)
class MemberRecord:
    """Messages of a group in flight of a session that outlives its connection."""

    in_flight: list[Position] = field(default_factory=list)
    packet_ids: list[int] = field(default_factory=list)
    """Packet identifiers of the same messages."""
    known_packet_id: int | None = None
    """Last packet identifier that its progress knew of, if the session came from another gateway.
    None: it did not, or this is unknown."""

    def unknown_to(self, later: MemberRecord) -> list[Position]:
        """Return messages that the next gateway's record does not know: they were not sent.

        This record is written before the progress in which the messages are, and they are sent
        behind that; the two are in different shards.
        """
        known = later.known_packet_id
        if known is None or len(self.packet_ids) != len(self.in_flight):
            return []
        there = set(later.in_flight)
        return [
            at
            for at, packet_id in zip(self.in_flight, self.packet_ids, strict=True)
            if at not in there and 0 < (packet_id - known) % MAX_PACKET_ID <= MAX_PACKET_ID // 2
        ]


def encode_member(record: MemberRecord) -> bytes:
    """Write which messages of a group a session has in flight."""
    members: dict[str, Any] = {"v": RECORD_VERSION, "in_flight": record.in_flight}
    if record.packet_ids:
        members["packets"] = record.packet_ids
    if record.known_packet_id is not None:
        members["known"] = record.known_packet_id
    return json.dumps(members, separators=(",", ":")).encode()


def decode_member(value: bytes) -> MemberRecord:
    """Undo `encode_member`.

    Raises:
        InvalidRecord: Not JSON, another version, or malformed.
    """
    try:
        found = json.loads(value)
        check_version(found["v"], "share member")
        known = found.get("known")
        return MemberRecord(
            [(int(partition), int(offset)) for partition, offset in found["in_flight"]],
            _integers(found.get("packets", [])),
            None if known is None else int(known),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise InvalidRecord(f"share member cannot be read: {exc}") from exc


def group_shard(group: GroupKey, shards: int) -> int:
    """Return the shard of a group's records."""
    return shard_of(group.tenant, group.topic_filter, shards)


def decode_membership_key(rest: str) -> tuple[str, GroupKey]:
    """Return membership and group of the key behind `h/`.

    Raises:
        InvalidRecord: A part of the key is missing.
    """
    try:
        membership_id, tenant, topic_filter = rest.split("/", 2)
    except ValueError as exc:
        raise InvalidRecord(f"sessions key h/{rest}, expected h/part/tenant/filter") from exc
    return membership_id, GroupKey(tenant, topic_filter)


def encode_membership(record: MembershipRecord) -> bytes:
    """Write the value of a membership."""
    members: dict[str, Any] = {
        "v": RECORD_VERSION,
        "gateway": record.gateway,
        "incarnation": record.incarnation,
        "state": record.state.value,
        "number": record.number,
        "next": record.next,
        "delivered": record.delivered,
        "starts": record.starts,
        "given": record.given,
        "work": record.open.encode(),
        "gaps": [[gap.start, gap.end, gap.since_ms] for gap in record.gaps],
        "took": record.taken_over,
        "at": record.at_ms,
    }
    if any(gap.chosen is not None for gap in record.gaps):
        members["chosen"] = [gap.chosen and gap.chosen.encode() for gap in record.gaps]
    if record.assignee:
        members["taker"] = record.assignee
    if record.asks:
        members["asks"] = record.asks
    return json.dumps(members, separators=(",", ":")).encode()


def decode_membership(membership_id: str, group: GroupKey, value: bytes) -> MembershipRecord:
    """Undo `encode_membership`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or of a wrong type.
    """
    try:
        found = json.loads(value)
        check_version(found["v"], "share membership")
        chosen = found.get("chosen", [None] * len(found["gaps"]))
        return MembershipRecord(
            membership_id,
            group,
            str(found["gateway"]),
            str(found["incarnation"]),
            MembershipState(found["state"]),
            int(found["number"]),
            int(found["next"]),
            None if found["starts"] is None else _integers(found["starts"]),
            None if found["given"] is None else _integers(found["given"]),
            decode_work(found["work"]),
            [
                ShareGap(
                    _integers(start),
                    _integers(end),
                    int(since_ms),
                    None if one is None else decode_chosen(one),
                )
                for (start, end, since_ms), one in zip(found["gaps"], chosen, strict=True)
            ],
            [str(one) for one in found["took"]],
            str(found.get("taker", "")),
            int(found.get("asks", 0)),
            int(found["at"]),
            None if found.get("delivered") is None else _integers(found["delivered"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise InvalidRecord(f"share membership {membership_id} cannot be read: {exc}") from exc


def _integers(found: Any) -> list[int]:
    return [int(one) for one in found]
