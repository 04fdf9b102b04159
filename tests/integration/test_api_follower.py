"""The API reads a real log: what was there, what comes, and a log that is not ready yet."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from api.clients.cache import ClientFilter, SessionCache
from api.clients.presence import Gateways
from api.log.following import LogFollower
from api.tenants.bans import MaterialisedBans
from api.tenants.rights import MaterialisedRights
from launcher.log.kafka import KafkaServer
from launcher.testing.systems import await_condition
from mqlake.bans import ban_key
from mqlake.clock import SystemClock
from mqlake.log.admin import ensure_log_topics
from mqlake.records.messages import GATEWAYS, SESSIONS
from tests.api.conftest import session

TENANT = "followed"
"""Other tests may share the log."""

pytestmark = pytest.mark.kafka


def test_what_was_in_the_log_and_what_comes_is_read(kafka: KafkaServer, tmp_path: Path) -> None:
    servers = kafka.bootstrap_servers
    cache, gateways = SessionCache(tmp_path / "api"), Gateways(SystemClock())
    bans = MaterialisedBans()
    kept = {GATEWAYS: (bans, MaterialisedRights(), gateways), SESSIONS: (cache,)}
    follower = LogFollower(servers, "sessions", kept)
    follower.start()  # before there are log topics
    ensure_log_topics(
        servers,
        inbound_partitions=1,
        session_shards=2,
        retention_bytes=10_000_000,
        timeout_seconds=180,
    )
    await_condition(lambda: cache.is_complete, "an empty log is read")
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})

    def put(log_topic: str, key: str, value: dict[str, Any] | None) -> None:
        data = None if value is None else json.dumps(value).encode()
        producer.produce(log_topic, key=key, value=data, partition=0)
        assert producer.flush(10) == 0

    def listed() -> list[str]:
        values = cache.clients(TENANT, ClientFilter(), "", 100)
        return [json.loads(value.session)["client_id"] for value in values]

    for client_id in ("c1", "c2", "c3"):
        put(SESSIONS, f"s/{TENANT}/{client_id}", session(client_id, tenant=TENANT))
    put(SESSIONS, f"s/{TENANT}/c4", {"v": 7})
    put(GATEWAYS, "heard", {"v": 1, "at": SystemClock().now_ms()})
    put(GATEWAYS, "malformed", {"v": 1})
    put(GATEWAYS, ban_key("7").decode(), {"v": 2, "users": ["mallory"], "at": 1, "by": "x"})
    put(SESSIONS, f"s/{TENANT}/c2", None)
    await_condition(lambda: listed() == ["c1", "c3"], "what has come is read")
    await_condition(lambda: gateways.get("heard") is not None, "a gateway is heard")
    assert gateways.get("malformed") is None
    await_condition(lambda: bans.get("7") is not None, "a ban is read")
    follower.stop()
    assert not cache.is_complete

    again = LogFollower(servers, "sessions", kept)
    again.start()
    await_condition(lambda: cache.is_complete, "all is read once more")
    assert listed() == ["c1", "c3"]
    again.stop()
