"""What a neighbour gets of a log, and how far its cursor is."""

import gc
import tracemalloc
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.envelope import ChainKey, to_header
from ingest.federation.envelope import SiteMessage as Federated
from ingest.federation.prefixes import Prefixes
from ingest.federation.sites.interest.interest import NeighbourInterest
from ingest.federation.sites.streams.inlet import Inlet
from ingest.federation.sites.streams.log_messages import of_offer, of_publish
from ingest.federation.sites.streams.outlet import NO_LIMITS, Outlet, OutletCounters, SiteLog
from ingest.federation.sites.streams.streams import StreamKey, Streams
from ingest.protocol.packets import Publish
from mqlake.records.federation import LinkPosition
from mqlake.records.messages import (
    HEADER_SOURCE,
    LogRecord,
    Message,
    Source,
    encode_source,
    message_headers,
    message_key,
)

SITE, NEIGHBOUR, THIRD = 1, 2, 3
NOW_MS = 1_700_000_000_000
WANTED = NeighbourInterest()
WANTED.permit(NEIGHBOUR, ("f/#",))
WANTED.permit(THIRD, ("g/#",))
HEAR = Inlet(Streams(), {}).hear_offer
LOG = SiteLog(SITE, 7, "default", "federator", 4, Prefixes([("own/", "f/plant/")]), WANTED, HEAR)


def record(
    offset: int, topic: str = "f/x", *, partition: int = 0, age_ms: int = 0, **fields: Any
) -> LogRecord:
    """Return what a gateway writes for a PUBLISH."""
    given: dict[str, Any] = {"qos": 1, "retain": False, "payload": b"%d" % offset}
    message = Message(
        tenant="default",
        topic_name=topic,
        message_id=bytes(16),
        client_id="c",
        received_at_ms=0,
        origin="a/gateway-1",
        **given | fields,
    )
    headers = message_headers(message)
    key = message_key(message.tenant, topic)
    return LogRecord(partition, offset, NOW_MS - age_ms, key, message.payload, headers)


def relayed(offset: int, *, origin: int, sender: int, hops: int = 1) -> LogRecord:
    """Return what a federator writes for a message of a neighbour."""
    found = record(offset)
    message = Federated(ChainKey(origin, 1, "f/x"), 50, 49, 0, 0, b"", 1, False, hops=hops)
    return found._replace(headers=[*found.headers, to_header(message, sender)])


def outlet(
    position: LinkPosition | None = None,
    *,
    window: int = 100,
    counters: OutletCounters | None = None,
    limits: Mapping[StreamKey, int] = NO_LIMITS,
) -> Outlet:
    return Outlet(
        LOG,
        NEIGHBOUR,
        position or LinkPosition({0: 0}),
        window=window,
        counters=counters or OutletCounters(),
        limits=limits,
    )


def sent(made: Outlet, *records: LogRecord) -> list[Publish]:
    made.take(records, NOW_MS)
    return made.ready()


def test_a_message_says_after_which_of_its_origin_it_comes() -> None:
    publishes = sent(outlet(), record(0), record(1, "private"), record(2), record(5))
    messages = [of_publish(one, prefix="federator").message for one in publishes]
    assert [(one.after, one.sequence) for one in messages] == [(0, 1), (1, 3), (3, 6)]
    assert {(one.key.origin, one.key.epoch, one.partition) for one in messages} == {(SITE, 7, 0)}


def test_what_may_come_on_another_path_is_not_ruled_out() -> None:
    publishes = sent(outlet(), record(0), record(1, "g/x"), record(3), record(4, "private"))
    messages = [of_publish(one, prefix="federator").message for one in publishes]
    assert [(one.after, one.sequence) for one in messages] == [(0, 1), (2, 4)]
    made = outlet(LinkPosition({0: 9}))
    made.skip()
    (publish,) = sent(made, record(12))
    assert of_publish(publish, prefix="federator").message.after == 12


def test_nothing_goes_back_or_round_for_ever() -> None:
    counters = OutletCounters()
    made = outlet(counters=counters)
    publishes = sent(
        made,
        relayed(0, origin=NEIGHBOUR, sender=THIRD),
        relayed(1, origin=THIRD, sender=NEIGHBOUR),
        relayed(2, origin=THIRD, sender=THIRD, hops=LOG.hop_limit),
        relayed(3, origin=THIRD, sender=THIRD),
    )
    (message,) = [of_publish(one, prefix="federator").message for one in publishes]
    assert (message.key.origin, message.sequence, message.after, message.hops) == (THIRD, 50, 49, 1)
    assert counters.over_hop_limit == 1


@pytest.mark.parametrize(
    "other",
    [
        record(0, "$SYS/x"),
        record(0)._replace(key=b"another/f/x"),
        record(0)._replace(key=None),
        record(0)._replace(key=b"\0barrier/g/i/1/2/3"),
        record(0)._replace(headers=[]),
        record(0)._replace(headers=[*record(0).headers, ("mqlake-federation", b"9.9")]),
        record(0)._replace(headers=[*record(0).headers, ("properties", b"{")]),
    ],
)
def test_other_records_are_passed_over(other: LogRecord) -> None:
    position = LinkPosition({0: 0})
    assert sent(outlet(position), other) == []
    assert position.cursor == {0: 1}


def test_topics_have_their_federated_names() -> None:
    (publish,) = sent(outlet(), record(0, "own/line"))
    assert of_publish(publish, prefix="federator").message.topic == "f/plant/line"


def test_expiry_counts_on_the_way() -> None:
    counters = OutletCounters()
    made = outlet(counters=counters)
    properties = {"message_expiry_interval": 10}
    publishes = sent(
        made,
        record(0, age_ms=3_000, properties=properties, protocol_level=5),
        record(1, age_ms=10_000, properties=properties, protocol_level=5),
    )
    (message,) = [of_publish(one, prefix="federator").message for one in publishes]
    assert message.properties["message_expiry_interval"] == 7
    assert message.age_ms == 3_000
    assert counters.expired == 1


def test_nobody_waits_for_what_has_expired() -> None:
    over: dict[str, Any] = {
        "properties": {"message_expiry_interval": 10},
        "protocol_level": 5,
        "age_ms": 10_000,
    }
    present = {**over, "age_ms": 9_999}
    other = [record(1, "g/x", **present), record(2, "g/x", **over), record(3, "g/x", **over)]
    publishes = sent(outlet(), record(0), *other, record(4))
    messages = [of_publish(one, prefix="federator").message for one in publishes]
    assert [(one.after, one.sequence) for one in messages] == [(0, 1), (2, 5)]


def test_no_more_than_the_window_is_unacknowledged() -> None:
    made = outlet(window=3)
    first = sent(made, *(record(offset) for offset in range(10)))
    assert len(first) == 3
    assert made.is_full
    made.acknowledge(first[1].packet_id)
    assert [one.payload for one in made.ready()] == [b"3"]
    assert made.waiting == 9


@given(st.randoms(use_true_random=False))
def test_the_cursor_stands_before_the_first_that_is_not_acknowledged(random: Random) -> None:
    position = LinkPosition({0: 0, 1: 0})
    made = outlet(
        position,
        window=random.randint(1, 8),
        limits={StreamKey(THIRD, 1, one): 5 for one in (0, 1)},
    )
    unacknowledged: dict[int, tuple[int, int]] = {}
    wanted = {0: set[int](), 1: set[int]()}
    ends = {0: 0, 1: 0}
    left: dict[int, int] = {}

    def send() -> None:
        for publish in made.ready():
            at = publish.payload.decode().split("/")
            unacknowledged[publish.packet_id] = (int(at[0]), int(at[1]))

    def acknowledge(packet_id: int) -> None:
        made.acknowledge(packet_id)
        partition, offset = unacknowledged.pop(packet_id)
        wanted[partition].remove(offset)
        check()

    def check() -> None:
        for one, end in ends.items():
            ahead = min(wanted[one], default=end)
            assert made.ahead[one] == ahead
            assert position.cursor[one] == min(ahead, left.get(one, end))

    for _ in range(60):
        partition = random.randint(0, 1)
        offset = ends[partition]
        ends[partition] += 1
        kind = random.random()
        if kind < 0.1:  # above the limit
            found = stream_record(offset, partition, offset + 6)
            left.setdefault(partition, offset)
        else:
            found = record(offset, "f/x" if kind < 0.6 else "private")
            if kind < 0.6:
                wanted[partition].add(offset)
        payload = f"{partition}/{offset}".encode()
        made.take([found._replace(partition=partition, value=payload)], NOW_MS)
        check()
        send()
        for packet_id in random.sample(
            sorted(unacknowledged), random.randint(0, len(unacknowledged))
        ):
            acknowledge(packet_id)
    while unacknowledged or made.waiting:
        for packet_id in list(unacknowledged):
            acknowledge(packet_id)
        send()


def test_nothing_is_kept_of_messages_acknowledged_behind_one_that_is_held() -> None:
    position = LinkPosition({0: 0})
    made = outlet(position)
    (held,) = sent(made, record(0))

    def pass_by(begin: int) -> None:
        for offset in range(begin, begin + 2_000, 2):
            (publish,) = sent(made, record(offset), record(offset + 1, "private"))
            made.acknowledge(publish.packet_id)

    pass_by(1)  # what is made once is made
    tracemalloc.start()
    try:
        pass_by(2_001)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 20_000, "bytes for 1,000 messages"
    assert (made.waiting, position.cursor) == (1, {0: 0})
    made.acknowledge(held.packet_id)
    assert position.cursor == {0: 4_001}


def test_an_acknowledgement_that_nobody_waits_for_changes_nothing() -> None:
    position = LinkPosition({0: 0})
    made = outlet(position)
    made.acknowledge(5)
    assert position == LinkPosition({0: 0})


def test_of_a_spare_path_messages_are_offered_until_they_are_asked_for() -> None:
    position = LinkPosition({0: 0})
    made = outlet(position)
    (whole,) = sent(made, record(0))
    made.direct(spare=(SITE,), whole=())
    offers = sent(made, record(1), record(2), relayed(3, origin=THIRD, sender=THIRD))
    stream = StreamKey(SITE, 7, 0)
    assert [of_offer(one) for one in offers[:2]] == [(stream, 2), (stream, 3)]
    assert of_publish(offers[2], prefix="federator").message.key.origin == THIRD
    for one in (whole, offers[1], offers[2]):
        made.acknowledge(one.packet_id)
    assert position.cursor == {0: 1}
    made.take([record(4)], NOW_MS)
    made.direct(spare=(), whole=(SITE,))
    asked, later = made.ready()
    assert (asked.payload, later.payload) == (b"1", b"4")
    made.acknowledge(offers[0].packet_id)
    assert position.cursor == {0: 1}
    made.acknowledge(asked.packet_id)
    made.acknowledge(later.packet_id)
    assert position.cursor == {0: 5}


def test_what_was_offered_and_not_had_goes_whole_in_its_order() -> None:
    made = outlet(window=4)
    made.direct(spare=(SITE,), whole=())
    offers = sent(made, *(record(offset) for offset in range(6)))
    assert len(offers) == 4
    made.acknowledge(offers[1].packet_id)
    made.direct(spare=(), whole=())
    again = made.ready()
    for one in again:
        made.acknowledge(one.packet_id)
    assert [one.payload for one in (*again, *made.ready())] == [b"0", b"2", b"3", b"4", b"5"]


def test_what_the_router_repeats_for_a_group_goes_once() -> None:
    """Of two copies on their way one could come back, and the other find a member."""
    position = LinkPosition({0: 0})
    outlet = Outlet(LOG, NEIGHBOUR, position, window=10, counters=OutletCounters())

    def delivered(offset: int, source: int, *groups: str) -> LogRecord:
        found = record(source)
        at = encode_source(Source(1, source, NOW_MS, groups))
        headers = [*found.headers, (HEADER_SOURCE, at)]
        return found._replace(partition=0, offset=offset, headers=headers)

    both = ("$share/g/f/#", "$share/h/f/+")
    outlet.take_handed([delivered(0, 7, *both), delivered(1, 7, *both), delivered(2, 9)], NOW_MS)
    outlet.take_handed([delivered(3, 10, both[0])], NOW_MS)
    sent = outlet.ready()
    places_sent = [of_publish(one, prefix="federator").handed for one in sent]
    assert [(one.sequence, one.after, one.group) for one in places_sent if one] == [
        (8, 7, both[0]),
        (8, 7, both[1]),
        (11, 8, both[0]),
    ]
    outlet.acknowledge(sent[1].packet_id)
    assert position.handed == 0
    outlet.acknowledge(sent[0].packet_id)
    assert position.handed == 3, "repeated and other records need no acknowledgement"
    outlet.acknowledge(sent[2].packet_id)
    assert position.handed == 4


def stream_record(offset: int, partition: int, number: int) -> LogRecord:
    """Return a record of a message of another site's partition."""
    found = record(offset)
    message = Federated(ChainKey(THIRD, 1, "f/x"), number, number - 1, 0, 0, b"", 1, retain=False)
    message.partition = partition
    return found._replace(headers=[*found.headers, to_header(message, THIRD)])


def test_above_a_limit_messages_stay_and_the_cursor_before_them() -> None:
    position = LinkPosition({0: 0})
    made = outlet(position, limits={StreamKey(THIRD, 1, 0): 5})
    records = [
        stream_record(0, 0, 5),
        stream_record(1, 1, 50),
        record(2, "private"),
        stream_record(3, 0, 6),  # above it
        stream_record(4, 1, 51),
        record(5, "private"),
        stream_record(6, 0, 4),  # and one that is not
    ]
    publishes = sent(made, *records)
    assert [of_publish(one, prefix="federator").message.sequence for one in publishes] == [
        5,
        50,
        51,
        4,
    ]
    for publish in publishes[:2]:
        made.acknowledge(publish.packet_id)
    assert (position.cursor, made.ahead) == ({0: 3}, {0: 4})
    for publish in publishes[2:]:
        made.acknowledge(publish.packet_id)
    assert (position.cursor, made.ahead) == ({0: 3}, {0: 7})
    again = sent(outlet(position), *records[3:])
    assert [of_publish(one, prefix="federator").message.sequence for one in again] == [6, 51, 4]
