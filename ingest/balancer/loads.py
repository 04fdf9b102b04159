"""Expected load of clients: from their rates, such as those of last week, and subscriptions.

A file of lines `<tenant>,<client_id>,<rate>,<topic>`, with a header or without, in any order and
any unit of rates. A line says that

- `t,c,0.5,` or `t,c,0.5`: a client publishes that number of messages;
- `t,,2.5,a/b`: that number of messages comes to a topic, from all publishers;
- `t,c,,a/+`: a client is subscribed to a topic filter.

An apostrophe before text that a spreadsheet would take for a formula, as the API's CSV has it
(`'+/a`), is no part of the text.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final

from ingest.balancer.placement import bucket_of
from ingest.balancer.talks import Circle, Talks, choose, circles_of, key_of
from mqlake.errors import MqlakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ingest.balancer.talks import Client

FLOOR: Final = 0.5
"""Part of the load that is spread evenly: over clients that the file does not know, and over the
cost of a client that sends nothing."""
DELIVERY: Final = 0.5
"""Cost to a gateway of a message that a client gets, relative to one that a client publishes: 5 of
11 µs, as they were measured."""
MOST_LINES: Final = 1_000_000
"""With a topic; they are in memory while the file is read."""
_ESCAPED: Final = re.compile(r"^'(?=[=@\t\r+-])")


class LoadsError(MqlakeError):
    """A file of rates cannot be read."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The load of all clients."""

    loads: tuple[float, ...]
    """Load of each bucket, with all of its clients; the mean is 1."""
    talks: Talks = Talks()  # noqa: RUF009 - frozen


def read_expected(
    open_lines: Callable[[], Iterable[str]], buckets: int, most_talkers: int
) -> Expected:
    """Return the loads in a file.

    Args:
        open_lines: Gives the lines; it is called twice.
        buckets: How many.
        most_talkers: Clients that may have a place of their own, at most.

    Raises:
        LoadsError: A line is none of those above, or too many have a topic.
    """
    circles, subscribers = _circles(open_lines())
    own = dict.fromkeys(subscribers, 0.0)
    for circle, heard in circles.items():
        for client in circle:
            own[client] += DELIVERY * heard
    rates = [0.0] * buckets
    for (tenant, client_id), heard in own.items():
        rates[bucket_of(tenant, client_id, buckets)] += heard
    known = len(own)
    for tenant, client_id, rate, topic in _read(open_lines()):
        if rate is not None and not topic and client_id:
            rates[bucket_of(tenant, client_id, buckets)] += rate
            if (tenant, client_id) in own:
                own[tenant, client_id] += rate
            else:
                known += 1
    total = sum(rates)
    if not total:
        return Expected((1.0,) * buckets)
    loads = tuple(FLOOR + (1 - FLOOR) * rate * buckets / total for rate in rates)
    chosen = choose(circles, most_talkers)
    index = {client: number for number, client in enumerate(chosen)}
    talks = Talks(
        tuple(key_of(*client) for client in chosen),
        tuple((FLOOR / known + (1 - FLOOR) * own[client] / total) * buckets for client in chosen),
        tuple(bucket_of(*client, buckets) for client in chosen),
        tuple(
            Circle(rate, tuple(index[client] for client in circle))
            for circle, rate in circles.items()
            if len(circle) > 1 and rate > 0 and index.keys() >= set(circle)
        ),
    )
    return Expected(loads, talks)


def _circles(lines: Iterable[str]) -> tuple[dict[tuple[Client, ...], float], list[Client]]:
    """Return who hears the same, with the rate of that, and all who hear something."""
    topics: dict[tuple[str, str], float] = {}
    subscriptions: list[tuple[Client, str]] = []
    for tenant, client_id, rate, topic in _read(lines):
        if len(topics) + len(subscriptions) > MOST_LINES:
            raise LoadsError(f"more than {MOST_LINES} lines have a topic")
        if rate is None:
            subscriptions.append(((tenant, client_id), topic))
        elif topic:
            topics[tenant, topic] = topics.get((tenant, topic), 0.0) + rate
    return circles_of(topics, subscriptions), [client for client, _ in subscriptions]


def without(expected: Expected, keys: Iterable[str]) -> list[float]:
    """Return the load of each bucket without those clients, who have places of their own."""
    loads = list(expected.loads)
    talks = expected.talks
    gone = set(keys)
    for key, load, bucket in zip(talks.keys, talks.loads, talks.buckets, strict=True):
        if key in gone:
            loads[bucket] = max(0.0, loads[bucket] - load)
    return loads


def _read(lines: Iterable[str]) -> Iterator[tuple[str, str, float | None, str]]:
    """Yield tenant, client identifier, rate and topic of each line; no rate: a subscription."""
    for number, row in enumerate(csv.reader(lines), 1):
        if not row or (number == 1 and row[2:3] == ["rate"]):
            continue
        try:
            row = [_ESCAPED.sub("", text, count=1) for text in row]
            tenant, client_id, text, topic = row if len(row) != 3 else (*row, "")
            rate = float(text) if text else None
        except ValueError as exc:
            raise LoadsError(
                f"line {number}: expected tenant,client_id,rate,topic, got {row}"
            ) from exc
        if rate is None and not (client_id and topic):
            raise LoadsError(f"line {number}: without a rate it needs a client and a topic filter")
        if rate is not None and client_id and topic:
            raise LoadsError(f"line {number}: a rate is of a client or of a topic, not of both")
        if rate is not None and (not isfinite(rate) or rate < 0):
            raise LoadsError(f"line {number}: rate {text} is not a number from 0")
        yield tenant, client_id, rate, topic
