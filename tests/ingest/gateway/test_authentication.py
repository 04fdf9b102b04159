"""Logging in to a gateway: user name and password in each version, SCRAM-SHA-256 in 5.0."""

import asyncio
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import paho.mqtt.client as paho
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from pydantic import ValidationError
from scramp import ScramClient

from ingest.gateway.authentication import validity
from ingest.gateway.listeners.certificates import make_context
from ingest.gateway.log.partitions import Partitions
from ingest.gateway.process.gateway import Gateway
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.listeners import TcpListener, TlsListener
from ingest.protocol.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    ConnackReasonCode,
    DisconnectReasonCode,
)
from mqlake.clock import ManualClock, SystemClock
from mqlake.errors import OperationalError
from mqlake.log.contract import LogAccess
from mqlake.log.memory import MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.records.audit import AUDIT_EVENT
from mqlake.records.messages import HEADER_USERNAME
from mqlake.security.argon2_verifiers import CheckWork, make_argon2_verifier
from mqlake.security.credentials import CredentialsError, make_verifier, remove_user, set_user
from tests.ingest.gateway.harness import Client, Harness, free_port, new_log, running_gateway, until

pytestmark = pytest.mark.anyio

METHOD = "SCRAM-SHA-256"
CONTINUE = AuthReasonCode.CONTINUE_AUTHENTICATION
AGAIN = AuthReasonCode.RE_AUTHENTICATE
PASSWORD = b"open sesame"

each_version = pytest.mark.parametrize("level", [3, 4, 5])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    for name in ("alice", "bob"):
        set_user(path, name, make_verifier(PASSWORD.decode(), iterations=4096))
    return path


@asynccontextmanager
async def gateway_with(path: Path | None, **settings: Any) -> AsyncIterator[Harness]:
    async with running_gateway(credentials_file=path, **settings) as harness:
        yield harness


def auth(reason_code: AuthReasonCode, data: bytes | None = None, method: str = METHOD) -> Auth:
    packet = Auth(reason_code, {"authentication_method": method})
    if data is not None:
        packet.properties["authentication_data"] = data
    return packet


class ScramLogin:
    """The client's side of an exchange over a `Client`."""

    def __init__(self, client: Client, username: str = "alice", password: str = "") -> None:
        self.client = client
        self.scram = ScramClient([METHOD], username, password or PASSWORD.decode())

    def connect_packet(self, client_id: str, **fields: Any) -> Connect:
        asked = auth(CONTINUE, self.first)  # has the two properties that CONNECT has
        return Connect(client_id, 5, properties=asked.properties, **fields)

    @property
    def first(self) -> bytes:
        first: str = self.scram.get_client_first()
        return first.encode()

    async def answer(self) -> Auth:
        """Take the server's challenge and return what answers it."""
        challenge = await self.client.expect(Auth)
        assert challenge.reason_code is CONTINUE
        assert challenge.properties["authentication_method"] == METHOD
        self.scram.set_server_first(challenge.properties["authentication_data"].decode())
        return auth(CONTINUE, self.scram.get_client_final().encode())

    def check(self, last: Connack | Auth) -> None:
        """Have the server prove itself, and say which method it was. [MQTT5-4.12.0-5]"""
        assert last.properties["authentication_method"] == METHOD
        self.scram.set_server_final(last.properties["authentication_data"].decode())

    async def connect(self, client_id: str, **fields: Any) -> Connack:
        self.client.send(self.connect_packet(client_id, **fields))
        self.client.send(await self.answer())
        return await self.client.expect(Connack)

    async def again(self) -> Packet | None:
        self.client.send(auth(AGAIN, self.first))
        self.client.send(await self.answer())
        return await self.client.receive()


async def scram_client(port: int, client_id: str, username: str = "alice", **fields: Any) -> Client:
    client = await Client.open(port)
    login = ScramLogin(client, username)
    connack = await login.connect(client_id, **fields)
    assert connack.reason_code is ConnackReasonCode.SUCCESS
    login.check(connack)
    return client


# User name and password


@each_version
async def test_password_lets_the_user_in(path: Path, level: int) -> None:
    async with gateway_with(path) as harness:
        client = await Client.connect(
            harness.port, "c", level=level, username="alice", password=PASSWORD
        )
        await client.publish("t", b"x", 1)
        headers = dict(harness.inbound()[0].headers)
        assert headers[HEADER_USERNAME] == b"alice"


@each_version
async def test_password_kept_by_argon2id_lets_the_user_in(path: Path, level: int) -> None:
    set_user(path, "carol", make_argon2_verifier(PASSWORD.decode(), CheckWork(8192, 1, 1)))
    async with gateway_with(path) as harness:
        for _ in range(2):  # the second time it is remembered
            client = await Client.connect(
                harness.port, "c", level=level, username="carol", password=PASSWORD
            )
            await client.disconnect()
        for password in (b"open sesam", b""):
            client = await Client.open(harness.port, level)
            client.send(Connect("c", level, username="carol", password=password))
            code = (await client.expect(Connack)).reason_code
            assert code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD


async def test_who_is_kept_by_argon2id_has_no_scram(path: Path) -> None:
    set_user(path, "carol", make_argon2_verifier(PASSWORD.decode(), CheckWork(8192, 1, 1)))
    async with gateway_with(path) as harness:
        answers = []
        for name in ("carol", "nobody"):
            login = ScramLogin(await Client.open(harness.port, 5), name)
            login.client.send(login.connect_packet("c"))
            login.client.send(await login.answer())
            connack = await login.client.expect(Connack)
            answers.append((connack.reason_code, connack.properties))
        assert answers[0] == answers[1]
        assert answers[0][0] is ConnackReasonCode.NOT_AUTHORIZED


@each_version
@pytest.mark.parametrize(
    ("username", "password"),
    [("alice", b"wrong"), ("alice", None), ("nobody", PASSWORD), ("", PASSWORD)],
)
async def test_wrong_password_is_told_from_no_user_name(
    path: Path, level: int, username: str, password: bytes | None
) -> None:
    async with gateway_with(path) as harness:
        client = await Client.open(harness.port, level)
        connack = await client.handshake("c", username=username, password=password)
        assert connack.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await client.is_closed()
        client = await Client.open(harness.port, level)
        connack = await client.handshake("c")
        assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        assert await client.is_closed()
        assert harness.counters.connections_refused == 2


@each_version
async def test_anonymous_clients_are_let_in_where_they_may(path: Path, level: int) -> None:
    async with gateway_with(path, allow_anonymous=True) as harness:
        await Client.connect(harness.port, "c", level=level)
        client = await Client.open(harness.port, level)
        connack = await client.handshake("d", username="alice", password=b"wrong")
        assert connack.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
    async with gateway_with(None) as harness:
        await Client.connect(harness.port, "c", level=level, username="who", password=b"ever")
    async with gateway_with(None, allow_anonymous=False) as harness:
        client = await Client.open(harness.port, level)
        connack = await client.handshake("c", username="who", password=b"ever")
        assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED


async def test_packets_behind_connect_wait_for_the_verdict(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await Client.open(harness.port, 4)
        client.send(
            Connect("c", 4, username="alice", password=PASSWORD),
            Publish("t", b"x"),
            Pingreq(),
        )
        assert (await client.expect(Connack)).reason_code is ConnackReasonCode.SUCCESS
        await client.expect(Pingresp)
        client = await Client.open(harness.port, 4)
        client.send(Connect("c", 4, username="alice", password=b"x"), Publish("t", b"secret"))
        await client.expect(Connack)
        assert await client.is_closed()
        assert [record.value for record in harness.inbound()] == [b"x"]


async def test_client_that_does_not_wait_for_the_verdict_leaves_nothing(path: Path) -> None:
    async with gateway_with(path) as harness:
        for _ in range(20):
            client = await Client.open(harness.port, 4)
            client.send(Connect("c", 4, username="alice", password=b"wrong"))
            client.cut()
        await until(lambda: harness.counters.connections_opened == 20)
        await until(lambda: not harness.gateway.connections)
        assert harness.gateway.status.health()[0]


async def test_who_is_refused_takes_nothing_over(path: Path) -> None:
    async with gateway_with(path) as harness:
        fields: dict[str, Any] = {"username": "alice", "password": PASSWORD}
        first = await Client.connect(harness.port, "c", **fields)
        second = await Client.open(harness.port)
        await second.handshake("c", username="alice", password=b"wrong")
        await first.expect_nothing()


@pytest.mark.parametrize(
    ("level", "reason_code"),
    [
        (3, ConnackReasonCode.SERVER_UNAVAILABLE),
        (4, ConnackReasonCode.SERVER_UNAVAILABLE),
        (5, ConnackReasonCode.CONNECTION_RATE_EXCEEDED),
    ],
)
async def test_address_that_guesses_has_to_wait(
    path: Path, level: int, reason_code: ConnackReasonCode
) -> None:
    async with gateway_with(path, failed_logins_per_minute=2) as harness:
        codes = []
        for _ in range(3):
            client = await Client.open(harness.port, level)
            connack = await client.handshake("c", username="alice", password=b"guess")
            codes.append(connack.reason_code)
            assert await client.is_closed()
        assert codes == [*[ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD] * 2, reason_code]


async def test_users_are_read_anew_and_who_is_removed_has_to_go(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway_with(path) as harness:
        bob = await Client.connect(harness.port, "b", username="bob", password=PASSWORD)
        remove_user(path, "bob")
        set_user(path, "carol", make_verifier("carol's", iterations=4096))
        harness.gateway.reloading.begin()
        await until(lambda: "credentials reloaded" in caplog.messages)
        await Client.connect(harness.port, "c", username="carol", password=b"carol's")
        again = await Client.open(harness.port)
        connack = await again.handshake("b", username="bob", password=PASSWORD)
        assert connack.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
        await bob.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)
        write(path, "carol\n")
        harness.gateway.reloading.begin()
        await until(lambda: "credentials not reloaded, the old ones stay" in caplog.messages)
        await Client.connect(harness.port, "d", username="carol", password=b"carol's")


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def test_gateway_does_not_start_without_its_users(tmp_path: Path) -> None:
    settings = GatewaySettings(credentials_file=tmp_path / "missing")
    log = new_log()
    with pytest.raises(CredentialsError, match="No such file"):
        Gateway(
            settings,
            LogAccess(MemoryLogWriter(log), lambda: MemoryLogReader(log), MemoryRangeReader(log)),
            Partitions(1, 1, 1),
            asyncio.Event(),
            SystemClock(),
        )


async def test_no_password_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateway_with(path) as harness:
        for username, password in (
            ("alice", PASSWORD),
            ("alice", b"sesame2"),
            ("bob", b"\xffsesame"),
        ):
            client = await Client.open(harness.port)
            await client.handshake("c", username=username, password=password)
        client = await Client.open(harness.port)
        await ScramLogin(client, password="sesame3").connect("s")
    assert caplog.records
    for record in caplog.records:
        assert "sesame" not in record.getMessage() + str(vars(record))


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize(("password", "is_let_in"), [("open sesame", True), ("x", False)])
async def test_paho_logs_in(
    path: Path, version: MQTTProtocolVersion, password: str, is_let_in: bool
) -> None:
    async with gateway_with(path) as harness:
        outcome: list[Any] = []
        answered = threading.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2, "p", protocol=version)
        client.username_pw_set("alice", password)

        def on_connect(_client: Any, _data: Any, _flags: Any, reason_code: Any, _p: Any) -> None:
            outcome.append(reason_code)
            answered.set()

        client.on_connect = on_connect
        client.connect_async("127.0.0.1", harness.port)
        client.loop_start()
        try:
            assert await asyncio.to_thread(answered.wait, 8)
        finally:
            await asyncio.to_thread(client.loop_stop)
        assert outcome[0].is_failure is not is_let_in
        assert str(outcome[0]) == ("Success" if is_let_in else "Bad user name or password")


# Enhanced authentication


@pytest.mark.clause("MQTT5-4.12.0-2")
@pytest.mark.clause("MQTT5-4.12.0-5")
async def test_scram_lets_the_user_in(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await scram_client(harness.port, "c")
        await client.publish("t", b"x", 1)
        assert dict(harness.inbound()[0].headers)[HEADER_USERNAME] == b"alice"


async def test_scram_may_begin_after_connect(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await Client.open(harness.port)
        client.send(Connect("c", 5, properties={"authentication_method": METHOD}))
        assert await client.expect(Auth) == auth(CONTINUE)
        login = ScramLogin(client)
        client.send(auth(CONTINUE, login.first))
        client.send(await login.answer())
        login.check(await client.expect(Connack))


@pytest.mark.clause("MQTT5-4.12.0-4")
async def test_failed_exchange_is_refused(path: Path) -> None:
    async with gateway_with(path) as harness:
        for username, password in (("alice", "wrong"), ("nobody", "wrong")):
            client = await Client.open(harness.port)
            connack = await ScramLogin(client, username, password).connect("c")
            assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED
            assert await client.is_closed()


@pytest.mark.clause("MQTT5-4.12.0-1")
async def test_method_that_is_not_there_is_refused(path: Path) -> None:
    for file, method in ((path, "SCRAM-SHA-1"), (path, ""), (None, METHOD)):
        async with gateway_with(file) as harness:
            client = await Client.open(harness.port)
            connack = await client.handshake("c", properties={"authentication_method": method})
            assert connack.reason_code is ConnackReasonCode.BAD_AUTHENTICATION_METHOD
            assert "authentication_method" not in connack.properties
            assert await client.is_closed()


async def test_connect_names_the_user_who_logs_in(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await Client.open(harness.port)
        connack = await ScramLogin(client).connect("c", username="bob", password=PASSWORD)
        assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        await scram_client(harness.port, "c", username="alice")


@pytest.mark.clause("MQTT5-3.1.2-30")
@pytest.mark.parametrize(
    "packet", [Pingreq(), Publish("t", b"x"), Subscribe(1, [Subscription("t")])]
)
async def test_other_packets_within_the_exchange_are_an_error(path: Path, packet: Packet) -> None:
    async with gateway_with(path) as harness:
        client = await Client.open(harness.port)
        client.send(ScramLogin(client).connect_packet("c"), packet)
        await client.expect(Auth)
        connack = await client.expect(Connack)
        assert connack.reason_code is ConnackReasonCode.PROTOCOL_ERROR
        assert await client.is_closed()
        assert harness.inbound() == []


async def test_client_may_give_the_exchange_up(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await Client.open(harness.port)
        will = Will("will", b"x")
        client.send(ScramLogin(client).connect_packet("c", will=will))
        await client.expect(Auth)
        await client.disconnect()
        client = await Client.open(harness.port)
        client.send(ScramLogin(client).connect_packet("c", will=will))
        await client.expect(Auth)
        client.cut()
        await until(lambda: not harness.gateway.connections)
        assert harness.inbound() == []


async def test_exchange_ends_with_the_time_for_connect(path: Path) -> None:
    async with gateway_with(path, connect_timeout_seconds=0.1) as harness:
        client = await Client.open(harness.port)
        client.send(ScramLogin(client).connect_packet("c"))
        await client.expect(Auth)
        assert await client.is_closed()


@pytest.mark.clause("MQTT5-4.12.0-5")
async def test_method_cannot_change_within_the_exchange(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await Client.open(harness.port)
        client.send(ScramLogin(client).connect_packet("c"))
        await client.expect(Auth)
        client.send(auth(CONTINUE, b"x", "SCRAM-SHA-1"))
        connack = await client.expect(Connack)
        assert connack.reason_code is ConnackReasonCode.BAD_AUTHENTICATION_METHOD
        assert await client.is_closed()


@pytest.mark.clause("MQTT5-4.12.0-7")
async def test_auth_needs_a_method_in_connect(path: Path) -> None:
    for reason_code in (CONTINUE, AGAIN):
        async with gateway_with(path) as harness:
            client = await Client.connect(harness.port, "c", username="alice", password=PASSWORD)
            client.send(auth(reason_code, b"x"))
            await client.expect_disconnect(DisconnectReasonCode.PROTOCOL_ERROR)


# Re-authentication


async def test_client_authenticates_again_and_again(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await scram_client(harness.port, "c")
        for _ in range(2):
            login = ScramLogin(client)
            last = await login.again()
            assert isinstance(last, Auth)
            assert last.reason_code is AuthReasonCode.SUCCESS
            login.check(last)
        await client.expect_nothing()


async def test_messages_flow_while_a_client_authenticates_again(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await scram_client(harness.port, "c")
        other = await scram_client(harness.port, "d", "bob")
        await client.subscribe("t", 1)
        login = ScramLogin(client)
        client.send(auth(AGAIN, login.first))
        final = await login.answer()
        await client.publish("u", b"out", 1)
        await other.publish("t", b"in", 1)
        assert await client.payloads(1) == [b"in"]
        client.send(final)
        login.check(await client.expect(Auth))


@pytest.mark.clause("MQTT5-4.12.1-2")
@pytest.mark.parametrize(("username", "password"), [("alice", "wrong"), ("bob", "")])
async def test_client_that_fails_to_is_disconnected(
    path: Path, username: str, password: str
) -> None:
    async with gateway_with(path) as harness:
        client = await scram_client(harness.port, "c", will=Will("will", b"gone"))
        last = await ScramLogin(client, username, password).again()
        assert isinstance(last, Disconnect)
        assert last.reason_code is DisconnectReasonCode.NOT_AUTHORIZED
        assert await client.is_closed()
        await until(lambda: [record.value for record in harness.inbound()] == [b"gone"])


@pytest.mark.clause("MQTT5-4.12.1-1")
async def test_method_stays_that_of_connect(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await scram_client(harness.port, "c")
        client.send(auth(AGAIN, b"x", "SCRAM-SHA-1"))
        await client.expect_disconnect(DisconnectReasonCode.BAD_AUTHENTICATION_METHOD)


async def test_answer_that_nobody_asked_for_is_an_error(path: Path) -> None:
    async with gateway_with(path) as harness:
        client = await scram_client(harness.port, "c")
        client.send(auth(CONTINUE, b"x"))
        await client.expect_disconnect(DisconnectReasonCode.PROTOCOL_ERROR)


# Certificates


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def gateway_with_certificates(
    authority: trustme.CA, path: Path, clock: ManualClock | None = None, **listener: Any
) -> AsyncIterator[int]:
    """Run a gateway whose TLS listener takes the user name from certificates; give its port."""
    server = authority.issue_cert("localhost")
    files = {name: path.with_name(f"{name}.pem") for name in ("certificate", "key", "ca")}
    server.private_key_pem.write_to_path(str(files["key"]))
    server.cert_chain_pems[0].write_to_path(str(files["certificate"]))
    authority.cert_pem.write_to_path(str(files["ca"]))
    port = free_port()
    settings = {
        "kind": "tls",
        "port": port,
        "certificate": files["certificate"],
        "key": files["key"],
        "ca_certificates": files["ca"],
        "client_certificates": "optional",
        "use_identity_as_username": True,
        **listener,
    }
    async with gateway_with(path, listeners=[settings], clock=clock):
        yield port


async def tls_client(authority: trustme.CA, port: int, common_name: str | None) -> Client:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if common_name is not None:
        leaf = authority.issue_cert("client.example", common_name=common_name)
        leaf.configure_cert(context)
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    return Client(reader, writer, 5)


async def test_certificate_is_the_user(path: Path, authority: trustme.CA) -> None:
    async with gateway_with_certificates(authority, path) as port:
        client = await tls_client(authority, port, "device-7")
        connack = await client.handshake("c", username="alice", password=b"wrong")
        assert connack.reason_code is ConnackReasonCode.SUCCESS
        await client.disconnect()
        for name in (None, "a\tb"):
            client = await tls_client(authority, port, name)
            connack = await client.handshake("c", username="alice", password=PASSWORD)
            assert connack.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD


async def test_exchange_is_with_the_user_of_the_certificate(
    path: Path, authority: trustme.CA
) -> None:
    async with gateway_with_certificates(authority, path) as port:
        for name, reason_code in (
            ("alice", ConnackReasonCode.SUCCESS),
            ("bob", ConnackReasonCode.NOT_AUTHORIZED),
        ):
            client = await tls_client(authority, port, name)
            connack = await ScramLogin(client, "alice").connect("c")
            assert connack.reason_code is reason_code


def test_identities_come_from_certificates_or_from_a_proxy() -> None:
    with pytest.raises(ValidationError, match="client_certificates"):
        TcpListener(port=1, use_identity_as_username=True)
    with pytest.raises(ValidationError, match="a proxy tells the common name alone"):
        TcpListener(port=1, use_identity_as_username=True, proxy_protocol=True, identity="uri")
    with pytest.raises(ValidationError, match="use_identity_as_username is not"):
        TcpListener(port=1, use_identity_as_client_id=True)
    assert TcpListener(port=1, use_identity_as_username=True, proxy_protocol=True)


async def test_certificate_counts_for_nothing_unless_it_is_asked_for(
    path: Path, authority: trustme.CA
) -> None:
    async with gateway_with_certificates(authority, path, use_identity_as_username=False) as port:
        client = await tls_client(authority, port, "alice")
        connack = await client.handshake("c")
        assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED


async def shows(port: int, context: ssl.SSLContext, client_id: str = "") -> Connack | None:
    """Return what a client with this certificate is answered; None: TLS refuses it."""
    try:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
        return await Client(reader, writer, 5).handshake(client_id)
    except (ssl.SSLError, ConnectionError, AssertionError):
        return None


def context_with(authority: trustme.CA, *names: str, **more: Any) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert(*names, **more).configure_cert(context)
    return context


async def test_an_alternative_name_is_user_and_client_identifier(
    path: Path, authority: trustme.CA
) -> None:
    more: dict[str, Any] = {"identity": "email", "use_identity_as_client_id": True}
    async with gateway_with_certificates(authority, path, **more) as port:
        context = context_with(authority, "ann@example.org", common_name="device-7")
        connack = await shows(port, context)
        assert connack is not None
        assert connack.properties["assigned_client_identifier"] == "ann@example.org"
        for client_id, reason_code in (
            ("ann@example.org", ConnackReasonCode.SUCCESS),
            ("device-7", ConnackReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
        ):
            connack = await shows(port, context, client_id)
            assert connack is not None
            assert connack.reason_code is reason_code
        connack = await shows(port, context_with(authority, "dns.example", common_name="x"))
        assert connack is not None
        assert connack.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD


def revoked_by(authority: trustme.CA, *revoked: trustme.Blob) -> bytes:
    """Return the list of what an authority has revoked."""
    now = datetime.now(UTC)
    key = load_pem_private_key(authority.private_key_pem.bytes(), None)
    issuer = load_pem_x509_certificate(authority.cert_pem.bytes())
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - timedelta(days=1))
        .next_update(now + timedelta(days=1))
    )
    for one in revoked:
        serial = load_pem_x509_certificate(one.bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(cast("Any", key), hashes.SHA256())
    return signed.public_bytes(Encoding.PEM)


async def test_a_revoked_certificate_is_refused(path: Path, authority: trustme.CA) -> None:
    file = path.with_name("revoked.pem")
    good, bad = (authority.issue_cert("a.example", common_name=name) for name in ("good", "bad"))
    contexts = []
    for leaf in (good, bad):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        leaf.configure_cert(context)
        contexts.append(context)
    file.write_bytes(revoked_by(authority, bad.cert_chain_pems[0]))
    async with gateway_with_certificates(authority, path, revoked_certificates=file) as port:
        connack = await shows(port, contexts[0])
        assert connack is not None
        assert connack.reason_code is ConnackReasonCode.SUCCESS
        assert await shows(port, contexts[1]) is None


async def test_so_is_one_of_an_authority_that_is_revoked(path: Path, authority: trustme.CA) -> None:
    file = path.with_name("revoked.pem")
    good, bad, forgotten = (authority.create_child_ca() for _ in range(3))
    file.write_bytes(revoked_by(authority, bad.cert_pem) + revoked_by(good) + revoked_by(bad))
    async with gateway_with_certificates(authority, path, revoked_certificates=file) as port:
        for child, is_taken in ((good, True), (bad, False), (forgotten, False)):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            child.issue_cert("a.example", common_name="device-7").configure_cert(context)
            connack = await shows(port, context)
            assert (connack is not None) == is_taken
            assert connack is None or connack.reason_code is ConnackReasonCode.SUCCESS


async def test_what_is_no_list_of_revoked_certificates_stops_the_start(
    path: Path, authority: trustme.CA
) -> None:
    files = {name: path.with_name(f"{name}.pem") for name in ("certificate", "key", "ca")}
    file = path.with_name("other.pem")
    async with gateway_with_certificates(authority, path):
        trustme.CA().cert_pem.write_to_path(str(file))
    settings = TlsListener(
        certificate=files["certificate"],
        key=files["key"],
        ca_certificates=files["ca"],
        client_certificates="required",
        revoked_certificates=file,
    )
    with pytest.raises(OperationalError, match="found 0 lists and 1 certificates"):
        make_context(settings)
    file.write_text("nothing")
    with pytest.raises(OperationalError, match=f"revoked_certificates {file} cannot be used"):
        make_context(settings)


async def test_a_connection_ends_with_its_certificate(
    path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "LOOK_SECONDS", 0.01)
    clock = ManualClock()
    async with gateway_with_certificates(authority, path, clock=clock) as port:
        client = await tls_client(authority, port, "device-7")
        await client.handshake("c")
        await client.expect_answered()
        clock.step_calendar(2**45)  # a thousand years
        await client.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize("has_chain", [False, True])
async def test_a_user_who_is_removed_or_has_another_password_has_to_go(
    tmp_path: Path, has_chain: bool
) -> None:
    path = tmp_path / "users"
    for name in ("ann", "bob", "eve"):
        set_user(path, name, make_verifier("open sesame", iterations=4096))
    names = ("credentials",) if has_chain else ()
    async with running_gateway(credentials_file=path, authenticate_by=names) as harness:
        ann, bob, eve = [
            await Client.connect(harness.port, name, username=name, password=b"open sesame")
            for name in ("ann", "bob", "eve")
        ]
        silent = await Client.open(harness.port)  # has not said who it is
        remove_user(path, "bob")
        set_user(path, "eve", make_verifier("another one", iterations=4096))
        harness.gateway.reloading.begin()
        for gone in (bob, eve):
            await gone.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)
        await ann.expect_nothing()
        silent.send(Connect("eve", 5, username="eve", password=b"another one"))
        assert (await silent.expect(Connack)).reason_code == 0
        harness.gateway.reloading.begin()  # nothing has changed
        await until(lambda: len(harness.events(AUDIT_EVENT)) == 2)
        await ann.expect_nothing()


async def test_who_logs_in_while_the_file_is_read_counts_by_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "users"
    set_user(path, "ann", make_verifier("open sesame", iterations=4096))
    async with running_gateway(credentials_file=path) as harness:
        authenticator = harness.gateway.authenticator
        checked = asyncio.Event()
        run = authenticator.passwords.run

        def run_late(judge: Any) -> asyncio.Future[Any]:
            async def late() -> Any:
                found = await run(judge)
                checked.set()
                await until(lambda: not authenticator.knows("ann"))
                return found

            return asyncio.ensure_future(late())

        authenticator.passwords.run = run_late  # type: ignore[method-assign]
        client = await Client.open(harness.port)
        client.send(Connect("ann", 5, username="ann", password=b"open sesame"))
        await checked.wait()
        remove_user(path, "ann")
        harness.gateway.reloading.begin()
        told = await client.expect(Connack)
        assert told.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
