"""The Java route table and `mqlake.topics.matching` give the same answers: the unit of truth."""

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.paths import RUNTIME
from mqlake.records.messages import HEADER_SINCE, Barrier, retained_route, route_headers
from mqlake.records.versions import Headers
from mqlake.topics.matching import TopicFilterTrie, filter_matches
from mqlake.topics.names import split_shared, validate_topic_filter
from mqlake.topics.sharing import (
    ShareStrategy,
    ShareWeight,
    choose_gateway,
    decode_weight,
    encode_weight,
)
from streaming.jvm.compiler import build_jar
from streaming.jvm.jars import PYSPARK_JARS
from streaming.jvm.process import java_executable
from tests.ingest.gateway.harness import RouteNumbers

pytestmark = pytest.mark.spark

TENANTS = ("default", "other")
GATEWAYS = ("g1", "g2", "g3")
NEWEST = 2**63 - 1
LONG_MS = 11 * 60 * 1000
_CHANGES_CLASS = "mqlake.routing.RouteChanges"
_level = st.sampled_from(["", "a", "b", "$SYS", "$", "ä€𝄞"])
_filter_level = st.one_of(_level, st.just("+"))

topic_names = st.lists(_level, min_size=1, max_size=7).map("/".join).filter(bool)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(_filter_level, max_size=6))
    if not levels or draw(st.booleans()):
        levels.append("#")
    share = draw(st.sampled_from(["", "", "$share/s/", "$share/group two/"]))
    topic_filter = share + ("/".join(levels) or "/")
    validate_topic_filter(topic_filter)
    return topic_filter


routes = st.tuples(st.sampled_from(GATEWAYS), st.sampled_from(TENANTS), topic_filters())
changes = st.lists(st.tuples(routes, st.sampled_from([0, 0, 1, 1, 7])), max_size=30)


def _new_table(jvm: Any) -> Any:
    return jvm.mqlake.routing.RouteTable()


def _apply(
    table: Any,
    gateway: str,
    tenant: str,
    topic_filter: str,
    members: int,
    strategy: ShareStrategy = ShareStrategy.RANDOM,
    since_ms: int = 0,
    *,
    routes_offset: int = 0,
    timestamp_ms: int = 0,
) -> None:
    number = table.strategy(strategy.value)
    assert number >= 0
    table.apply(
        gateway, tenant, topic_filter, members, number, since_ms, routes_offset, timestamp_ms
    )


def _let_time_pass(table: Any) -> None:
    """Have a route come long after all others, which changes nothing."""
    _apply(table, "nobody", "default", "nothing", 0, timestamp_ms=LONG_MS)


def _match(
    table: Any,
    tenant: str,
    topic_name: str,
    offset: int = 0,
    *,
    retained: bool = False,
    publisher: str = "",
    partition: int = 0,
    in_force: int = NEWEST,
) -> dict[str, list[str]]:
    topic = f"{tenant}/{topic_name}".encode()
    found = table.match(
        topic, partition if retained else -1, publisher.encode(), partition, offset, in_force
    )
    return {
        gateway: _filters(found.sharedFilters(at)) for at, gateway in enumerate(found.gateways())
    }


def _filters(lines: bytes | None) -> list[str]:
    before, *filters = (lines or b"").decode().split("\n")
    assert not before
    return filters


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(changes=changes, topics=st.lists(topic_names, min_size=1, max_size=8), seed=st.integers(0))
def test_the_java_trie_answers_like_the_python_trie(
    routing_jvm: Any, changes: list[Any], topics: list[str], seed: int
) -> None:
    table = _new_table(routing_jvm)
    tries = {tenant: TopicFilterTrie[tuple[str, str]]() for tenant in TENANTS}
    members: dict[tuple[str, str, str], int] = {}

    def compare(tenant: str, topic_name: str) -> None:
        found = _match(table, tenant, topic_name, seed % 2**63)
        matching = tries[tenant].match(topic_name)
        unshared = {gateway for gateway, name in matching if not split_shared(name).share_name}
        groups = {name for _, name in matching if split_shared(name).share_name}
        chosen = [(name, gateway) for gateway, names in found.items() for name in names]
        assert set(found) == unshared | {gateway for _, gateway in chosen}
        assert sorted(name for name, _ in chosen) == sorted(groups), "one gateway a group"
        assert all(members[gateway, tenant, name] > 0 for name, gateway in chosen)

    for turn, ((gateway, tenant, topic_filter), count) in enumerate(changes):
        _apply(table, gateway, tenant, topic_filter, count)
        members[gateway, tenant, topic_filter] = count
        plain = split_shared(topic_filter).topic_filter
        if count:
            tries[tenant].insert(plain, (gateway, topic_filter))
        else:
            tries[tenant].remove(plain, (gateway, topic_filter))
        compare(tenant, topics[turn % len(topics)])  # known from now on, and changed again

    for tenant in tries:
        for topic_name in topics:
            compare(tenant, topic_name)

    for (gateway, tenant, topic_filter), _ in changes:
        _apply(table, gateway, tenant, topic_filter, 0)
    _let_time_pass(table)
    assert table.isEmpty(), "removal prunes every level"


@given(changes=changes, topic_name=topic_names, seed=st.integers(0, 2**63 - 1))
@settings(max_examples=50)
def test_the_choice_does_not_depend_on_the_order_in_which_routes_came(
    routing_jvm: Any, changes: list[Any], topic_name: str, seed: int
) -> None:
    last = dict(changes)
    forward, backward = _new_table(routing_jvm), _new_table(routing_jvm)
    for (gateway, tenant, topic_filter), count in last.items():
        _apply(forward, gateway, tenant, topic_filter, count)
    for (gateway, tenant, topic_filter), count in reversed(last.items()):
        _apply(backward, gateway, tenant, topic_filter, count)
    found, again = (_match(table, "default", topic_name, seed) for table in (forward, backward))
    assert {g: sorted(names) for g, names in found.items()} == {
        g: sorted(names) for g, names in again.items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_a_change_is_seen_by_whoever_asks_after_it(routing_jars: list[Path], seed: int) -> None:
    source = Path(__file__).parent / "RouteChanges.java"
    classes = routing_jars[-1]
    jar = build_jar("changes", [source], classes.parent, RUNTIME / "jars", (classes,))
    class_path = [str(jar), *map(str, routing_jars), str(PYSPARK_JARS / "*")]
    done = subprocess.run(
        [java_executable(), "-cp", os.pathsep.join(class_path), _CHANGES_CLASS, str(seed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "right"


def test_of_known_topics_a_change_forgets_those_that_its_filter_may_match(
    routing_jvm: Any,
) -> None:
    table = _new_table(routing_jvm)
    for topic_filter in ("a/b/c/d/e/f", "a/b/c/d/e/+", "a/+/c/#", "+", "#", "$SYS/a", "$SYS/+"):
        for members in (1, 0):
            expected: dict[str, list[str]] = {"g1": []} if members else {}
            _apply(table, "g1", "default", topic_filter, members)
            for topic_name in ("a/b/c/d/e/f", "a/b/c", "a", "$SYS/a", "x"):
                matched = expected if filter_matches(topic_filter, topic_name) else {}
                assert _match(table, "default", topic_name) == matched
                assert _match(table, "other", topic_name) == {}


def test_topics_that_are_too_long_to_be_known_and_more_than_are_kept_are_matched(
    routing_jvm: Any,
) -> None:
    table = _new_table(routing_jvm)
    long_name = "ä" * 300
    _apply(table, "g1", "default", f"+/{long_name}", 1)
    for members in (1, 0):
        _apply(table, "g1", "default", f"+/{long_name}", members)
        for number in range(3):
            expected: dict[str, list[str]] = {"g1": []} if members else {}
            assert _match(table, "default", f"{number}/{long_name}") == expected
    for number in range(100):  # more than are kept for one topic
        _apply(table, f"g{number}", "default", "a/+", 1)
    for _ in range(2):
        assert len(_match(table, "default", "a/b")) == 100


def test_a_share_group_spreads_in_proportion_to_its_members(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    for gateway, count in (("g1", 1), ("g2", 2), ("g3", 5)):
        _apply(table, gateway, "default", "$share/s/a/#", count)
    picks = Counter(next(iter(_match(table, "default", "a/b", offset))) for offset in range(4000))
    assert picks["g1"] == pytest.approx(500, rel=0.15)
    assert picks["g2"] == pytest.approx(1000, rel=0.15)
    assert picks["g3"] == pytest.approx(2500, rel=0.15)


def test_two_groups_over_one_filter_choose_independently(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    for gateway in ("g1", "g2"):
        for share in ("one", "two"):
            _apply(table, gateway, "default", f"$share/{share}/a", 1)
    together = sum(len(_match(table, "default", "a", seed)) == 1 for seed in range(1000))
    assert together == pytest.approx(500, rel=0.2)


def test_a_topic_with_as_many_levels_as_bytes_is_matched(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    _apply(table, "g1", "default", "/".join(["+"] * 60_000) + "/#", 1)
    _apply(table, "g2", "default", "#", 1)
    assert set(_match(table, "default", "/" * 65_535)) == {"g1", "g2"}
    assert set(_match(table, "default", "/" * 59_000)) == {"g2"}


def test_member_counts_change_without_a_second_entry(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    for count in (3, 1, 4):
        _apply(table, "g1", "default", "$share/s/a", count)
        _apply(table, "g1", "default", "a", count)
    assert _match(table, "default", "a") == {"g1": ["$share/s/a"]}
    _apply(table, "g1", "default", "a", 0)
    _apply(table, "g1", "default", "$share/s/a", 0)
    _let_time_pass(table)
    assert table.isEmpty()


def test_a_route_whose_group_cannot_be_named_on_one_line_is_none(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    _apply(table, "g1", "default", "$share/v/secret/#", 1)
    _apply(table, "g2", "default", "$share/g/a\n$share/v/secret/#", 1)
    assert _match(table, "default", "a\n$share/v/secret/x") == {}
    assert _match(table, "default", "secret/x") == {"g1": ["$share/v/secret/#"]}


def test_a_share_group_is_as_the_routes_in_force_say(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    steps = [("g1", 1), ("g2", 1), ("g1", 0), ("g2", 0), ("g3", 1)]
    for number, (gateway, members) in enumerate(steps):
        _apply(table, gateway, "default", "$share/s/a", members, routes_offset=10 * (1 + number))

    def chosen(in_force: int) -> set[str]:
        found = (_match(table, "default", "a", offset, in_force=in_force) for offset in range(20))
        return {gateway for one in found for gateway in one}

    for in_force, gateways in (
        (9, set()),
        (10, {"g1"}),
        (19, {"g1"}),
        (20, {"g1", "g2"}),
        (30, {"g2"}),
        (40, set()),
        (49, set()),
        (50, {"g3"}),
        (NEWEST, {"g3"}),
    ):
        assert chosen(in_force) == gateways, in_force
    assert [table.sharedRoute(at) for at in (9, 10, 25, 60)] == [-1, 10, 20, 50]


def test_a_share_group_forgets_how_it_was_long_ago(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    for number in range(100):
        _apply(table, f"g{number % 3}", "default", "$share/s/a", 1 + number, routes_offset=number)
    assert _match(table, "default", "a", in_force=0), "the oldest that is known"
    for gateway in ("g0", "g1", "g2"):
        _apply(
            table,
            gateway,
            "default",
            "$share/s/a",
            0,
            routes_offset=100,
            timestamp_ms=LONG_MS,
        )
    _apply(table, "g4", "default", "a", 1, timestamp_ms=LONG_MS)
    assert set(_match(table, "default", "a")) == {"g4"}
    assert len(_match(table, "default", "a", in_force=99)) == 2
    _apply(table, "g4", "default", "a", 0, timestamp_ms=2 * LONG_MS)
    assert table.isEmpty(), "a group without gateways goes after a while"


def _want_retained(table: Any, gateway: str, shard: int, members: int = 1) -> None:
    route = retained_route(gateway, shard)
    _apply(table, route.gateway, route.tenant, route.topic_filter, members)


def test_a_retained_message_also_goes_once_to_each_gateway_that_wants_its_partition(
    routing_jvm: Any,
) -> None:
    table = _new_table(routing_jvm)
    for gateway in ("g2", "g1"):
        _want_retained(table, gateway, 0)
    _want_retained(table, "g3", 12)
    _apply(table, "g1", "default", "a/#", 1)
    _apply(table, "g2", "default", "$share/s/a/b", 1)
    _apply(table, "g3", "default", "a/+", 1)
    matched = {"g1": [], "g2": ["$share/s/a/b"], "g3": []}
    assert _match(table, "default", "a/b", retained=True) == matched
    assert _match(table, "default", "a/b") == matched
    for tenant in ("default", "other"):
        assert _match(table, tenant, "b", retained=True) == {"g1": [], "g2": []}
        assert _match(table, tenant, "b", retained=True, partition=12) == {"g3": []}
        assert _match(table, tenant, "b", retained=True, partition=1) == {}
    assert _match(table, "default", "$SYS/x", retained=True) == {"g1": [], "g2": []}
    assert _match(table, "default", "b") == {}
    assert _match(table, "default", retained_route("g1", 0).topic_filter) == {}


def test_a_gateway_that_no_longer_wants_retained_messages_leaves_nothing_behind(
    routing_jvm: Any,
) -> None:
    table = _new_table(routing_jvm)
    for members in (1, 1, 0, 0):
        _want_retained(table, "g1", 0, members)
    assert _match(table, "default", "a", retained=True) == {}
    assert table.isEmpty()


def test_a_route_of_no_partition_is_nothing(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    for number in ("", "x", "1/2"):
        _apply(table, "g1", "", f"\0retained/{number}", 1)
    assert table.isEmpty()


weights = st.dictionaries(
    st.sampled_from(GATEWAYS),
    st.builds(
        ShareWeight,
        st.integers(1, 5),
        st.sampled_from(ShareStrategy),
        st.integers(0, 3) | st.integers(0, 2**50),
    ),
    min_size=1,
)


@given(
    weights=weights,
    topic_name=topic_names,
    publisher=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    partition=st.integers(0, 100),
    offset=st.integers(0, 2**53),
    share=st.sampled_from(["$share/s/", "$share/ä𝄞/"]),
)
@settings(deadline=None, max_examples=300)
def test_java_and_python_choose_the_same_gateway(
    routing_jvm: Any,
    weights: dict[str, ShareWeight],
    topic_name: str,
    publisher: str,
    partition: int,
    offset: int,
    share: str,
) -> None:
    table = _new_table(routing_jvm)
    shared_filter = share + topic_name
    for gateway, weight in weights.items():
        _apply(
            table,
            gateway,
            "default",
            shared_filter,
            weight.members,
            weight.strategy,
            weight.since_ms,
        )
    chosen = choose_gateway(shared_filter, weights, topic_name, publisher, partition, offset)
    found = _match(table, "default", topic_name, offset, publisher=publisher, partition=partition)
    assert found == {chosen: [shared_filter]}


def test_a_last_resort_is_taken_when_no_other_gateway_has_a_member(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    for gateway in ("g1", "g2"):
        strategy = ShareStrategy.LAST_RESORT
        _apply(table, gateway, "default", "$share/s/a", 1, strategy, routes_offset=10)
    _apply(table, "g3", "default", "$share/s/a", 1, since_ms=5, routes_offset=20)
    _apply(table, "g3", "default", "$share/s/a", 0, routes_offset=30)

    def chosen(in_force: int) -> set[str]:
        found = (_match(table, "default", "a", offset, in_force=in_force) for offset in range(20))
        return {gateway for one in found for gateway in one}

    assert chosen(10) == {"g1", "g2"}
    assert chosen(20) == {"g3"}
    assert chosen(30) == {"g1", "g2"}


def test_a_message_of_another_site_is_not_for_groups_or_for_those_alone_that_it_names(
    routing_jvm: Any,
) -> None:
    table = _new_table(routing_jvm)
    _apply(table, "g1", "default", "a/#", 1)
    for number, share in enumerate(("one", "two", "ä")):
        _apply(table, f"s{number}", "default", f"$share/{share}/a/+", 1)
    topic = b"default/a/b"
    unshared = table.matchUnshared(topic, -1)
    assert list(unshared.gateways()) == ["g1"]
    assert unshared.sharedFilters(0) is None
    lines = "\n$share/ä/a/+\n$share/one/a/+\n$share/one/b".encode()
    found = table.matchGroups(topic, lines, b"c", 0, 1, NEWEST)
    given = {
        gateway: _filters(found.sharedFilters(at)) for at, gateway in enumerate(found.gateways())
    }
    assert given == {"s0": ["$share/one/a/+"], "s2": ["$share/ä/a/+"]}
    assert list(table.matchGroups(b"default/x", lines, b"c", 0, 1, NEWEST).gateways()) == []


@given(weight=st.builds(ShareWeight, st.integers(1), st.sampled_from(ShareStrategy)))
def test_a_weight_survives_its_record(weight: ShareWeight) -> None:
    assert decode_weight(encode_weight(weight)) == weight


SINCE = {"run 1": 10, "run 2": 20, "of a release that does not say": -1}

records_of_gateways = st.lists(
    st.tuples(st.sampled_from(GATEWAYS), st.sampled_from([*SINCE, ""]), st.integers(1, 6)),
    max_size=30,
)


def _headers(incarnation: str, number: int) -> Headers:
    headers = route_headers(incarnation, number, SINCE[incarnation])
    return [one for one in headers if one != (HEADER_SINCE, b"-1")]


@given(written=records_of_gateways, asked=records_of_gateways)
def test_java_and_the_router_of_the_tests_let_the_same_barriers_pass(
    routing_jvm: Any, written: list[tuple[str, str, int]], asked: list[tuple[str, str, int]]
) -> None:
    table, numbers = _new_table(routing_jvm), RouteNumbers()
    for gateway, incarnation, number in written:
        if not incarnation:  # a withdrawal by somebody else has no number
            numbers.apply(gateway, [])
            continue
        headers, since = _headers(incarnation, number), SINCE[incarnation]
        is_past = table.isPast(gateway, incarnation, since)
        assert is_past == numbers.is_past(gateway, headers)
        if not is_past:
            numbers.apply(gateway, headers)
            table.applyNumber(gateway, incarnation, since, number, False, 0)
        for name, run, named in asked:
            barrier = Barrier(name, run, 1, -1, named)
            assert (table.applied(name, run) >= named) == numbers.has(barrier)


def test_a_barrier_that_names_a_number_brings_what_the_run_said_of_groups(
    routing_jvm: Any,
) -> None:
    table = _new_table(routing_jvm)
    for number, is_shared in ((1, True), (2, False), (4, True)):
        table.applyNumber("g1", "run 1", 7, number, is_shared, 10 * number)
    named = [table.sharedRoute("g1", "run 1", number) for number in (0, 1, 2, 3, 4, 9)]
    assert named == [-1, 10, 10, 10, 40, 40]
    assert table.sharedRoute("g1", "run 2", 4) == -1
    table.applyNumber("g1", "run 2", 8, 5, False, 50)
    assert table.sharedRoute("g1", "run 1", 4) == -1, "an earlier run sends no barriers any more"


def test_a_late_record_of_an_earlier_run_says_nothing(routing_jvm: Any) -> None:
    table = _new_table(routing_jvm)
    table.applyNumber("g1", "run 1", 7, 9, False, 10)
    assert not table.isPast("g1", "run 2", 8)
    table.applyNumber("g1", "run 2", 8, 1, False, 20)
    assert table.isPast("g1", "run 1", 7)
    assert not table.isPast("g1", "run 2", 8)
    assert not table.isPast("g2", "run 1", 7), "another gateway"
    assert not table.isPast("g1", "run 0", -1), "of a release that does not say so"
    assert table.applied("g1", "run 2") == 1


class Follower:
    """A follower of routes without a log; a test says what it reads."""

    def __init__(self, jvm: Any, gateway: Any) -> None:
        self._jvm, self._gateway = jvm, gateway
        self._class = self._class_of("mqlake.routing.RouteFollower")
        constructor = self._class.getDeclaredConstructor(
            self._array(
                jvm.java.lang.Class, *map(self._class_of, ("java.util.Map", "java.lang.String"))
            )
        )
        constructor.setAccessible(True)
        arguments = self._array(jvm.java.lang.Object, jvm.java.util.HashMap(), "routes")
        self._follower = constructor.newInstance(arguments)
        self.table = _new_table(jvm)
        self._offset = 0

    def read(self, gateway: str, topic_filter: str, members: int, headers: Headers) -> None:
        record = self._jvm.org.apache.kafka.clients.consumer.ConsumerRecord(
            "routes",
            0,
            self._offset,
            f"{gateway}/default/{topic_filter}".encode(),
            b"%d" % members if members else None,
        )
        for name, value in headers:
            record.headers().add(name, value)
        self._offset += 1
        names = "org.apache.kafka.clients.consumer.ConsumerRecord", "mqlake.routing.RouteTable"
        classes = self._array(self._jvm.java.lang.Class, *map(self._class_of, names))
        method = self._class.getDeclaredMethod("apply", classes)
        method.setAccessible(True)
        arguments = self._array(self._jvm.java.lang.Object, record, self.table)
        method.invoke(self._follower, arguments)

    def _class_of(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(name)

    def _array(self, class_: Any, *items: Any) -> Any:
        array = self._gateway.new_array(class_, len(items))
        for at, item in enumerate(items):
            array[at] = item
        return array


def test_a_late_route_of_an_earlier_run_is_passed_over_and_a_withdrawal_by_others_is_not(
    routing_jvm: Any, routing_gateway: Any
) -> None:
    follower = Follower(routing_jvm, routing_gateway)

    def gateways() -> list[str]:
        return sorted(follower.table.matchUnshared(b"default/a", -1).gateways())

    follower.read("g1", "a", 1, route_headers("run 1", 1, 7))
    follower.read("g1", "a", 1, route_headers("run 2", 1, 8))
    follower.read("g1", "a", 0, route_headers("run 1", 2, 7))
    assert gateways() == ["g1"]
    assert follower.table.applied("g1", "run 2") == 1
    follower.read("g1", "a", 0, [])
    assert gateways() == []
    follower.read("g1", "a", 1, route_headers("run 3", 1, 9))
    assert gateways() == ["g1"]
    follower.read("g1", "a", 0, [*route_headers("run 2", 2, 8)[:-1], (HEADER_SINCE, b"odd")])
    assert gateways() == [], "nobody knows which run is the later one"
