"""Rights that were applied count at every gateway, in the place of its file, for all who are in."""

from pathlib import Path
from typing import Any

import pytest

from ingest.protocol.packets import Connack, Connect, Puback, Publish, Will
from ingest.protocol.reason_codes import (
    ConnackReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    SubackReasonCode,
)
from mqlake.errors import InvalidRecord
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.records.messages import GATEWAYS, RIGHTS_KEY
from mqlake.rights.applied import AppliedRights, encode_rights
from mqlake.security.credentials import make_verifier, set_user
from tests.ingest.gateway.harness import NAME, Client, Harness, new_log, running_gateway, until
from tests.ingest.gateway.test_rights import ask, dropped

pytestmark = pytest.mark.anyio

CONNECT = {"effect": "allow", "actions": ["connect"]}
ALL = ["publish", "subscribe", "receive"]


def allow(*topics: str, **more: Any) -> dict[str, Any]:
    return {"effect": "allow", "actions": ALL, "topics": topics, **more}


async def apply(log: MemoryLog, version: int, *rules: dict[str, Any], **more: Any) -> None:
    """Append what the API would."""
    rights = AppliedRights.model_validate(
        {"rules": rules, "version": version, "at": 1, "by": "api-token", **more}
    )
    await say(log, encode_rights(rights))


async def say(log: MemoryLog, value: bytes) -> None:
    await MemoryLogWriter(log).append_durably(GATEWAYS, RIGHTS_KEY, value, [], partition=0)


async def in_force(harness: Harness, version: int) -> None:
    await until(lambda: harness.gateway.authorizer.version == version)


async def published(client: Client, topic: str, packet_id: int = 1) -> PubackReasonCode:
    client.send(Publish(topic, b"x", 1, packet_id=packet_id))
    return PubackReasonCode((await client.expect(Puback)).reason_code)


async def test_who_came_before_there_were_rules_goes_by_them_at_once() -> None:
    async with running_gateway() as harness:
        one = await Client.connect(harness.port, "one")
        await one.subscribe("#", 1)
        assert await published(one, "b/1") == 0
        await one.message()
        await apply(harness.log, 1, CONNECT, allow("a/#"))
        await in_force(harness, 1)
        assert await published(one, "b/1") is PubackReasonCode.NOT_AUTHORIZED
        assert await ask(one, "b/#") is SubackReasonCode.NOT_AUTHORIZED
        assert await published(one, "a/1") == 0
        assert (await one.message()).topic_name == "a/1"
        # The subscription to # stays, and brings what its client may be sent.
        await apply(harness.log, 2, CONNECT, {**allow("#"), "actions": ["publish"]})
        await in_force(harness, 2)
        assert await published(one, "a/1") == 0
        await until(lambda: dropped(harness) == 1)
        await one.expect_nothing()


async def test_who_may_not_have_its_identifier_has_to_go() -> None:
    async with running_gateway() as harness:
        one = await Client.connect(harness.port, "one")
        two = await Client.connect(harness.port, "two")
        silent = await Client.open(harness.port)  # has not said who it is
        await apply(harness.log, 1, {**CONNECT, "client_ids": ["two", "three"]}, allow("#"))
        await one.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)
        await two.expect_nothing()
        silent.send(Connect("three", 5))
        assert (await silent.expect(Connack)).reason_code == 0
        again = await Client.open(harness.port)
        again.send(Connect("one", 5))
        told = await again.expect(Connack)
        assert told.reason_code is ConnackReasonCode.NOT_AUTHORIZED


async def test_nothing_is_allowed_that_is_not_said() -> None:
    async with running_gateway() as harness:
        one = await Client.connect(harness.port, "one")
        await apply(harness.log, 1)
        await one.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)


async def test_a_stored_session_is_filtered_by_the_rights_of_now() -> None:
    async with running_gateway() as harness:
        expiry = {"session_expiry_interval": 1000}
        one = await Client.connect(harness.port, "one", properties=expiry, clean_start=False)
        await one.subscribe("#", 1)
        await one.disconnect()
        other = await Client.connect(harness.port, "other")
        for topic in ("a/1", "b/1"):
            assert await published(other, topic) == 0
        await apply(harness.log, 1, CONNECT, allow("b/#"))
        await in_force(harness, 1)
        back = await Client.connect(harness.port, "one", properties=expiry, clean_start=False)
        assert (await back.message()).topic_name == "b/1"
        await back.expect_nothing()
        assert dropped(harness) == 1


async def test_a_will_is_published_by_the_rights_of_now() -> None:
    async with running_gateway() as harness:
        other = await Client.connect(harness.port, "other")
        await other.subscribe("#", 1)
        one = await Client.connect(harness.port, "one", will=Will("a/will", b"x", 1))
        await apply(harness.log, 1, CONNECT, allow("b/#"))
        await in_force(harness, 1)
        one.cut()
        await until(lambda: dropped(harness) == 1)
        await other.expect_nothing()


async def test_a_gateway_that_starts_goes_by_them_before_anybody_comes(tmp_path: Path) -> None:
    users, file = tmp_path / "users", tmp_path / "rights.toml"
    set_user(users, "ann", make_verifier("open sesame", iterations=4096))
    file.write_text('[[rules]]\neffect = "allow"\nactions = ["connect"]\n')
    log = new_log(NAME)
    await apply(log, 1, CONNECT)
    await apply(
        log,
        2,
        {**CONNECT, "roles": ["pumps"]},
        allow("p/%u", roles=["pumps"]),
        roles={"pumps": ["ann"]},
    )
    async with running_gateway(log=log, rights_file=file, credentials_file=users) as harness:
        assert harness.gateway.authorizer.version == 2
        assert not harness.gateway.peers.are_there, "rights are no gateway"
        ann = await Client.connect(harness.port, "x", username="ann", password=b"open sesame")
        assert await published(ann, "p/ann") == 0
        assert await published(ann, "p/x", 2) is PubackReasonCode.NOT_AUTHORIZED


async def test_the_file_counts_no_more_once_rights_were_applied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users, file = tmp_path / "users", tmp_path / "rights.toml"
    set_user(users, "ann", make_verifier("open sesame", iterations=4096))
    file.write_text("rules = []")
    async with running_gateway(rights_file=file, credentials_file=users) as harness:
        await apply(harness.log, 1, CONNECT, allow("a"))
        await in_force(harness, 1)
        ann = await Client.connect(harness.port, "x", username="ann", password=b"open sesame")
        harness.gateway.reloading.begin()
        words = "rights file not used: rights were applied for all gateways"
        await until(lambda: words in caplog.messages)
        assert await published(ann, "a") == 0


async def test_rights_that_cannot_be_read_leave_the_old_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_gateway() as harness:
        await apply(harness.log, 1, CONNECT, allow("a"))
        await in_force(harness, 1)
        one = await Client.connect(harness.port, "one")
        await say(harness.log, b'{"v":2,"version":2}')
        await until(lambda: "rights not applied, the old ones stay" in caplog.messages)
        assert await published(one, "a") == 0
        assert await published(one, "b", 2) is PubackReasonCode.NOT_AUTHORIZED


async def test_no_gateway_starts_with_rights_that_it_cannot_read() -> None:
    log = new_log(NAME)
    await say(log, b'{"v":2,"version":2}')
    with pytest.raises(InvalidRecord, match="rights are malformed"):
        async with running_gateway(log=log):
            pass
