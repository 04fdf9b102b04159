import json
from typing import Any

import pytest

from mqlake.errors import InvalidRecord
from mqlake.records.gateway_heartbeat import GatewayHeartbeat, decode_gateway_heartbeat
from mqlake.records.versions import RECORD_VERSION, in_version

WRITTEN: dict[str, Any] = {
    "v": 3,
    "gateway": "g1",
    "incarnation": "ab",
    "epoch": 2,
    "number": 7,
    "process": "boot/1/2",
    "records": 3,
    "at": 1_600_000_000_000,
    "site": "local",
    "state": "draining",
    "listeners": ["mqtt://127.0.0.1:1883"],
    "addresses": {"tcp": "127.0.0.1:1883"},
    "overload": 1,
    "overload_step": 0,
    "rights": 4,
    "shared": {"u/ann": [1.5, 0.0, 0.0]},
    "shared_more": {"t/acme": {"sessions": 3.0}},
    "fan_out": {"number": 9, "of": {"g2": {"default/c": 3}}},
    "metrics_port": 9464,
    "shards": [0, 2],
    "shard_count": 4,
    "clients": 3,
    "sessions": 5,
    "subscriptions": 8,
    "counters": {"messages_received": 10},
    "latency": {"accept": [0, 1]},
    "partitions": 4,
    "fixed": False,
    "lease": 10.0,
}
"""By a release whose gateways put the members together from dictionaries."""
LATER = {"sessions_catching_up"}
"""Members that came after it."""


def test_a_heartbeat_has_the_members_that_it_always_had() -> None:
    found = decode_gateway_heartbeat(json.dumps(WRITTEN).encode())
    assert found == GatewayHeartbeat(**WRITTEN)
    assert json.loads(found.encode()) == WRITTEN
    assert set(WRITTEN) | LATER == set(GatewayHeartbeat.model_fields)


def test_an_earlier_release_has_not_written_all_members() -> None:
    found = decode_gateway_heartbeat(b'{"v":1,"incarnation":"1","at":5}')
    assert (found.state, found.epoch, found.records, found.clients) == ("serving", 0, 1, 0)
    # What is not known is not nothing.
    assert (found.partitions, found.lease, found.overload) == (None, None, None)


def test_members_of_a_later_release_are_ignored() -> None:
    later = {**WRITTEN, "v": 99, "colour": {"of": ["its", 1]}}
    assert json.loads(decode_gateway_heartbeat(json.dumps(later).encode()).encode()) == {
        **WRITTEN,
        "v": 99,
    }


def test_only_members_that_were_set_are_written_and_the_version_comes_first() -> None:
    said = GatewayHeartbeat(state="retiring", listeners=[])
    said.number, said.v = 1, RECORD_VERSION
    written = {"v": RECORD_VERSION, "state": "retiring", "listeners": [], "number": 1}
    assert json.loads(said.encode()) == written
    before, _ = in_version(said.encode(), [], RECORD_VERSION - 1)
    assert json.loads(before or b"") == {**written, "v": RECORD_VERSION - 1}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, "it"),
        (b"", "it"),
        (b"[]", "it"),
        (b'{"at":"x"}', "at"),
        (b'{"counters":{"messages_sent":[]}}', "counters.messages_sent"),
    ],
)
def test_a_record_of_another_form_is_refused(value: bytes | None, place: str) -> None:
    with pytest.raises(InvalidRecord, match=f"^gateway record is of another form: {place}: "):
        decode_gateway_heartbeat(value)
