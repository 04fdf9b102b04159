"""A gateway's part of a share group, as `mqlake.sessions` has it, and all parts of all groups.

    joining ──► live ──► leaving ──► left ──another part takes it, or its group ends──► gone

A share group has no owner: each gateway with members has a part. What was given to a part and is
not dealt with is in its record; a part that has left stays in the log until another takes it over.

Everything is decided by the order of the log, which all gateways read alike. The router always has
a gateway for a group that is live: who leaves withdraws its route only when another part is live,
and who joins such a group begins beside it. Who joins a group that has no live part is its first:
those that have left say up to where the router gave them something, and from there to the first
barrier of the first part the log holds what nobody was given, its gap.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ingest.session.open_work import OpenWork, decode_work
from mqlake.errors import InvalidRecord
from mqlake.offsets import have_reached, latest
from mqlake.record_versions import RECORD_VERSION, check_version

if TYPE_CHECKING:
    from collections.abc import Iterator

PART_KEY_PREFIX: Final = b"h/"


class GroupKey(NamedTuple):
    tenant: str
    topic_filter: str
    """As subscribed, with `$share/<name>/`."""


class PartState(StrEnum):
    JOINING = "joining"
    """Said so; with `starts` it has begun beside others, else it waits for its turn."""
    LIVE = "live"
    """The router has its route."""
    LEAVING = "leaving"
    """It has no members and withdraws its route as soon as the group can do without."""
    LEFT = "left"
    """The router gives it nothing more."""


@dataclass(slots=True)
class Gap:
    """What the router gave to nobody: from `start` up to and without `end`, by partition."""

    start: list[int]
    end: list[int]
    since_ms: int
    """When the last part left."""

    @property
    def is_empty(self) -> bool:
        return have_reached(self.start, self.end)


@dataclass(slots=True)
class PartRecord:
    """One gateway's part of a share group."""

    part_id: str
    """16 hexadecimal digits; a gateway that joins again has another part."""
    group: GroupKey
    gateway: str
    incarnation: str
    state: PartState = PartState.JOINING
    number: int = 0
    """Counts the records of this part."""
    next: int = 0
    """The first offset of its delivery topic that this record does not know of."""
    starts: list[int] | None = None
    """Per partition of `mqlake.inbound` where the group became live; before it is the gap."""
    given: list[int] | None = None
    """Per partition: what is before was given to this part or to others. None: says nothing."""
    open: OpenWork = field(default_factory=OpenWork)
    """What was given to this part and is not dealt with."""
    gaps: list[Gap] = field(default_factory=list)
    """What is still to be read from the log."""
    takes: list[str] = field(default_factory=list)
    """Parts that have left and that it would take over; the first to say so does."""
    took: list[str] = field(default_factory=list)
    """Parts that it has taken over: their records are void."""
    at_ms: int = 0


def part_key(record: PartRecord) -> bytes:
    return key_of_part(record.part_id, record.group)


def key_of_part(part_id: str, group: GroupKey) -> bytes:
    return PART_KEY_PREFIX + f"{part_id}/{group.tenant}/{group.topic_filter}".encode()


def decode_part_key(key: bytes) -> tuple[str, GroupKey]:
    """Return the part and its group.

    Raises:
        InvalidRecord: A part of the key is missing, or it is not UTF-8.
    """
    try:
        part_id, tenant, topic_filter = key[len(PART_KEY_PREFIX) :].decode().split("/", 2)
    except ValueError as exc:
        raise InvalidRecord(f"sessions key {key!r}, expected h/part/tenant/filter") from exc
    return part_id, GroupKey(tenant, topic_filter)


def encode_part(record: PartRecord) -> bytes:
    """Write the value of a part."""
    members: dict[str, Any] = {
        "v": RECORD_VERSION,
        "gateway": record.gateway,
        "incarnation": record.incarnation,
        "state": record.state.value,
        "number": record.number,
        "next": record.next,
        "starts": record.starts,
        "given": record.given,
        "work": record.open.encode(),
        "gaps": [[gap.start, gap.end, gap.since_ms] for gap in record.gaps],
        "takes": record.takes,
        "took": record.took,
        "at": record.at_ms,
    }
    return json.dumps(members, separators=(",", ":")).encode()


def decode_part(key: bytes, value: bytes) -> PartRecord:
    """Undo `part_key` and `encode_part`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or of a wrong type.
    """
    part_id, group = decode_part_key(key)
    try:
        found = json.loads(value)
        check_version(found["v"], "share part")
        return PartRecord(
            part_id,
            group,
            str(found["gateway"]),
            str(found["incarnation"]),
            PartState(found["state"]),
            int(found["number"]),
            int(found["next"]),
            None if found["starts"] is None else _integers(found["starts"]),
            None if found["given"] is None else _integers(found["given"]),
            decode_work(found["work"]),
            [
                Gap(_integers(start), _integers(end), int(since_ms))
                for start, end, since_ms in found["gaps"]
            ],
            [str(one) for one in found["takes"]],
            [str(one) for one in found["took"]],
            int(found["at"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise InvalidRecord(f"share part {part_id} cannot be read: {exc}") from exc


def _integers(found: Any) -> list[int]:
    return [int(one) for one in found]


class Outlook(NamedTuple):
    """What a part that joins can do, as of the log."""

    starts: list[int] | None
    """Where the group became live: it begins beside the others. None: it is the first."""


class ShareTable:
    """All parts of all groups as the log has them, in the order in which they joined."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, dict[str, PartRecord]] = {}
        # Groups that have parts that have left, and the others by who has them: time passes for
        # these, not for all.
        self._left: dict[GroupKey, set[str]] = {}
        self._by_run: dict[tuple[str, str], dict[tuple[GroupKey, str], None]] = {}
        # Part that has left -> who would take it, in the order of the log.
        self._claims: dict[str, list[str]] = {}

    def apply(self, key: bytes, value: bytes | None) -> tuple[GroupKey, str]:
        """Take a record in the order of the log; return whose part it is of.

        A part that has left says nothing more: a later record of its gateway, which was taken for
        dead and does not know it yet, is passed over.

        Raises:
            InvalidRecord: It cannot be read.
        """
        if value is None:
            part_id, group = decode_part_key(key)
            self._remove(group, part_id)
            return group, part_id
        record = decode_part(key, value)
        parts = self._groups.setdefault(record.group, {})
        known = parts.get(record.part_id)
        if known is None or known.state is not PartState.LEFT or record.state is PartState.LEFT:
            self._put(parts, known, record)
        for taken in record.takes:
            if taken in parts and record.part_id not in self._claims.setdefault(taken, []):
                self._claims[taken].append(record.part_id)
        for taken in record.took:
            self._remove(record.group, taken)
        return record.group, record.part_id

    def get(self, group: GroupKey, part_id: str) -> PartRecord | None:
        return self._groups.get(group, {}).get(part_id)

    def parts(self, group: GroupKey) -> list[PartRecord]:
        return list(self._groups.get(group, {}).values())

    def __iter__(self) -> Iterator[PartRecord]:
        for group in list(self._groups):
            yield from self.parts(group)

    def groups_with_left(self) -> list[GroupKey]:
        """Return the groups that have parts that have left."""
        return list(self._left)

    def runs(self) -> list[tuple[str, str]]:
        """Return which runs of gateways have parts that have not left."""
        return list(self._by_run)

    def of_run(self, run: tuple[str, str]) -> list[PartRecord]:
        return [self._groups[group][part_id] for group, part_id in self._by_run.get(run, ())]

    def left(self, group: GroupKey) -> list[PartRecord]:
        """Return the parts that have left and that nobody has taken."""
        return [one for one in self.parts(group) if one.state is PartState.LEFT]

    def live(self, group: GroupKey) -> list[PartRecord]:
        return [one for one in self.parts(group) if one.state is PartState.LIVE]

    def is_present(self, group: GroupKey) -> bool:
        """Tell whether any gateway has, or will have, a part that is not left."""
        return any(one.state is not PartState.LEFT for one in self.parts(group))

    def outlook(self, group: GroupKey, part_id: str) -> Outlook | None:
        """Return how a part joins; None while that depends on others.

        Those that joined before it and have not begun come first; those that leave must have left,
        for only then is it known up to where they were given something.
        """
        starts: list[int] | None = None
        waits = False
        is_earlier = True
        for one in self.parts(group):
            if one.part_id == part_id:
                is_earlier = False
            elif one.state is PartState.LEAVING:
                waits = True
            elif one.state is not PartState.LEFT:
                if one.starts is not None:
                    starts = latest(one.starts, starts)
                elif is_earlier:
                    waits = True
        if starts is not None:
            return Outlook(starts)
        return None if waits else Outlook(None)

    def others_to_wait_for(self, group: GroupKey, part_id: str) -> list[str]:
        """Return who will be live whatever the part does that now begins to leave.

        They joined while it was live, so they begin, or have begun, beside it.
        """
        return [
            one.part_id
            for one in self.parts(group)
            if one.part_id != part_id and one.state in {PartState.JOINING, PartState.LIVE}
        ]

    def taker(self, group: GroupKey, part_id: str) -> str | None:
        """Return who takes over a part that has left: the first that said so and is there."""
        for claim in self._claims.get(part_id, ()):
            taker = self.get(group, claim)
            if taker is not None and taker.state is not PartState.LEFT:
                return claim
        return None

    def _put(
        self, parts: dict[str, PartRecord], known: PartRecord | None, record: PartRecord
    ) -> None:
        if known is None or known.state is not record.state:
            self._forget(known)
            if record.state is PartState.LEFT:
                self._left.setdefault(record.group, set()).add(record.part_id)
            else:
                run = (record.gateway, record.incarnation)
                self._by_run.setdefault(run, {})[record.group, record.part_id] = None
        parts[record.part_id] = record

    def _forget(self, part: PartRecord | None) -> None:
        if part is None:
            return
        if part.state is PartState.LEFT:
            self._left[part.group].discard(part.part_id)
            if not self._left[part.group]:
                del self._left[part.group]
            return
        run = (part.gateway, part.incarnation)
        del self._by_run[run][part.group, part.part_id]
        if not self._by_run[run]:
            del self._by_run[run]

    def _remove(self, group: GroupKey, part_id: str) -> None:
        parts = self._groups.get(group)
        if parts is not None and part_id in parts:
            self._forget(parts.pop(part_id))
            if not parts:
                del self._groups[group]
        self._claims.pop(part_id, None)
