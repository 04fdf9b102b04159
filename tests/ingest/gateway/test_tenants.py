"""Two tenants at one gateway: each door between them is tried, and stays shut."""

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingest.gateway.base.drops import DropReason
from ingest.gateway.process.metrics import add_metrics
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.packets import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from ingest.protocol.properties import Properties
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake import VERSION
from mqlake.clock import ManualClock
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.metrics.families import Families
from mqlake.records.messages import EVENTS, GATEWAYS, SESSIONS
from mqlake.records.tenants import NO_LIMITS, KeptTenant, TenantLimits, encode_tenant, tenant_key
from mqlake.security.credentials import make_verifier, set_user
from tests.ingest.gateway.authentication.signing import AUDIENCE, ISSUER, SECRET, token
from tests.ingest.gateway.harness import (
    NAME,
    Client,
    Harness,
    MemoryRouter,
    free_port,
    is_read,
    new_log,
    running_gateway,
    turns,
    until,
)
from tests.ingest.gateway.test_authentication import ScramLogin
from tests.ingest.gateway.test_draining import ask
from tests.ingest.gateway.test_limits import LISTENER
from tests.ingest.gateway.test_survival import FIRST, SECOND, site
from tests.mqlake.log_lines import lines_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ingest.gateway.process.gateway import Gateway

pytestmark = pytest.mark.anyio

PASSWORD = b"open sesame"
KEPT: Properties = {"session_expiry_interval": 3600}
ACME, BETA = "acme", "beta"
SUBSCRIBED = ("#", "+/+", "plant/#", "$share/group/plant/#", "acme/#", "+/plant/#", "/#")


def say(
    log: MemoryLog,
    name: str,
    state: Any = "active",
    *,
    limits: TenantLimits = NO_LIMITS,
    gone: bool = False,
) -> None:
    """Write what the API writes of a tenant."""
    tenant = KeptTenant(state=state, limits=limits, created_at=0, at=0, by="olga")
    value = None if gone else encode_tenant(tenant)
    MemoryLogWriter(log).append(GATEWAYS, tenant_key(name), value, [], lambda *_: None, partition=0)


@asynccontextmanager
async def two(**settings: Any) -> "AsyncIterator[tuple[Harness, int, int]]":
    """Run a gateway with a listener for each of two tenants."""
    log = new_log(NAME)
    say(log, ACME)
    say(log, BETA)
    ports = free_port(), free_port()
    listeners = [
        {"kind": "tcp", "port": port, "tenant": tenant}
        for port, tenant in zip(ports, (ACME, BETA), strict=True)
    ]
    with lines_with(tells_of_both) as lines:
        async with running_gateway(log=log, listeners=listeners, **settings) as harness:
            yield harness, *ports
        assert lines.count, "else nothing was looked at"
    assert not lines.found, "a line is about one tenant"


def tells_of_both(line: str) -> bool:
    return ACME in line and BETA in line


async def answer(port: int, client_id: str = "pump", **fields: Any) -> Connack:
    client = await Client.open(port, fields.pop("level", 5))
    client.send(Connect(client_id, client.level, **fields))
    return await client.expect(Connack)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
async def test_topics(qos: int, retain: bool) -> None:
    async with two() as (harness, acme, beta):
        others = [await Client.connect(port, "hears") for port in (beta, harness.port)]
        for client in others:
            for topic_filter in SUBSCRIBED:
                await client.subscribe(topic_filter, qos)
        publisher = await Client.connect(acme, "says")
        topics = ("plant/1", "acme/1", "beta/plant/1", "../beta/plant", "/beta")
        for topic_name in topics:
            await publisher.publish(topic_name, b"acme's", qos, retain=retain)
        await harness.delivered_count(len(topics))
        for client in others:
            await client.expect_nothing()
        late = await Client.connect(beta, "late")
        await late.subscribe("#", qos)
        await late.expect_nothing()  # retained ones neither
        assert {one.key.partition(b"/")[0] for one in harness.inbound() if one.key} == {b"acme"}


async def test_a_share_group_of_the_same_name() -> None:
    async with two() as (harness, acme, beta):
        ours, theirs = await Client.connect(acme, "worker"), await Client.connect(beta, "worker")
        for client in (ours, theirs):
            await client.subscribe("$share/g/jobs/#", 1)
        publisher = await Client.connect(acme, "says")
        for number in range(20):
            await publisher.publish("jobs/1", b"%d" % number, 1)
        assert await ours.payloads(20) == [b"%d" % number for number in range(20)]
        await harness.delivered()
        await theirs.expect_nothing()


async def test_the_same_client_identifier_is_another_client() -> None:
    async with two() as (harness, acme, beta):
        clients = {}
        for port in (acme, beta, harness.port):
            clients[port] = await Client.connect(port, "pump", clean_start=True, properties=KEPT)
            await clients[port].subscribe("plant/#", 1)
        for client in clients.values():
            await client.expect_nothing()
        await clients[acme].disconnect()
        # Comes back in another tenant: neither its subscriptions nor its messages are there.
        publisher = await Client.connect(acme, "says")
        await publisher.publish("plant/1", b"queued", 1)
        again = await Client.connect(beta, "pump", clean_start=False, properties=KEPT)
        await clients[beta].expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        await harness.delivered()
        await again.expect_nothing()
        back = await Client.connect(acme, "pump", clean_start=False, properties=KEPT)
        assert (await back.message()).payload == b"queued"


async def test_a_clean_start_ends_no_session_of_another_tenant() -> None:
    async with two() as (_, acme, beta):
        kept = await Client.connect(acme, "pump", properties=KEPT)
        await kept.subscribe("a", 1)
        await kept.disconnect()
        await (await Client.connect(beta, "pump", clean_start=True)).disconnect()
        connack = await answer(acme, "pump", clean_start=False, properties=KEPT)
        assert connack.session_present


async def test_wills() -> None:
    async with two() as (harness, acme, beta):
        ours, theirs = await Client.connect(acme, "hears"), await Client.connect(beta, "hears")
        for client in (ours, theirs):
            await client.subscribe("#", 1)
        dying = await Client.connect(acme, "dies", will=Will("beta/last", b"words", 1, True))
        dying.cut()
        assert (await ours.message()).payload == b"words"
        await harness.delivered()
        await theirs.expect_nothing()


async def test_retained_messages_are_cleared_by_their_own_tenant_alone() -> None:
    async with two() as (harness, acme, beta):
        publisher = await Client.connect(acme, "says")
        await publisher.publish("plant/1", b"kept", 1, retain=True)
        other = await Client.connect(beta, "says")
        await other.publish("plant/1", b"", 1, retain=True)
        await harness.delivered_count(2)
        late = await Client.connect(acme, "late")
        await late.subscribe("plant/#", 1)
        assert (await late.message()).payload == b"kept"


async def test_history_subscriptions() -> None:
    from_beginning: Properties = {"user_property": [("mqlake-from", "2020-01-01T00:00:00Z")]}
    async with two() as (harness, acme, beta):
        publisher = await Client.connect(acme, "says")
        await publisher.publish("plant/1", b"old", 1)
        await harness.delivered_count(1)
        ours, theirs = await Client.connect(acme, "h"), await Client.connect(beta, "h")
        for client in (ours, theirs):
            client.send(Subscribe(1, [Subscription("plant/#", 1)], from_beginning))
            assert await client.expect(Suback)
        assert (await ours.message()).payload == b"old"
        # Behind its history, which has nothing for it, it is live.
        await until(lambda: not len(harness.gateway.histories))
        other = await Client.connect(beta, "says")
        await other.publish("plant/1", b"beta's", 1)
        assert (await theirs.message()).payload == b"beta's"


async def test_what_the_gateway_tells_of_itself() -> None:
    clock = ManualClock()
    async with two(sys_interval_seconds=1, clock=clock) as (harness, acme, beta):
        ours = await Client.connect(acme, "c")
        await ours.subscribe("$SYS/#", 0)
        told = [await ours.message() for _ in range(2)]
        assert [(one.topic_name, one.payload) for one in told] == [
            ("$SYS/broker/clients/connected", b"1"),
            ("$SYS/broker/version", f"mqlake version {VERSION}".encode()),
        ]
        for number in range(2):
            await Client.connect(beta, f"c{number}")
        clock.advance(1)
        harness.gateway.system_topics.process_due()
        await ours.expect_nothing()  # its own tenant has no more
        await Client.connect(acme, "another")
        clock.advance(1)
        harness.gateway.system_topics.process_due()
        assert (await ours.message()).payload == b"2"
        own = await Client.connect(harness.port, "c")
        await own.subscribe("$SYS/broker/version", 0)
        assert (await own.message()).topic_name == "$SYS/broker/version"


async def test_one_tenants_clients_ban_nobody_of_another() -> None:
    limits = GatewaySettings.model_validate({"limits": {"connects_before_ban": 3}}).limits
    async with two(limits=limits) as (_, acme, beta):
        codes = [(await answer(acme, "pump")).reason_code for _ in range(5)]
        assert codes[-1] is ConnackReasonCode.BANNED
        assert (await answer(beta, "pump")).reason_code == 0


async def test_events_and_drops_are_their_tenants() -> None:
    async with two() as (harness, acme, _):
        client = await Client.connect(acme, "pump")
        await client.subscribe("a", 0)
        await client.disconnect()
        await until(lambda: harness.events("client.disconnected"))
        told = [json.loads(one.value or b"{}") for one in harness.log.records(EVENTS)]
        assert {one["tenant"] for one in told if one.get("client_id") == "pump"} == {ACME}


HUSH = "acmehush"
"""Stands in all names that clients of `acme` have: identifiers, users, topics, groups, payloads."""


async def all_that_is_said(client: Client) -> str:
    """Return what a client gets before the answer to a PINGREQ, or the end, in words."""
    client.send(Pingreq())
    heard = []
    while (packet := await client.receive()) is not None and not isinstance(packet, Pingresp):
        heard.append(repr(packet))
    return " ".join(heard)


async def test_no_word_tells_of_another_tenant() -> None:
    """Reason strings, `$SYS`, events, drops, metrics and lines of the log."""
    limits = GatewaySettings.model_validate(
        {"limits": {"subscriptions": 4, "when_too_fast": "disconnect"}}
    ).limits
    async with two(limits=limits, max_topic_levels=5) as (harness, acme, beta):
        will = Will(f"{HUSH}/last", HUSH.encode(), 1, True)
        kept: dict[str, Any] = {"username": HUSH, "properties": KEPT}
        for client_id in (HUSH, f"{HUSH}-2"):
            client = await Client.connect(acme, client_id, will=will, **kept)
            await client.subscribe(f"$share/{HUSH}/{HUSH}/#", 1)
        await client.publish(f"{HUSH}/kept", HUSH.encode(), 1, retain=True)
        harness.gateway.drops.add(DropReason.EXPIRED, ACME, HUSH, f"{HUSH}/x", 1)
        await limit(harness, ACME, connections=1, subscriptions=1, retained_messages=1)
        await limit(harness, BETA, connections=2, retained_messages=1, filters_per_second=9)

        heard = []
        first = await Client.connect(beta, HUSH.replace("hush", ""), will=Will("w", b"", 1, True))
        again = await Client.open(beta)
        again.send(Connect("acme", 5, clean_start=False))
        heard += [await all_that_is_said(first), await all_that_is_said(again)]
        for number in range(2):  # the second one is too many
            other = await Client.open(beta)
            other.send(Connect(f"c{number}", 5))
            heard.append(await all_that_is_said(other))
        filters = ["#", "$SYS/#", "a/+/b", "a/b/c/d/e/f", "$share/g/#", "$share/h/#", "x", "y", "z"]
        for topic_filter in filters:
            packet_id = again.next_packet_id()
            again.send(Subscribe(packet_id, [Subscription(topic_filter, 1)]))
        for topic_name in ("a", "b", "$SYS/x", "a/b/c/d/e/f"):
            packet_id = again.next_packet_id()
            again.send(Publish(topic_name, b"1", qos=1, retain=True, packet_id=packet_id))
        heard.append(await all_that_is_said(again))
        assert "QUOTA_EXCEEDED" in heard[-1]
        assert "connections" in " ".join(heard)
        harness.gateway.drops.record()
        harness.gateway.denials.record()
        await harness.saved()
        for record in harness.log.records(EVENTS):
            if json.loads(record.value or b"{}")["tenant"] != ACME:
                assert HUSH.encode() not in (record.key or b"") + (record.value or b"")
        assert any(HUSH.encode() in (one.value or b"") for one in harness.log.records(EVENTS))
        families = Families()
        add_metrics(harness.gateway.status, families)
        heard += [repr(one) for family in families for one in family.samples]
        heard += [
            repr(harness.gateway.status.heartbeat().counters),
            harness.gateway.status.health()[1],
        ]
        assert HUSH not in " ".join(heard)


async def test_an_administrator_closes_a_client_of_one_tenant() -> None:
    async with two() as (harness, acme, beta):
        ours, theirs = await Client.connect(acme, "pump"), await Client.connect(beta, "pump")
        ask(harness, "disconnect", tenant=ACME, client_id="pump", end_session=True)
        await ours.expect_disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION)
        await theirs.expect_nothing()


# Who is let in


def write_users(folder: Path) -> Path:
    path = folder / "users"
    for name in ("ann", "acme/ann", "beta/bob"):
        set_user(path, name, make_verifier(PASSWORD.decode(), iterations=4096))
    return path


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_users(tmp_path_factory.mktemp("credentials"))


def tenant_at(harness: Harness) -> str:
    """Return whose the only client is."""
    (connection,) = (one for one in harness.connections() if one.session is not None)
    return connection.tenant


@asynccontextmanager
async def by_username(
    credentials: Path, *tenants: str, **settings: Any
) -> "AsyncIterator[tuple[Harness, int]]":
    log = new_log(NAME)
    for name in tenants or (ACME, BETA):
        say(log, name)
    port = free_port()
    listeners = [{"kind": "tcp", "port": port, "tenant_in_username": True}]
    known = {"credentials_file": credentials, **settings}
    async with running_gateway(log=log, listeners=listeners, **known) as harness:
        yield harness, port


async def login(port: int, username: str | None, client_id: str = "c") -> Connack:
    password = None if username is None else PASSWORD
    return await answer(port, client_id, username=username, password=password)


async def test_the_beginning_of_the_user_name_is_the_tenant(credentials: Path) -> None:
    async with by_username(credentials) as (harness, port):
        for username, tenant, principal in (
            ("acme/ann", "acme", "acme/ann"),
            ("beta/bob", "beta", "beta/bob"),
            ("ann", "default", "ann"),
            ("default/ann", "default", "ann"),
        ):
            client = await Client.connect(port, "c", username=username, password=PASSWORD)
            connection = next(
                one for one in harness.connections() if one.tenant == tenant and one.session
            )
            assert connection.principal == principal
            await client.disconnect()
            await until(lambda: not harness.connections())


@pytest.mark.parametrize("username", ["acme/bob", "beta/ann", "gamma/ann", "bob", "/ann", "acme/"])
async def test_nobody_logs_in_as_a_user_of_another_tenant(credentials: Path, username: str) -> None:
    async with by_username(credentials) as (_, port):
        refused = ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert (await login(port, username)).reason_code is refused


async def test_a_users_of_a_tenant_is_not_let_in_by_a_listener_of_the_own_one(
    credentials: Path,
) -> None:
    async with by_username(credentials) as (harness, _):
        for username, code in (("ann", 0), ("acme/ann", ConnackReasonCode.NOT_AUTHORIZED)):
            assert (await login(harness.port, username)).reason_code == code


async def test_an_unknown_tenant_is_no_tenant(credentials: Path) -> None:
    async with by_username(credentials, BETA) as (_, port):
        connack = await login(port, "acme/ann")
        assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        # Who cannot log in does not learn which there are.
        wrong = [
            await answer(port, "c", username=f"{tenant}/ann", password=b"x")
            for tenant in (ACME, BETA)
        ]
        assert wrong[0] == wrong[1]
        assert wrong[0].reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.parametrize("level", [3, 4, 5])
async def test_a_tenant_is_suspended_and_resumed(level: int) -> None:
    async with two() as (harness, acme, beta):
        ours = await Client.connect(acme, "pump", level=level)
        theirs = await Client.connect(beta, "pump", level=level)
        silent = await Client.open(acme, level)
        say(harness.log, ACME, "suspended")
        await ours.expect_disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION)
        silent.send(Connect("other", level))
        refused = (await silent.expect(Connack)).reason_code
        of_3 = ConnackReasonCode.NOT_AUTHORIZED
        assert refused is (ConnackReasonCode.BANNED if level == 5 else of_3)
        await theirs.expect_nothing()
        say(harness.log, ACME)
        await until(lambda: harness.gateway.tenants.refusal(ACME) is None)
        assert (await answer(acme, "pump", level=level)).reason_code == 0
        say(harness.log, ACME, gone=True)
        await until(lambda: harness.gateway.tenants.refusal(ACME) is not None)
        assert (await answer(acme, "pump", level=level)).reason_code is of_3


async def test_rights_are_of_a_tenant(credentials: Path, tmp_path: Path) -> None:
    rights = tmp_path / "rights.toml"
    rights.write_text(
        """
        [[rules]]
        effect = "allow"
        actions = ["connect"]
        client_ids = ["%u-*"]
        [[rules]]
        effect = "allow"
        actions = ["publish", "subscribe", "receive"]
        topics = ["mine/%u/#"]
        tenants = ["acme"]
        """
    )
    async with by_username(credentials, rights_file=rights) as (harness, port):
        for username, client_id, may in (("acme/ann", "ann-1", True), ("beta/bob", "bob-1", False)):
            await Client.connect(port, client_id, username=username, password=PASSWORD)
            found = harness.connection(client_id).rights
            assert found is not None
            name = client_id.partition("-")[0]
            assert found.may_publish(f"mine/{name}/1", 0, False) is may
            assert not found.may_publish(f"mine/{username}/1", 0, False)


async def test_sessions_are_written_with_their_tenant() -> None:
    async with two() as (harness, acme, _):
        client = await Client.connect(acme, "pump", properties=KEPT)
        await client.subscribe("a", 1)
        await harness.saved()
        keys = [one.key or b"" for one in harness.log.records(SESSIONS)]
        assert [one for one in keys if b"pump" in one]
        assert all(b"acme/pump" in one for one in keys if b"pump" in one)


# What tenants have


async def limit(harness: Harness, name: str, **limits: int) -> None:
    """Say what a tenant's limits are, and wait until they count."""
    say(harness.log, name, limits=TenantLimits(**limits))
    shared = harness.gateway.shared_limits
    await until(lambda: bool(shared.of(name, None, LISTENER)) == bool(limits))
    await turns()  # so do connections then


async def test_a_tenants_clients_share_a_rate_from_when_it_is_said() -> None:
    async with two() as (harness, acme, beta):
        clients = [await Client.connect(acme, f"c{number}") for number in range(2)]
        await limit(harness, ACME, messages_per_second=10)
        for client in clients:
            client.send(*(Publish("a", b"", qos=1, packet_id=number) for number in range(1, 9)))
        await until(lambda: not all(is_read(one) for one in harness.connections()))
        other = await Client.connect(beta, "c")
        await other.publish("a", b"", 1)  # nobody else waits
        for client in clients:
            for number in range(1, 9):
                assert (await client.expect(Puback)).packet_id == number
        await limit(harness, ACME)


@pytest.mark.parametrize("level", [4, 5])
async def test_a_tenant_has_no_more_connections_than_it_may(level: int) -> None:
    async with two() as (harness, acme, beta):
        await limit(harness, ACME, connections=2)
        shared = harness.gateway.shared_limits
        kept = [await Client.connect(acme, f"c{number}", level=level) for number in range(2)]
        refused = await answer(acme, "c2", level=level)
        full = ConnackReasonCode.QUOTA_EXCEEDED
        of_3 = ConnackReasonCode.SERVER_UNAVAILABLE
        assert refused.reason_code is (full if level == 5 else of_3)
        assert (await answer(beta, "c2", level=level)).reason_code == 0
        # Who comes back is no further one.
        assert (await answer(acme, "c1", level=level)).reason_code == 0
        await kept[0].disconnect()
        await until(lambda: shared.connections_of(ACME) == 1)
        assert (await answer(acme, "c2", level=level)).reason_code == 0


@asynccontextmanager
async def two_gateways(
    log: MemoryLog, router: MemoryRouter
) -> "AsyncIterator[tuple[tuple[int, int], list[Gateway]]]":
    """Run two gateways of one site; give the ports where clients are of the tenant acme."""
    ports, opened = (free_port(), free_port()), []
    async with contextlib.AsyncExitStack() as stack:
        for name, port in zip((FIRST, SECOND), ports, strict=True):
            listeners = [{"kind": "tcp", "port": port, "tenant": ACME}]
            running = running_gateway(log=log, router=router, name=name, listeners=listeners)
            opened.append((await stack.enter_async_context(running)).gateway)
        yield ports, opened


async def test_two_gateways_share_what_a_tenant_may() -> None:
    async with site() as (log, router):
        say(log, ACME, limits=TenantLimits(connections=3, messages_per_second=100))
        async with two_gateways(log, router) as (ports, opened):
            first, second = opened
            for number in range(2):
                await Client.connect(ports[0], f"a{number}")
            await Client.connect(ports[1], "b0")
            for one in opened:
                await until(partial(one.shared_limits.full, "connections", ACME, None, 1))
            assert (await answer(ports[1], "b1")).reason_code is ConnackReasonCode.QUOTA_EXCEEDED
            # Who publishes as fast as it may at one of them has all but what is kept for others.
            busy = await Client.connect(ports[0], "a0")
            busy.send(*(Publish("a", b"") for _ in range(150)))
            await until(
                lambda: any(one["t/acme"]["messages"] >= 100 for one in second.peers.shared())
            )
            assert first.shared_limits.is_limited("connections", ACME, None)


async def test_two_gateways_count_the_connections_of_a_user(credentials: Path) -> None:
    limits = {"user_connections": 3, "user_subscriptions": 4}
    settings: dict[str, Any] = {
        "limits": GatewaySettings.model_validate({"limits": limits}).limits,
        "credentials_file": credentials,
    }
    login = partial(Client.connect, username="ann", password=PASSWORD)
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST, **settings) as first,
        running_gateway(log=log, router=router, name=SECOND, **settings) as second,
    ):
        ours = [await login(first.port, f"a{number}") for number in range(2)]
        await ours[0].subscribe("a", 0)
        await ours[1].subscribe("b", 0)
        theirs = await login(second.port, "b0")
        both = [one.gateway.shared_limits for one in (first, second)]
        for one in both:
            await until(partial(one.full, "connections", "default", "ann", 1))
        for port in (first.port, second.port):
            connack = await answer(port, "more", username="ann", password=PASSWORD)
            assert connack.reason_code is ConnackReasonCode.QUOTA_EXCEEDED
        await until(partial(both[1].full, "subscriptions", "default", "ann", 3))
        theirs.send(Subscribe(1, [Subscription(one, 0) for one in ("c", "d", "e")]))
        assert list((await theirs.expect(Suback)).reason_codes) == [0, 0, 0x97]
        await ours[0].disconnect()
        await until(lambda: not both[1].full("connections", "default", "ann", 1))
        await login(second.port, "b1")


async def test_what_another_gateway_delivers_is_charged_where_it_came_from() -> None:
    async with site() as (log, router):
        say(log, ACME, limits=TenantLimits(deliveries_per_second=100))
        async with two_gateways(log, router) as (ports, opened):
            first, second = opened
            readers = [await Client.connect(ports[1], f"r{number}") for number in range(20)]
            for reader in readers:
                await reader.subscribe("wide/#", 0)
            client = await Client.connect(ports[0], "says")
            for number in range(10):  # each to another topic
                await client.publish(f"wide/{number}", b"", 1)
            for reader in readers:
                for _ in range(10):
                    await reader.message()
            (shares,) = first.shared_limits.of(ACME, None, LISTENER)
            rate, loop = shares.deliveries, asyncio.get_running_loop()
            assert rate is not None
            # 10 messages and 200 deliveries: more than a second's worth is owed.
            await until(lambda: rate.take(0, loop.time()) > 0.5)
            assert second.context.counters.clients_too_fast == 0
            assert first.context.counters.clients_too_fast >= 1


# By tokens


@pytest.mark.parametrize(
    ("listener", "claim", "username", "tenant"),
    [
        ({}, ACME, None, ACME),
        ({}, None, None, "default"),
        ({}, "gamma", None, None),
        ({"tenant": BETA}, None, None, BETA),
        ({"tenant": BETA}, ACME, None, ACME),
        ({"tenant_in_username": True}, ACME, "acme/x", ACME),
        ({"tenant_in_username": True}, ACME, "beta/x", None),
        ({"tenant_in_username": True}, None, "beta/x", None),
        ({"tenant_in_username": True}, None, "default/x", None),
    ],
)
async def test_a_token_names_its_tenant(
    tmp_path: Path,
    listener: dict[str, Any],
    claim: str | None,
    username: str | None,
    tenant: str | None,
) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(SECRET)
    secrets.chmod(0o600)
    tokens = {
        "kind": "jwt",
        "algorithms": ["HS256"],
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "secret_file": secrets,
        "tenant_claim": "org",
    }
    log, port = new_log(NAME), free_port()
    say(log, ACME)
    say(log, BETA)
    async with running_gateway(
        log=log,
        listeners=[{"kind": "tcp", "port": port, **listener}],
        authenticators={"tokens": tokens},
        authenticate_by=["tokens"],
    ) as harness:
        password = token(sub="ann", **({} if claim is None else {"org": claim}))
        connack = await answer(port, "c", username=username, password=password)
        if tenant is None:
            assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        else:
            assert (connack.reason_code, tenant_at(harness)) == (0, tenant)
            principal = "ann" if tenant == "default" else f"{tenant}/ann"
            assert harness.connection("c").principal == principal


async def test_scram_knows_the_users_of_the_tenant(credentials: Path) -> None:
    log, port = new_log(NAME), free_port()
    say(log, ACME)
    listeners = [{"kind": "tcp", "port": port, "tenant": ACME}]
    async with running_gateway(
        log=log, listeners=listeners, credentials_file=credentials
    ) as harness:
        for username, is_let_in in (("ann", True), ("acme/ann", True), ("bob", False)):
            login = ScramLogin(await Client.open(port, 5), username, PASSWORD.decode())
            connack = await login.connect("c")
            assert (connack.reason_code == 0) is is_let_in
        known = {one.principal for one in harness.connections() if one.session is not None}
        assert known == {"acme/ann"}
