from collections import Counter
from dataclasses import replace

import pytest

from ingest.balancer.fleet import ANNOUNCED, Fleet, Node, Policy
from ingest.balancer.loads import read_expected
from ingest.balancer.placement import Strategy
from ingest.balancer.snapshot import Snapshot
from ingest.balancer.talks import key_of

POLICY = Policy(slots=4, window_seconds=10, cpu_is_counter=False)
A, B, C = (Node(name, f"10.0.0.{n}", (("mqtt", 1883),)) for n, name in enumerate("abc", 1))


def fleet(policy: Policy = POLICY, last: Snapshot | None = None, *nodes: Node) -> Fleet:
    made = Fleet(policy, last or Snapshot())
    made.discover(nodes or (A, B, C), 0)
    return made


def probed(made: Fleet, *names: str) -> Fleet:
    for name in names or ("a", "b", "c"):
        made.note_probe(name, "")
    return made


def taking(made: Fleet, now: float = 0) -> str:
    return "".join(node.name for node in made.snapshot(now).nodes if node.takes_clients)


def test_nobody_takes_clients_before_a_probe() -> None:
    made = fleet()
    assert taking(made) == ""
    probed(made, "a")
    assert taking(made) == "a"


def test_a_node_is_healthy_only_if_all_factors_are() -> None:
    made = probed(fleet())
    made.discover((replace(A, serves=False), B, C), 0)
    assert taking(made) == "bc"
    made.note_probe("b", "no message")
    assert taking(made) == "bc"  # one failure may be chance
    made.note_probe("b", "no message")
    assert taking(made) == "c"
    made.note_probe("b", "")
    assert taking(made) == "bc"
    made.note_probe("b", "connection refused", definite=True)
    assert taking(made) == "c"
    factors = made.describe(0)[0]["factors"]
    assert factors[ANNOUNCED] == {"healthy": False, "reason": "it takes no clients"}


def test_when_all_probes_fail_nodes_that_serve_go_on() -> None:
    made = probed(fleet())
    made.discover((replace(A, serves=False), B, C), 0)
    for name in "abc":
        made.note_probe(name, "unreachable", definite=True)
    assert taking(made) == "bc"


def test_an_overloaded_node_takes_nobody_and_is_back_later() -> None:
    made = probed(fleet())
    made.note_overload("a", 0, 5)
    assert taking(made) == "bc"
    made.note_overload("a", 1, 3)
    assert taking(made, 1) == "bc"
    made.note_overload("a", 2, 2)
    assert taking(made, 2) == "abc"
    made.discover((replace(A, overload_level=9), B, C), 3)
    assert taking(made, 3) == "bc"


def test_when_all_are_overloaded_they_go_on() -> None:
    made = probed(fleet())
    for name in "abc":
        made.note_overload(name, 0, 9)
    assert taking(made) == "abc"
    made.note_overload("b", 1, 1)
    assert taking(made, 1) == "b"


def test_a_drained_node_takes_nobody_until_it_is_undone() -> None:
    made = probed(fleet())
    assert made.drain("a", is_draining=True)
    assert taking(made) == "bc"
    assert made.draining == {"a"}
    assert made.drain("a", is_draining=False)
    assert taking(made) == "abc"
    assert not made.drain("nobody", is_draining=True)
    assert not made.draining


@pytest.mark.parametrize("strategy", ["weighted_cpu", "predicted"])
def test_weights_are_what_is_free(strategy: Strategy) -> None:
    made = probed(fleet(replace(POLICY, strategy=strategy)))
    made.note_cpu("a", 0, 30)
    assert [node.weight for node in made.snapshot(0).nodes] == [70, 1, 1]


def test_predicted_weights_follow_slowly_and_outlast_a_scrape_that_fails() -> None:
    made = probed(fleet(replace(POLICY, strategy="predicted")))
    weights = []
    for at, cpu in enumerate((30.0, 50.0, 90.0)):
        made.note_cpu("a", at, cpu)
        weights.append(made.snapshot(at).nodes[0].weight)
    assert weights == [70, 70, 43]
    assert made.snapshot(100).nodes[0].weight == 43


def test_predicted_weights_are_less_by_the_work_that_waits() -> None:
    made = probed(fleet(replace(POLICY, strategy="predicted")))
    made.note_cpu("a", 0, 20)
    made.note_overload("a", 0, 4)
    assert made.snapshot(0).nodes[0].weight == 48
    made.note_cpu("a", 1000, 20)  # a level that nobody repeats is forgotten
    assert made.snapshot(1000).nodes[0].weight == 80


@pytest.mark.parametrize("strategy", ["round_robin", "least_connections"])
def test_other_strategies_have_equal_weights(strategy: Strategy) -> None:
    made = probed(fleet(replace(POLICY, strategy=strategy)))
    made.note_cpu("a", 0, 30)
    assert [node.weight for node in made.snapshot(0).nodes] == [100, 100, 100]


def test_predicted_makes_up_for_what_is_there_and_for_what_a_node_can_do() -> None:
    policy = replace(POLICY, strategy="predicted", slack=0.0)
    made = fleet(policy)
    made.discover((A, replace(B, capacity=2.0), C), 0)
    probed(made)
    for name, cpu in (("a", 0.0), ("b", 0.0), ("c", 50.0)):
        made.note_cpu(name, 0, cpu)
    snapshot = made.snapshot(0)
    of_slot = Counter(snapshot.buckets)
    parts = [of_slot[node.slot] / len(snapshot.buckets) for node in snapshot.nodes]
    assert parts == pytest.approx([1 / 3.0625, 2 / 3.0625, 0.0625 / 3.0625], abs=0.01)


def test_only_predicted_has_buckets() -> None:
    assert probed(fleet()).snapshot(0).buckets == ()
    snapshot = probed(fleet(replace(POLICY, strategy="predicted"))).snapshot(0)
    assert len(snapshot.buckets) == 1024
    assert set(snapshot.buckets) == {1, 2, 3}


@pytest.mark.parametrize("strategy", ["weighted_cpu", "predicted"])
def test_a_restart_changes_nothing(strategy: Strategy) -> None:
    policy = replace(POLICY, strategy=strategy)
    before = probed(fleet(policy))
    before.note_cpu("a", 0, 30)
    before.note_probe("b", "down", definite=True)
    last = before.snapshot(0)
    after = fleet(policy, last)
    assert after.snapshot(0) == last
    probed(after, "a", "c")
    assert after.snapshot(0) == last
    probed(after, "b")  # it is well again
    assert taking(after) == "abc"


def test_a_node_too_many_is_left_out_and_said() -> None:
    made = probed(fleet(replace(POLICY, slots=2)))
    assert taking(made) == "ab"
    assert made.left_out == ["c"]


def test_a_node_at_another_place_is_looked_at_anew() -> None:
    made = probed(fleet())
    made.discover((replace(A, address="10.0.0.9"), B, C), 0)
    made.note_probe("a", "refused", definite=True)
    assert taking(made) == "bc"
    assert made.snapshot(0).nodes[0].slot == 1


PREDICTED = replace(POLICY, strategy="predicted")
BUCKETS = PREDICTED.shards * PREDICTED.buckets_per_shard
GROUPS = [
    line
    for group in range(12)
    for line in (
        *(f"t,c-{group}-{member},,g/{group}/#" for member in range(10)),
        f"t,,20,g/{group}/a",
        f"t,c-{group}-0,20,",
    )
]


def expecting(made: Fleet, lines: list[str], now: float = 0) -> Snapshot:
    made.expect(read_expected(lambda: lines, BUCKETS, 1000))
    made.snapshot(now)
    return gathering(made, now)


def gathering(made: Fleet, now: float = 0) -> Snapshot:
    if wanted := made.gathering():
        made.gathered(wanted.run())
    return made.snapshot(now)


def groups_of(snapshot: Snapshot) -> dict[int, set[int]]:
    """Return the slots of each group's clients."""
    slots = dict(snapshot.talkers)
    return {
        group: {slots[key_of("t", f"c-{group}-{member}")] for member in range(10)}
        for group in range(12)
    }


def test_clients_that_hear_the_same_are_together() -> None:
    made = probed(fleet(PREDICTED))
    for name in "abc":
        made.note_cpu(name, 0, 0.0)
    snapshot = expecting(made, GROUPS)
    assert all(len(slots) == 1 for slots in groups_of(snapshot).values())
    assert Counter(slot for _, slot in snapshot.talkers) == {1: 40, 2: 40, 3: 40}
    assert made.gathering() is None
    assert made.snapshot(0).talkers is snapshot.talkers  # it is not made anew each second


def test_when_a_node_goes_its_talkers_alone_move_and_buckets_make_room() -> None:
    made = probed(fleet(PREDICTED))
    for name in "abc":
        made.note_cpu(name, 0, 0.0)
    before = expecting(made, GROUPS)
    made.drain("b", is_draining=True)
    after = made.snapshot(0)
    moved = {key for key, slot in before.talkers if dict(after.talkers)[key] != slot}
    assert moved == {key for key, slot in before.talkers if slot == 2}
    assert 2 not in {slot for _, slot in after.talkers} | set(after.buckets)
    assert made.gathering() is None


def test_when_a_node_comes_clients_are_gathered_anew() -> None:
    made = probed(fleet(PREDICTED, None, A))
    made.note_cpu("a", 0, 0.0)
    assert expecting(made, GROUPS).talkers == ()
    made.discover((A, B), 0)
    probed(made, "b")
    made.note_cpu("b", 0, 0.0)
    made.snapshot(0)
    assert {slot for _, slot in gathering(made).talkers} == {1, 2}


def test_clients_are_not_gathered_before_all_nodes_are_known() -> None:
    nodes = [replace(one, metrics_url="http://node/metrics") for one in (A, B)]
    made = fleet(PREDICTED, None, *nodes)
    probed(made, "a")
    made.note_cpu("a", 0, 0.0)
    assert expecting(made, GROUPS).talkers == ()
    probed(made, "b")
    made.snapshot(0)
    assert gathering(made).talkers == ()  # what b has free is not known
    made.note_cpu("b", 0, 0.0)
    made.snapshot(0)
    assert Counter(slot for _, slot in gathering(made).talkers) == {1: 60, 2: 60}


def test_a_restart_leaves_talkers_where_they_are() -> None:
    before = probed(fleet(PREDICTED))
    last = expecting(before, GROUPS)
    assert Snapshot.decode(last.encode()) == last
    after = fleet(PREDICTED, last)
    assert after.snapshot(0) == last  # loads are not read yet
    assert after.gathering() is None
    assert expecting(after, GROUPS) == last


def test_who_talks_no_longer_goes_by_bucket() -> None:
    made = probed(fleet(PREDICTED))
    assert len(expecting(made, GROUPS).talkers) == 120
    assert expecting(made, ["t,a,1"]).talkers == ()


def test_other_strategies_have_no_talkers() -> None:
    made = probed(fleet())
    assert expecting(made, GROUPS).talkers == ()
