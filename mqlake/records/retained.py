r"""Questions for retained messages, and their answers, between gateways.

The retained messages are divided into shards, of which there are as many as `mqlake.inbound` had
partitions when it was made. A partition that was added later has topics of one other, and so of
one shard: modulo the number of shards all partitions of a shard are the same. Of two messages of
one topic the later one has the greater *rank* (`rank_of`).

A question goes through all partitions of the shard that it asks about, and the router passes it on
at its positions in order: a reader of all has everything that was accepted before. The answer is a
control record of the gateway that asks; a page in one record, its payloads as they are.

    4 bytes: length of the JSON object │ JSON object │ of each message its properties, its payload
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

from mqlake.errors import InvalidRecord
from mqlake.records.members import integer, load, optional, text
from mqlake.records.versions import RECORD_VERSION

ANSWER: Final = "retained"
"""Action of the control record that holds an answer."""

_RECORD: Final = "record about retained messages"
_LENGTH: Final = Struct(">I")
_OFFSET_BITS: Final = 48
"""Bits of a rank for the offset; no partition ever has more records."""


def rank_of(partition: int, offset: int, shards: int) -> int:
    """Return the rank of a message among those of its topic: the greater, the later.

    A topic only moves to partitions of higher numbers. In the first one it is the offset.

    Args:
        partition: Partition of `mqlake.inbound`.
        offset: Offset in that partition.
        shards: Number of shards of the retained messages.
    """
    return (partition // shards) << _OFFSET_BITS | offset


def position_of(rank: int, shard: int, shards: int) -> tuple[int, int]:
    """Undo `rank_of`: return partition and offset."""
    partition = (rank >> _OFFSET_BITS) * shards + shard
    return partition, rank & (1 << _OFFSET_BITS) - 1


def partitions_of(shard: int, shards: int, partitions: int) -> range:
    """Return the partitions of a shard when `mqlake.inbound` has `partitions`."""
    return range(shard, partitions, shards)


@dataclass(frozen=True, slots=True)
class RetainedQuestion:
    """A gateway asks another one for a page of one shard's retained messages."""

    gateway: str
    """The one that asks."""
    incarnation: str
    """Run of that gateway: a later one is not interested."""
    number: int
    """Number of the question in its run; the answer has it too."""
    tenant: str
    shard: int
    """Shard of the retained messages."""
    topic_filter: str
    """A plain one, without `$share/<name>/`."""
    position: str | None
    """Topic name with which the page begins; None begins."""
    max_messages: int
    max_bytes: int
    """Bytes of payloads and properties; the message that reaches it is the last of the page."""
    through: int = 1
    """Number of partitions it goes through: all are to be read before it is answered."""


class RetainedMessage(NamedTuple):
    """A message of a page, of the shard that was asked about."""

    topic_name: str
    qos: int
    rank: int
    received_at_ms: int
    properties: bytes | None
    """JSON as in the header `properties`; None without any."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class RetainedAnswer:
    """A page, or the answer that the gateway has no complete copy of the shard."""

    gateway: str
    """The one that answers."""
    incarnation: str
    """Run of the gateway that asked."""
    number: int
    """Number of the question."""
    is_absent: bool
    """There is no complete copy there: another gateway is to be asked."""
    messages: list[RetainedMessage]
    position: str | None
    """Beginning of the next page; None after the last."""


def encode_question(question: RetainedQuestion) -> bytes:
    """Write the value of a question."""
    through = {"through": question.through} if question.through > 1 else {}
    return _dump(
        {
            "v": RECORD_VERSION,
            "gateway": question.gateway,
            "incarnation": question.incarnation,
            "number": question.number,
            "tenant": question.tenant,
            "shard": question.shard,
            "filter": question.topic_filter,
            "position": question.position,
            "max_messages": question.max_messages,
            "max_bytes": question.max_bytes,
            **through,
        }
    )


def decode_question(data: bytes) -> RetainedQuestion:
    """Undo `encode_question`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or of another type.
    """
    found = load(data, _RECORD)
    return RetainedQuestion(
        text(found, "gateway"),
        text(found, "incarnation"),
        integer(found, "number"),
        text(found, "tenant"),
        integer(found, "shard"),
        text(found, "filter"),
        optional(text, found, "position"),
        integer(found, "max_messages"),
        integer(found, "max_bytes"),
        integer(found, "through") if "through" in found else 1,
    )


def encode_answer(answer: RetainedAnswer) -> bytes:
    """Write the value of an answer."""
    members = {
        "v": RECORD_VERSION,
        "gateway": answer.gateway,
        "incarnation": answer.incarnation,
        "number": answer.number,
        "absent": answer.is_absent,
        "position": answer.position,
        "messages": [
            (
                one.topic_name,
                one.qos,
                one.rank,
                one.received_at_ms,
                None if one.properties is None else len(one.properties),
                len(one.payload),
            )
            for one in answer.messages
        ],
    }
    head = _dump(members)
    parts = [_LENGTH.pack(len(head)), head]
    for one in answer.messages:
        parts += (one.properties or b"", one.payload)
    return b"".join(parts)


def decode_answer(data: bytes) -> RetainedAnswer:
    """Undo `encode_answer`.

    Raises:
        InvalidRecord: Cut short, not JSON, another version, or a member is not as it must be.
    """
    at = _LENGTH.size
    if len(data) < at:
        raise InvalidRecord(f"answer of {len(data)} bytes, expected at least {at}")
    (length,) = _LENGTH.unpack_from(data)
    found = load(data[at : at + length], _RECORD)
    at += length
    messages = []
    try:
        for topic_name, qos, rank, received_at_ms, properties, payload in found["messages"]:
            middle = at + (properties or 0)
            end = middle + payload
            messages.append(
                RetainedMessage(
                    str(topic_name),
                    int(qos),
                    int(rank),
                    int(received_at_ms),
                    None if properties is None else data[at:middle],
                    data[middle:end],
                )
            )
            at = end
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidRecord(f"messages of an answer cannot be read: {exc}") from exc
    if at != len(data):
        raise InvalidRecord(f"answer of {len(data)} bytes, expected {at}")
    return RetainedAnswer(
        text(found, "gateway"),
        text(found, "incarnation"),
        integer(found, "number"),
        bool(found.get("absent")),
        messages,
        optional(text, found, "position"),
    )


def _dump(members: dict[str, Any]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
