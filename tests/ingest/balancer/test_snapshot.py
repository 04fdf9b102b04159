import json
import random

import pytest

from ingest.balancer.snapshot import PlacedNode, Snapshot, assign_slots
from mqlake.errors import InvalidRecord

NODES = (
    PlacedNode("a", "10.0.0.1", (("mqtt", 1883),), 70, True, 1),
    PlacedNode("b", "2001:db8::1", (("mqtt", 1883), ("ws", 8083)), 13, False, 2),
)


def test_the_same_nodes_are_the_same_version_in_any_order() -> None:
    version = Snapshot(NODES).version
    assert len(version) == 64
    assert Snapshot(tuple(reversed(NODES))).version == version
    assert (
        Snapshot.decode(Snapshot(NODES, (1, 1)).encode()).version == Snapshot(NODES, (1, 1)).version
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("address", "10.0.0.2"),
        ("ports", (("mqtt", 1),)),
        ("weight", 71),
        ("takes_clients", False),
        ("slot", 3),
        ("name", "c"),
    ],
)
def test_every_field_counts(field: str, value: object) -> None:
    fields = {name: getattr(NODES[0], name) for name in PlacedNode.__slots__} | {field: value}
    assert Snapshot((PlacedNode(**fields), NODES[1])).version != Snapshot(NODES).version


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"nodes":[{}],"buckets":[]}', b"\xff"])
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        Snapshot.decode(data)


def test_talkers_count() -> None:
    one, other = (Snapshot(NODES, (1, 1), (("0AB1", slot),)) for slot in (1, 2))
    assert len({one.version, other.version, Snapshot(NODES, (1, 1)).version}) == 3
    assert Snapshot.decode(one.encode()) == one


def test_a_snapshot_of_before_there_were_talkers_is_read() -> None:
    found = json.loads(Snapshot(NODES, (1, 1)).encode())
    del found["talkers"]
    assert Snapshot.decode(json.dumps(found).encode()) == Snapshot(NODES, (1, 1))


def test_a_snapshot_is_json_for_others() -> None:
    found = json.loads(Snapshot(NODES).encode())
    assert [node["name"] for node in found["nodes"]] == ["a", "b"]


def test_a_node_keeps_its_slot_whoever_comes_and_goes() -> None:
    slots: dict[str, int] = {}
    rng = random.Random(7)
    for _ in range(200):
        present = {name for name in "abcdefgh" if rng.random() < 0.6}
        after, left_out = assign_slots(present, slots, 5)
        assert len(set(after.values())) == len(after) == min(5, len(present))
        assert after.keys() | set(left_out) == present
        assert all(after[name] == slot for name, slot in slots.items() if name in after)
        slots = after


def test_a_new_node_has_the_lowest_slot_that_is_free() -> None:
    assert assign_slots({"a", "c", "d"}, {"a": 1, "b": 2}, 3) == ({"a": 1, "c": 2, "d": 3}, [])
    assert assign_slots({"a", "b"}, {"b": 9}, 1) == ({"a": 1}, ["b"])
