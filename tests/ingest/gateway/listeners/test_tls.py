"""TLS on real sockets: certificates of both sides, and new ones while clients are connected."""

import asyncio
import hashlib
import logging
import os
import signal
import ssl
from typing import Any, cast

import pytest
import trustme

from ingest.gateway.listeners.arrivals import Arrivals
from ingest.gateway.listeners.certificates import make_context
from ingest.gateway.listeners.info import ListenerInfo
from ingest.gateway.listeners.listeners import Listeners
from ingest.gateway.settings.listeners import ListenerSettings, TlsListener
from ingest.protocol.packets import Connect, Pingreq
from mqlake.errors import OperationalError
from tests.ingest.gateway.harness import (
    DEADLINE_SECONDS,
    Client,
    free_port,
    running_gateway,
    until,
)
from tests.ingest.gateway.listeners.tls import HOST, Authority
from tests.ingest.gateway.listeners.websocket_client import WebSocketClient

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


def listening(authority: Authority, kind: str = "tls", **more: Any) -> tuple[int, dict[str, Any]]:
    port = free_port()
    listener = {"kind": kind, "port": port, **authority.settings(**more)}
    return port, {"listeners": (listener,)}


async def open_tls(
    port: int, context: ssl.SSLContext, *, server_name: str = HOST, host: str = "127.0.0.1"
) -> Client:
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=server_name
    )
    return Client(reader, writer, 5)


def certificate_of(client: Client) -> str:
    """Return the fingerprint of the certificate that the server has shown."""
    ssl_object = client.writer.get_extra_info("ssl_object")
    return hashlib.sha256(ssl_object.getpeercert(binary_form=True)).hexdigest()


async def test_a_client_that_trusts_the_authority_is_served(authority: Authority) -> None:
    port, settings = listening(authority)
    async with running_gateway(**settings) as harness:
        alice = await open_tls(port, authority.client_context())
        assert alice.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        await alice.handshake("alice")
        await alice.subscribe("a", 1)
        bob = await Client.connect(harness.port, "bob")
        await bob.publish("a", bytes(300_000), 1)
        assert (await alice.message()).payload == bytes(300_000)
        await alice.disconnect()


async def test_tls_1_2_is_the_oldest_version(authority: Authority) -> None:
    port, settings = listening(authority)
    async with running_gateway(**settings):
        context = authority.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        await (await open_tls(port, context)).handshake("alice")
    oldest = make_context(TlsListener(**authority.settings())).minimum_version
    assert oldest is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("ciphers", "is_taken"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256", True),
        ("ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305", True),
        ("ECDHE-ECDSA-AES256-SHA384:ECDHE-RSA-AES256-SHA384", False),
        ("ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA", False),
        ("AES128-GCM-SHA256:AES256-GCM-SHA384", False),
        ("DHE-RSA-AES128-GCM-SHA256", False),
    ],
)
async def test_data_of_tls_1_2_is_sealed_and_its_keys_are_of_one_connection(
    authority: Authority, ciphers: str, *, is_taken: bool
) -> None:
    port, settings = listening(authority)
    async with running_gateway(**settings):
        context = authority.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
        assert await is_served(port, context, "alice") == is_taken


async def test_the_oldest_version_may_be_1_3(authority: Authority) -> None:
    port, settings = listening(authority, minimum_tls_version="1.3")
    async with running_gateway(**settings):
        context = authority.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert not await is_served(port, context, "alice")


async def is_served(port: int, context: ssl.SSLContext, client_id: str) -> bool:
    """Return whether a client gets through the handshakes of TLS and MQTT."""
    try:
        client = await open_tls(port, context)
        await client.handshake(client_id)
    except (ssl.SSLError, ConnectionError, AssertionError):
        return False
    return True


@pytest.mark.parametrize("kind", ["tls", "wss"])
@pytest.mark.parametrize("asked", ["none", "optional", "required"])
async def test_client_certificates_are_as_the_listener_wants(
    authority: Authority, asked: str, kind: str
) -> None:
    more: dict[str, Any] = {
        "client_certificates": asked,
        "ca_certificates": authority.ca_certificates,
    }
    port, settings = listening(authority, kind, **more)
    stranger = authority.client_context()
    trustme.CA().issue_cert("eve@example.org", common_name="eve").configure_cert(stranger)

    async def is_welcome(context: ssl.SSLContext) -> bool:
        if kind == "tls":
            return await is_served(port, context, "alice")
        try:
            await WebSocketClient.connect(port, context=context)
        except (ssl.SSLError, ConnectionError, AssertionError):
            return False
        return True

    async with running_gateway(**settings) as harness:
        assert await is_welcome(authority.client_context("press-7"))
        assert await is_welcome(authority.client_context()) == (asked != "required")
        assert await is_welcome(stranger) == (asked == "none")
        assert harness.gateway.status.health()[0]


async def test_certificates_are_new_and_clients_stay(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.listeners")
    port, settings = listening(authority)
    async with running_gateway(**settings) as harness:
        before = await open_tls(port, authority.client_context())
        await before.handshake("before")
        first = certificate_of(before)
        authority.issue()
        await harness.gateway.listeners.reload_certificates()
        after = await open_tls(port, authority.client_context())
        assert certificate_of(after) != first
        await after.handshake("after")
        await before.expect_nothing()
    assert "certificate reloaded" in caplog.messages


@pytest.mark.parametrize("broken", ["certificate", "key", "both", "other", "missing", "ca"])
async def test_files_that_cannot_be_used_leave_the_old_ones_in_force(
    authority: Authority, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    more: dict[str, Any] = {
        "client_certificates": "required",
        "ca_certificates": authority.ca_certificates,
    }
    port, settings = listening(authority, **more)
    async with running_gateway(**settings) as harness:
        before = await open_tls(port, authority.client_context("before"))
        first = certificate_of(before)
        if broken in ("certificate", "both"):
            authority.certificate.write_text("not a certificate")
        if broken in ("key", "both"):
            authority.key.write_bytes(b"\0")
        if broken == "other":
            trustme.CA().issue_cert(HOST).private_key_pem.write_to_path(str(authority.key))
        if broken == "missing":
            authority.key.unlink()
        if broken == "ca":
            authority.issue()
            trusted = authority.ca_certificates.read_bytes()
            authority.ca_certificates.write_text("nobody")
        await harness.gateway.listeners.reload_certificates()
        if broken == "ca":
            authority.ca_certificates.write_bytes(trusted)
        after = await open_tls(port, authority.client_context("after"))
        assert certificate_of(after) == first
        await after.handshake("after")
        assert harness.gateway.status.health()[0]
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.getMessage() == "certificate not reloaded, the old one stays"
    assert "cannot be used: " in cast("Any", record).fields["reason"]


async def test_authorities_that_were_taken_away_are_trusted_no_longer(
    authority: Authority,
) -> None:
    more: dict[str, Any] = {
        "client_certificates": "required",
        "ca_certificates": authority.ca_certificates,
    }
    port, settings = listening(authority, **more)
    async with running_gateway(**settings) as harness:
        context = authority.client_context("press-7")
        assert await is_served(port, context, "press-7")
        trustme.CA().cert_pem.write_to_path(str(authority.ca_certificates))
        await harness.gateway.listeners.reload_certificates()
        assert not await is_served(port, context, "press-7")


async def open_renewed(port: int, authority: Authority, before: str) -> Client:
    """Open connections until the server shows another certificate; return the last one."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            client = await open_tls(port, authority.client_context())
            if certificate_of(client) != before:
                return client
            client.cut()


async def test_a_control_record_reloads(authority: Authority) -> None:
    port, settings = listening(authority)
    async with running_gateway(**settings) as harness:
        first = certificate_of(await open_tls(port, authority.client_context()))
        authority.issue()
        harness.deliver(b"\0control/reload", b"{}", [])
        await open_renewed(port, authority, first)


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("certificate", "No such file or directory"),
        ("key", "No such file or directory"),
        ("ca_certificates", "No such file or directory"),
    ],
)
async def test_files_that_are_missing_at_the_start_are_named(
    authority: Authority, file: str, problem: str
) -> None:
    more: dict[str, Any] = {
        "client_certificates": "required",
        "ca_certificates": authority.ca_certificates,
    }
    _, settings = listening(authority, **more)
    getattr(authority, file).unlink()
    with pytest.RaisesGroup(pytest.RaisesExc(OperationalError, match=f"{file}.*{problem}")):
        async with running_gateway(**settings):
            pass


async def test_an_encrypted_key_takes_its_password(authority: Authority) -> None:
    process = await asyncio.create_subprocess_exec(
        "openssl",
        "pkey",
        "-aes256",
        "-passout",
        "pass:s3cret",
        "-in",
        str(authority.key),
        "-out",
        str(authority.key) + ".new",
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    os.replace(str(authority.key) + ".new", authority.key)
    make_context(TlsListener(**authority.settings(key_password="s3cret")))
    for wrong in (None, "wrong"):
        with pytest.raises(OperationalError, match="cannot be used"):
            make_context(TlsListener(**authority.settings(key_password=wrong)))


async def test_who_does_not_speak_tls_is_cut(authority: Authority) -> None:
    port, settings = listening(authority)
    # For that, and not because the time for CONNECT is over.
    async with running_gateway(connect_timeout_seconds=300, **settings) as harness:
        client = await Client.open(port)
        client.send(Connect("alice", 5))
        try:
            answer = await asyncio.wait_for(client.reader.read(), DEADLINE_SECONDS)
        except ConnectionResetError:
            answer = b""
        assert answer in (b"", ALERT)
        assert harness.gateway.status.health()[0]


ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
"""protocol_version, in the clear."""


async def test_who_says_nothing_is_cut(authority: Authority) -> None:
    port, settings = listening(authority)
    async with running_gateway(connect_timeout_seconds=0.05, **settings):
        client = await Client.open(port)
        assert await client.is_closed()


async def test_who_is_in_the_handshake_does_not_delay_the_end(authority: Authority) -> None:
    port, settings = listening(authority)
    async with running_gateway(**settings):
        client = await Client.open(port)
        await asyncio.sleep(0)
    assert await client.is_closed()


class Recorder(asyncio.Protocol):
    """Keeps what its transport tells."""

    def __init__(self, info: ListenerInfo) -> None:
        self.info = info
        self.facts: dict[str, Any] = {}
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        names = ("peername", "sni", "client_certificate_subject", "client_certificate_common_name")
        self.facts = {name: transport.get_extra_info(name) for name in names}
        cast("asyncio.Transport", transport).write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.received += data


async def test_a_connection_knows_certificate_and_server_name(authority: Authority) -> None:
    port, settings = listening(
        authority, client_certificates="optional", ca_certificates=authority.ca_certificates
    )
    made: list[Recorder] = []

    def make(info: ListenerInfo) -> Recorder:
        made.append(Recorder(info))
        return made[-1]

    listener: ListenerSettings = TlsListener(**settings["listeners"][0])
    listeners = Listeners([listener], Arrivals(), timeout_seconds=5)
    await listeners.start(make)
    for common_name in ("press-7", None):
        context = authority.client_context(common_name)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=HOST
        )
        assert await reader.readexactly(5) == b"hello"
        writer.write(b"data")
        await until(lambda: made[-1].received == b"data")
        assert made[-1].info.kind == "tls"
        subject = None if common_name is None else "CN=press-7,OU="
        facts = made[-1].facts
        assert facts["peername"] == writer.get_extra_info("sockname")
        assert facts["sni"] == HOST
        assert facts["client_certificate_common_name"] == common_name
        if subject is None:
            assert facts["client_certificate_subject"] is None
        else:
            assert facts["client_certificate_subject"].startswith(subject)
            assert facts["client_certificate_subject"].endswith(",O=Press")
        writer.transport.abort()
    listeners.stop_accepting()


async def test_the_process_reloads_at_sighup(authority: Authority) -> None:
    port, settings = listening(authority)
    async with running_gateway(**settings) as harness:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, harness.gateway.reloading.begin)
        try:
            first = certificate_of(await open_tls(port, authority.client_context()))
            authority.issue()
            os.kill(os.getpid(), signal.SIGHUP)
            client = await open_renewed(port, authority, first)
            client.send(Pingreq())
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
