"""Sites that set the same topics while apart agree; random federations, and defects they find.

Each site has a log of two partitions, an outlet for each neighbour and `SiteRetained`, as the
federator has them; what is between is a queue. Links are cut, federators are killed and begin again
with what was kept, clocks differ by a minute.
"""

from collections import deque
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from ingest.federation.envelope import ChainKey
from ingest.federation.envelope import SiteMessage as Federated
from ingest.federation.prefixes import Prefixes
from ingest.federation.sites.interest.interest import NeighbourInterest
from ingest.federation.sites.streams import retained
from ingest.federation.sites.streams.inlet import Inlet, InletVerdict
from ingest.federation.sites.streams.log_messages import of_publish, of_record, to_record
from ingest.federation.sites.streams.outlet import Outlet, OutletCounters, SiteLog
from ingest.federation.sites.streams.retained import Rank, SiteRetained, Stamps
from ingest.federation.sites.streams.streams import Streams
from mqlake.errors import InvalidRecord
from mqlake.records.federation import LinkPosition
from mqlake.records.messages import FLAG_RETAIN, LogRecord, Message, message_headers
from mqlake.records.versions import HEADER_MQTT
from tests.ingest.simulations import simulations_wanted

SEEDS = 400
EVENTS = 60
PARTITIONS = 2
NOW_MS = 1_700_000_000_000
EPOCH = 7
TOPICS = ("f/0", "f/1", "f/2")


def partition_of(topic: str) -> int:
    return int(topic[-1]) % PARTITIONS


class Site:
    """A log, and a federator of which everything but the log and what is kept dies when killed."""

    def __init__(self, number: int, skew_ms: int, neighbours: set[int]) -> None:
        self.number = number
        self.skew_ms = skew_ms
        self.neighbours = neighbours
        self.log: list[list[LogRecord]] = [[] for _ in range(PARTITIONS)]
        self.kept: dict[str, list[Any]] = {}
        self.kept_position = LinkPosition(dict.fromkeys(range(PARTITIONS), 0))
        zero = dict.fromkeys(range(PARTITIONS), 0)
        self.links = {one: LinkPosition(dict(zero)) for one in neighbours}
        self.wanted = NeighbourInterest()
        for one in neighbours:
            self.wanted.permit(one, ("f/#",))
        self.shown_again = 0
        self.begin()

    def begin(self) -> None:
        """Begin a run with the checkpoint and what the log has beyond it."""
        self.inlet = Inlet(Streams(), {})
        self.inlet.recover(record for records in self.log for record in records)
        self.links = deepcopy(self.links)
        self.retained = SiteRetained(
            self.number, EPOCH, "default", lambda _: True, 100, deepcopy(self.kept_position)
        )
        self.retained.restore(deepcopy(self.kept))
        self.outlets: dict[int, Outlet] = {}
        self.appending: deque[tuple[Any, Any]] = deque()
        self.follow()

    def save(self) -> None:
        for topic, latest in self.retained.changes().items():
            if latest is None:
                self.kept.pop(topic, None)
            else:
                self.kept[topic] = latest
        self.kept_position = deepcopy(self.retained.position)

    def append(self, topic: str, value: bytes, headers: Any, now_ms: int) -> LogRecord:
        records = self.log[partition_of(topic)]
        key = f"default/{topic}".encode()
        record = LogRecord(partition_of(topic), len(records), now_ms, key, value, headers)
        records.append(record)
        return record

    def publish(self, topic: str, payload: bytes, now_ms: int, *, retain: bool = True) -> None:
        message = Message(
            tenant="default",
            topic_name=topic,
            payload=payload,
            qos=1,
            retain=retain,
            message_id=bytes(16),
            client_id="c",
            received_at_ms=0,
            origin="a/gateway-1",
        )
        self.append(topic, payload, message_headers(message), now_ms + self.skew_ms)

    def follow(self) -> None:
        """Read the log to its end, and show again what has to be."""
        for partition, records in enumerate(self.log):
            self.retained.take(records[self.retained.position.cursor[partition] :])
        for topic, ((partition, offset), rank) in self.retained.wrong().items():
            carried = of_record(self.log[partition][offset], "default", self.number, EPOCH)
            assert carried is not None
            carried.sender = self.number
            carried.message.stamp = rank.stamp
            _, value, headers = to_record(carried, "default", topic, retain=True)
            self.appending.append((topic, (value, headers, None)))
            self.shown_again += 1

    def take(self, publish: Any, sender: int) -> None:
        """Take a neighbour's message as `Taking` does."""
        carried = of_publish(publish, prefix="federator")
        message = carried.message
        if message.key.origin == self.number:
            return
        if self.inlet.take(message, lambda: None) is not InletVerdict.NEW:
            return
        message.hops += 1
        carried.sender = sender
        topic = message.topic
        known = self.retained._topics.get(topic)
        retain = message.retain and self.retained.is_latest(topic, message)
        is_older = known is not None and retained._rank(message) < known.latest
        assert not (retain and is_older), "what is retained goes back, and that was known"
        _, value, headers = to_record(carried, "default", topic, retain=retain)
        self.appending.append((topic, (value, headers, message)))

    def flush(self, now_ms: int) -> None:
        """Let the log have what is on its way there."""
        while self.appending:
            topic, (value, headers, message) = self.appending.popleft()
            record = self.append(topic, value, headers, now_ms + self.skew_ms)
            if message is not None:
                self.inlet.appended(message, record.partition, record.offset)

    def shown(self, topic: str) -> bytes:
        """Return what a subscriber gets as retained: the last in the log with RETAIN."""
        for record in reversed(self.log[partition_of(topic)]):
            has_flag = dict(record.headers)[HEADER_MQTT][2] & FLAG_RETAIN
            if has_flag and record.key == f"default/{topic}".encode():
                return record.value or b""
        return b""


class Federation:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now_ms = NOW_MS
        count = random.randint(2, 4)
        pairs = {(one, random.randint(1, one - 1)) for one in range(2, count + 1)}
        pairs |= {(max(p), min(p)) for p in [random.sample(range(1, count + 1), 2)]}
        self.pairs = sorted(pairs)
        self.sites = {
            number: Site(
                number,
                random.choice((-60_000, 0, 0, 60_000)),
                {sum(pair) - number for pair in pairs if number in pair},
            )
            for number in range(1, count + 1)
        }
        self.up: set[tuple[int, int]] = set(self.pairs)
        self.number = 0
        self.read: dict[tuple[int, int], dict[int, int]] = {}

    def run(self) -> None:
        for _ in range(EVENTS):
            self.now_ms += self.random.choice((0, 0, 1, 50, 1_000))
            self.random.choice(
                (
                    self.publish,
                    self.publish,
                    self.publish,
                    self.move,
                    self.cut,
                    self.kill,
                    self.save,
                )
            )()
        self.up = set(self.pairs)
        for topic in TOPICS:
            if self.random.random() < 0.5:
                self.settle()
                self.overwrite(topic)
        self.settle()
        self.check()

    def publish(self) -> None:
        site = self.random.choice(list(self.sites.values()))
        self.number += 1
        payload = b"" if self.random.random() < 0.2 else b"%d" % self.number
        site.publish(
            self.random.choice(TOPICS), payload, self.now_ms, retain=self.random.random() < 0.9
        )

    def overwrite(self, topic: str) -> None:
        """Set a topic that all agree about: that counts, whatever the clock there says."""
        site = self.random.choice(list(self.sites.values()))
        self.number += 1
        site.publish(topic, b"%d" % self.number, self.now_ms)
        self.settle()
        assert site.shown(topic) == b"%d" % self.number, "set again, and not shown"

    def cut(self) -> None:
        pair = self.random.choice(self.pairs)
        if pair in self.up:
            self.up.discard(pair)
            for one in pair:
                self.sites[one].outlets.pop(sum(pair) - one, None)
        else:
            self.up.add(pair)

    def kill(self) -> None:
        site = self.random.choice(list(self.sites.values()))
        site.begin()

    def save(self) -> None:
        for site in self.sites.values():
            site.save()

    def move(self) -> None:
        """Bring some messages further, in any order of links, follower and log."""
        for _ in range(self.random.randint(1, 12)):
            site = self.random.choice(list(self.sites.values()))
            step = self.random.random()
            if step < 0.2:
                site.follow()
            elif step < 0.4:
                site.flush(self.now_ms)
            else:
                pair = self.random.choice(self.pairs)
                if pair in self.up:
                    sender, receiver = self.random.sample(pair, 2)
                    self.carry(sender, receiver, self.random.randint(1, 5))

    def carry(self, sender: int, receiver: int, most: int) -> bool:
        one, other = self.sites[sender], self.sites[receiver]
        position = one.links[receiver]
        outlet = one.outlets.get(receiver)
        if outlet is None:
            hear = Inlet(Streams(), {}).hear_offer
            log = SiteLog(sender, EPOCH, "default", "federator", 16, Prefixes([]), one.wanted, hear)
            outlet = one.outlets[receiver] = Outlet(
                log, receiver, position, window=1_000, counters=OutletCounters()
            )
            self.read[sender, receiver] = dict(position.cursor)
        read = self.read[sender, receiver]
        moved = False
        for partition, records in enumerate(one.log):
            found = records[read[partition] : read[partition] + most]
            read[partition] += len(found)
            moved = moved or bool(found)
            outlet.take(found, self.now_ms)
        for publish in outlet.ready():
            other.take(publish, sender)
            other.flush(self.now_ms)
            outlet.acknowledge(publish.packet_id)
        return moved

    def settle(self) -> None:
        for _ in range(200):
            moved = False
            for site in self.sites.values():
                site.flush(self.now_ms)
                site.follow()
                moved = moved or bool(site.appending)
            for pair in self.pairs:
                for sender, receiver in (pair, pair[::-1]):
                    moved = self.carry(sender, receiver, 100) or moved
            if not moved:
                return
        raise AssertionError("sites show again for ever")

    def check(self) -> None:
        for topic in TOPICS:
            shown = {number: site.shown(topic) for number, site in self.sites.items()}
            assert len(set(shown.values())) == 1, f"{topic}: {shown}"


def test_sites_that_set_a_topic_while_apart_agree_afterwards() -> None:
    shown_again = 0
    for seed in range(simulations_wanted(SEEDS)):
        federation = Federation(seed)
        federation.run()
        shown_again += sum(site.shown_again for site in federation.sites.values())
    assert shown_again > SEEDS / 10  # so the races that need it are among them


def message_of(site: int, stamp: int, topic: str = "f/0") -> Federated:
    return Federated(ChainKey(site, EPOCH, topic), 1, 0, 0, stamp, b"", 1, True)


def made(most: int = 100) -> SiteRetained:
    return SiteRetained(
        1, EPOCH, "default", lambda topic: topic != "own", most, LinkPosition({0: 0})
    )


def test_what_is_on_its_way_into_the_log_counts() -> None:
    known = made()
    assert known.is_latest("f/0", message_of(2, 5))
    assert not known.is_latest("f/0", message_of(3, 4))
    assert known.is_latest("f/0", message_of(3, 5))


def test_of_too_many_topics_the_oldest_is_forgotten() -> None:
    known = made(most=2)
    for number, topic in enumerate(("a", "b", "a", "c")):
        assert known.is_latest(topic, message_of(2, number + 1, topic))
    assert (len(known), known.forgotten) == (2, 1)
    changes = known.changes()
    assert (changes["b"], changes["a"]) == (None, [Rank(3, 2, EPOCH, 0, 1), None, None])
    assert known.changes() == {}
    again = made()
    again.restore({topic: one for topic, one in changes.items() if one is not None})
    assert not again.is_latest("a", message_of(2, 2, "a"))


def test_what_does_not_cross_is_not_known() -> None:
    site = Site(1, 0, set())
    site.retained = made()
    site.append("f/0", b"1", [("mqtt", b"9")], NOW_MS)
    site.append("f/0", b"1", [("mqlake-federation", b"?")], NOW_MS)
    key = b"default/own"
    site.publish("f/0", b"2", NOW_MS)
    own = [one._replace(key=key) for one in site.log[0]]
    known = made()
    known.take(own)
    assert len(known) == 0
    assert known.position.cursor == {0: 3}


@pytest.mark.parametrize("found", [[], [[1], None, None], [[1] * 5, 3, None], [None, None, None]])
def test_what_is_no_rank_is_refused(found: list[Any]) -> None:
    with pytest.raises(InvalidRecord):
        made().restore({"f/0": found})


def last_in_the_log_counts(self: SiteRetained, topic: str, message: Any) -> bool:
    return True


def no_deletion_counts(self: SiteRetained, topic: str, message: Any) -> bool:
    return IS_LATEST(self, topic, message) or not message.payload


def nothing_is_shown_again(self: SiteRetained) -> dict[str, Any]:
    return {}


def clocks_of_the_machine_alone(self: Stamps, carried: Any, site: int, partition: int) -> None:
    return None


def a_clock_that_hears_nothing(self: Stamps, carried: Any, site: int, partition: int) -> None:
    if carried.sender == site:
        NOTE(self, carried, site, partition)


def ties_are_left_open(message: Any) -> Rank:
    return Rank(RANK(message).stamp, 0, 0, 0, 0)


def origins_before_time(message: Any) -> Rank:
    rank = RANK(message)
    return rank._replace(stamp=rank.origin, origin=rank.stamp)


def shown_again_with_another_stamp(self: SiteRetained) -> dict[str, Any]:
    found = WRONG(self)
    return {t: (at, rank._replace(stamp=rank.stamp - 1)) for t, (at, rank) in found.items()}


def a_site_prefers_its_own(self: SiteRetained, topic: str, message: Any) -> bool:
    known = self._topics.get(topic)
    if known is not None and known.latest.origin == self._site:
        return False
    return IS_LATEST(self, topic, message)


def nothing_is_kept(self: SiteRetained, found: Any) -> None:
    return None


IS_LATEST, WRONG, NOTE, RANK = (
    SiteRetained.is_latest,
    SiteRetained.wrong,
    Stamps.note,
    retained._rank,
)

DEFECTS: dict[str, tuple[object, str, Any]] = {
    "the last in the log counts": (SiteRetained, "is_latest", last_in_the_log_counts),
    "a deletion counts whenever it comes": (SiteRetained, "is_latest", no_deletion_counts),
    "each site prefers its own": (SiteRetained, "is_latest", a_site_prefers_its_own),
    "nothing is shown again": (SiteRetained, "wrong", nothing_is_shown_again),
    "clocks of machines alone": (Stamps, "note", clocks_of_the_machine_alone),
    "a clock that hears nothing": (Stamps, "note", a_clock_that_hears_nothing),
    "ties are left open": (retained, "_rank", ties_are_left_open),
    "origins before time": (retained, "_rank", origins_before_time),
    "shown again with another stamp": (SiteRetained, "wrong", shown_again_with_another_stamp),
    "a run that forgets": (SiteRetained, "restore", nothing_is_kept),
}


def run_all() -> None:
    for seed in range(SEEDS):
        Federation(seed).run()


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*DEFECTS[defect])
    with pytest.raises(AssertionError):
        run_all()
