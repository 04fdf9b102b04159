"""A session is its user's: another user with the same client identifier does not get it."""

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ingest.protocol.packets import Connack, Connect
from ingest.protocol.properties import Properties
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.clock import ManualClock
from mqlake.records.messages import SESSIONS
from mqlake.records.sessions import decode_session, session_key
from mqlake.security.credentials import make_verifier, set_user
from tests.ingest.gateway.harness import SHARDS, Client, Harness, running_gateway, until
from tests.ingest.gateway.test_survival import FIRST, SECOND, site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

PASSWORD = "open sesame"
KEPT: Properties = {"session_expiry_interval": 3600}
REFUSED = ConnackReasonCode.NOT_AUTHORIZED
TAKEN_OVER = DisconnectReasonCode.SESSION_TAKEN_OVER

each_gateway = pytest.mark.parametrize("other", [0, 1], ids=["the same gateway", "another one"])
kept_or_clean = pytest.mark.parametrize("kept", [{"properties": KEPT}, {}], ids=["kept", "clean"])


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> "Path":
    path = tmp_path_factory.mktemp("credentials") / "users"
    for name in ("ann", "mallory"):
        set_user(path, name, make_verifier(PASSWORD, iterations=4096))
    return path


@asynccontextmanager
async def two(credentials: "Path", **more: Any) -> "AsyncIterator[tuple[Harness, Harness]]":
    settings = {"credentials_file": credentials, "allow_anonymous": True, **more}
    clock = ManualClock()
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=SECOND, clock=clock, **settings) as second,
        running_gateway(log=log, router=router, name=FIRST, clock=clock, **settings) as first,
    ):
        both = (first.gateway, second.gateway)
        await until(lambda: all(len(one.shards.owned) == SHARDS // 2 for one in both))
        yield first, second


async def answer(
    harness: Harness, user: str | None, level: int = 5, client_id: str = "pump", **more: Any
) -> tuple[Client, Connack]:
    client = await Client.open(harness.port, level)
    password = None if user is None else PASSWORD.encode()
    client.send(Connect(client_id, level, username=user, password=password, **more))
    return client, await client.expect(Connack)


@each_gateway
@kept_or_clean
async def test_another_user_is_refused_and_nobody_is_cut(
    credentials: "Path", other: int, kept: Any
) -> None:
    async with two(credentials) as gateways:
        for client_id in ("pump", "valve", "tap", "well"):  # of shards of both gateways
            ann, _ = await answer(gateways[0], "ann", client_id=client_id, **kept)
            for user in ("mallory", None):
                told, connack = await answer(gateways[other], user, client_id=client_id)
                assert connack.reason_code == REFUSED
                assert await told.is_closed()
            await ann.expect_answered()


@each_gateway
@pytest.mark.parametrize("level", [3, 4, 5])
async def test_a_stored_session_waits_for_its_user(
    credentials: "Path", other: int, level: int
) -> None:
    options: dict[str, Any] = {"properties": KEPT} if level == 5 else {}
    async with two(credentials) as gateways:
        ann, _ = await answer(gateways[0], "ann", level, clean_start=False, **options)
        await ann.subscribe("a/b", 1)
        await ann.disconnect()
        await until(lambda: len(gateways[0].gateway.connections) == 0)
        for clean in (True, False):  # neither taken nor ended
            _, connack = await answer(gateways[other], "mallory", level, clean_start=clean)
            assert connack.reason_code == REFUSED
        _, connack = await answer(gateways[other], "ann", level, clean_start=False, **options)
        assert connack.session_present is (level > 3)


async def test_the_user_comes_back_elsewhere(credentials: "Path") -> None:
    async with two(credentials) as (first, second):
        ann, _ = await answer(first, "ann", properties=KEPT)
        _, connack = await answer(second, "ann", clean_start=False, properties=KEPT)
        assert (connack.reason_code, connack.session_present) == (0, True)
        await ann.expect_disconnect(TAKEN_OVER)


async def test_a_session_that_has_ended_is_nobodys(credentials: "Path") -> None:
    async with two(credentials) as (first, second):
        ann, _ = await answer(first, "ann", properties=KEPT)
        await ann.disconnect()
        ann, _ = await answer(first, "ann", clean_start=True)
        await ann.disconnect()
        await until(lambda: len(first.gateway.connections) == 0)
        _, connack = await answer(second, "mallory")
        assert connack.reason_code == 0


async def test_a_session_of_nobody_goes_to_whoever_comes(credentials: "Path") -> None:
    async with two(credentials) as (first, second):
        nobody, _ = await answer(first, None, properties=KEPT)
        _, connack = await answer(second, "ann", clean_start=False, properties=KEPT)
        assert (connack.reason_code, connack.session_present) == (0, True)
        await nobody.expect_disconnect(TAKEN_OVER)
        _, connack = await answer(first, None)
        assert connack.reason_code == REFUSED  # it is ann's now


async def test_sessions_may_follow_the_client_identifier(credentials: "Path") -> None:
    async with two(credentials, sessions_follow="client_id") as (first, second):
        ann, _ = await answer(first, "ann", properties=KEPT)
        mallory, connack = await answer(first, "mallory", clean_start=False, properties=KEPT)
        assert (connack.reason_code, connack.session_present) == (0, True)
        await ann.expect_disconnect(TAKEN_OVER)
        _, connack = await answer(second, None, clean_start=False)
        assert (connack.reason_code, connack.session_present) == (0, True)
        await mallory.expect_disconnect(TAKEN_OVER)


async def test_a_name_that_nobody_has_checked_makes_nobody_its_owner() -> None:
    async with running_gateway() as harness:
        for user in ("ann", "mallory"):
            client = await Client.open(harness.port, 5)
            client.send(Connect("pump", 5, username=user, properties=KEPT))
            assert (await client.expect(Connack)).reason_code == 0
        key = session_key("default", "pump")
        *_, value = [one.value for one in harness.log.records(SESSIONS) if one.key == key]
        stored = decode_session(value or b"")
        assert (stored.username, stored.principal) == ("mallory", None)
