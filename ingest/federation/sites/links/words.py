"""Control packets between two federators: JSON in PUBLISHes with QoS 0.

A connection begins with interest, one packet for each site that wants something, and then the
hello: the filters that the other side may bring. So a site that hears the hello knows all interest.
    News of interest follow when there are any.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ingest.federation.sites.interest.interest import News, read_news
from ingest.federation.sites.streams.passing import MOST_QUESTIONS, PassingQuestion
from ingest.federation.sites.streams.streams import StreamKey
from mqlake.errors import InvalidRecord, InvalidTopic, MqlakeError
from mqlake.topics.names import validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION: Final = 1
MOST_WANTED: Final = 10_000
"""Filters in a hello."""


class InvalidWord(MqlakeError):  # noqa: N818 - it names the thing refused
    """A neighbour's packet is none of ours."""


class Hello(NamedTuple):
    """Hello of a site, sent when it has said all that it wants."""

    site: int
    allows: tuple[str, ...]
    """Filters of the federation that the other side may bring."""
    shares: bool = False
    """It takes messages for share groups."""
    limits: dict[StreamKey, int] | None = None
    """The last number of a stream that the other side may bring on this connection: higher ones
    wait where they are. None: it knows nothing of limits."""


class DeliveryWays(NamedTuple):
    """How messages are to come from here on, each once on one of several paths."""

    spare: tuple[int, ...] = ()
    """Origins of which messages are to be offered only."""
    whole: tuple[int, ...] = ()
    """Origins of which they are to come whole again; neither: of all."""


class Reached(NamedTuple):
    """All sites that can be reached behind the sender know a site's interest."""

    versions: dict[int, int]
    """By site, up to which number."""


class Asked(NamedTuple):
    """The sender has gaps in streams: what may still come of them from here?"""

    questions: tuple[PassingQuestion, ...]


class Passed(NamedTuple):
    """Numbers that the sender does not bring any more."""

    numbers: dict[PassingQuestion, int]
    """Up to which number of the stream."""


def encode_asked(asked: Asked) -> bytes:
    """Return the payload that asks a neighbour."""
    return _encode({"asked": [(*one.key, *one.through) for one in asked.questions]})


def encode_passed(passed: Passed) -> bytes:
    """Return the payload of an answer."""
    numbers = passed.numbers.items()
    return _encode({"passed": [(number, *one.key, *one.through) for one, number in numbers]})


def encode_reached(reached: Reached) -> bytes:
    """Return the payload with the numbers known behind this site."""
    return _encode({"reached": reached.versions})


def encode_ways(ways: DeliveryWays) -> bytes:
    """Return the payload that tells a neighbour how to send."""
    return _encode({"spare": ways.spare, "whole": ways.whole})


def encode_hello(hello: Hello) -> bytes:
    """Return the payload of a hello."""
    members = {"from": hello.site, "allows": hello.allows, "shares": hello.shares}
    if hello.limits is not None:
        members["limits"] = [(number, *key) for key, number in hello.limits.items()]
    return _encode(members)


def encode_news(news: News) -> Iterator[bytes]:
    """Yield the payload of a packet for each site that there is something new of."""
    for site, entry in news.items():
        yield _encode({"interest": {site: entry}})


Word = Hello | News | Reached | DeliveryWays | Asked | Passed


def decode(payload: bytes) -> Word:
    """Undo `encode_hello`, `encode_news`, `encode_reached`, `encode_ways`, and so on.

    Raises:
        InvalidWord: It is none of these.
    """
    try:
        found = json.loads(payload)
        if found["v"] != VERSION:
            raise InvalidWord(f"packet of version {found['v']!r}, expected {VERSION}")
        if "interest" in found:
            return read_news(found["interest"])
        if "reached" in found:
            versions = {int(site): one for site, one in found["reached"].items()}
            if any(type(one) is not int for one in versions.values()):
                raise InvalidWord(f"numbers that are none: {versions!r}")
            return Reached(versions)
        if "spare" in found:
            told = DeliveryWays(*(tuple(found[name]) for name in DeliveryWays._fields))
            if any(type(one) is not int for numbers in told for one in numbers):
                raise InvalidWord(f"ways that are no numbers: {told!r}")
            return told
        if "asked" in found:
            return Asked(tuple(_question(one) for one in _numbers(found["asked"])))
        if "passed" in found:
            return Passed({_question(one[1:]): one[0] for one in _numbers(found["passed"])})
        site, allows = found["from"], found["allows"]
        if type(site) is not int or not isinstance(allows, list) or len(allows) > MOST_WANTED:
            raise InvalidWord(f"hello from {site!r} that allows {type(allows).__name__}")
        for one in allows:
            validate_topic_filter(one)
        limits = None
        if "limits" in found:
            limits = {StreamKey(*key): number for number, *key in _numbers(found["limits"])}
        return Hello(site, tuple(allows), found.get("shares") is True, limits)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        InvalidRecord,
        InvalidTopic,
        RecursionError,
    ) as exc:
        raise InvalidWord(f"packet cannot be read: {exc!r}") from exc


def _numbers(rows: list[list[int]]) -> list[list[int]]:
    """Return rows of numbers, none below zero."""
    if len(rows) > MOST_QUESTIONS:
        raise InvalidWord(f"{len(rows)} questions, expected at most {MOST_QUESTIONS}")
    if any(type(one) is not int or one < 0 for row in rows for one in row):
        raise InvalidWord(f"questions that are no numbers: {rows!r:.80}")
    return rows


def _question(row: list[int]) -> PassingQuestion:
    origin, epoch, partition, *through = row
    if not through or len(through) != len(set(through)):
        raise InvalidWord(f"question that has come through {through!r:.80}")
    return PassingQuestion(StreamKey(origin, epoch, partition), tuple(through))


def _encode(members: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **members}, separators=(",", ":")).encode()
