"""The API behind TLS, served as `api.app.main` does."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
import uvicorn
import wsproto
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState
from wsproto.events import AcceptConnection, CloseConnection, Request

from api.app import WebSocketProtocol
from api.settings import ApiSettings
from api.web.served_certificate import ServedCertificate
from mqlake.api_client import ApiClient
from mqlake.errors import OperationalError, SettingsError
from mqlake.processes.status import STATE_FILE, read_state, replace_file
from mqlake.security.tls import pinned_context
from mqlake.settings import load
from tests.api.conftest import Api, memory_api
from tests.api.test_api import TOKEN
from tests.api.test_entrance import served


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, authority: trustme.CA, *, with_chain: bool = False) -> dict[str, Path]:
    """Write a new certificate with its key; return the settings that name them."""
    issued = authority.issue_cert("api.example")
    files = {"certificate": folder / "api.pem", "key": folder / "api.key"}
    issued.cert_chain_pems[0].write_to_path(str(files["certificate"]))
    if with_chain:
        authority.cert_pem.write_to_path(str(files["certificate"]), append=True)
    issued.private_key_pem.write_to_path(str(files["key"]))
    return files


@contextmanager
def secure_api(
    folder: Path, authority: trustme.CA, **settings: object
) -> Iterator[tuple[Api, int]]:
    files = write(folder, authority)
    with memory_api(folder, **files, **settings) as api, served(api) as port:
        state = replace(
            read_state(folder),
            api_url=f"https://127.0.0.1:{port}",
            api_certificate=str(files["certificate"]),
        )
        replace_file(folder / STATE_FILE, state.to_json())
        yield api, port


def shown(port: int) -> bytes:
    """Return the certificate that a new connection is shown."""
    text = ssl.get_server_certificate(("127.0.0.1", port))
    return ssl.PEM_cert_to_DER_cert(text)


def of_file(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_commands_ask_by_tls_the_certificate_of_the_system_and_no_other(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with secure_api(tmp_path, authority) as (_api, port):
        client = ApiClient(tmp_path)
        assert client.get("/session")["name"] == "api-token"
        with client.stream(
            "/publish", {"topic_name": "a", "payload": "1"}, timeout_seconds=30
        ) as sent:
            assert sent.status == 200
        # Somebody else at that port, with a certificate of the same authority for the same name.
        write(tmp_path, authority)
        with pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
            ApiClient(tmp_path).get("/session")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/1.1" not in plain.recv(1_000)


def test_the_authority_in_the_file_is_not_who_is_trusted(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with secure_api(tmp_path, authority) as (_api, port):
        other = tmp_path / "other"
        other.mkdir()
        context = pinned_context(write(other, authority, with_chain=True)["certificate"])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            context.wrap_socket(plain)


@pytest.mark.parametrize(("seconds", "header"), [(0, ""), (3600, "max-age=3600")])
def test_browsers_are_told_to_come_by_tls_where_that_is_set(
    tmp_path: Path, authority: trustme.CA, seconds: int, header: str
) -> None:
    with secure_api(tmp_path, authority, hsts_seconds=seconds) as (_api, port):
        asked = b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        lines = ask(tmp_path, port, asked).decode().splitlines()
        told = [line for line in lines if line.startswith("strict-transport-security")]
        assert told == ([f"strict-transport-security: {header}"] if header else [])


def test_without_a_certificate_browsers_cannot_be_told_so() -> None:
    with pytest.raises(ValueError, match="hsts_seconds is set, certificate is not"):
        ApiSettings(hsts_seconds=60)


def test_cookies_and_websockets_go_by_tls(tmp_path: Path, authority: trustme.CA) -> None:
    with secure_api(tmp_path, authority) as (_api, port), connect(tmp_path, port) as secure:
        client = open_websocket(secure, tmp_path, port)
        secure.sendall(client.send(CloseConnection(1000)))
        while secure.recv(65_536):
            pass


class Wire(asyncio.Transport):
    """Takes bytes to a client; that the server has closed it, is not known to it yet."""

    def __init__(self, client: wsproto.WSConnection) -> None:
        super().__init__()
        self._client = client
        self.closed = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._client.receive_data(bytes(data))

    def close(self) -> None:
        self.closed += 1

    def is_closing(self) -> bool:
        return self.closed > 0


@pytest.mark.anyio
async def test_a_websocket_that_is_closing_does_not_keep_the_server_from_ending() -> None:
    accepted = asyncio.Event()

    async def application(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        accepted.set()
        while (await receive())["type"] != "websocket.disconnect":
            pass

    client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    protocol = WebSocketProtocol(uvicorn.Config(application), ServerState(), {})
    wire = Wire(client)
    protocol.connection_made(wire)
    protocol.data_received(client.send(Request(host="a", target="/")))
    await accepted.wait()
    assert isinstance(next(iter(client.events())), AcceptConnection)
    protocol.data_received(client.send(CloseConnection(1000)))
    assert wire.closed == 1
    protocol.shutdown()
    assert wire.closed == 2


def is_known(folder: Path, port: int, set_cookie: str) -> bool:
    """Tell whether a request with a cookie, as it was set, is that of a caller."""
    cookie = set_cookie.partition(": ")[2].partition(";")[0]
    head = f"GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n"
    answer = ask(folder, port, f"{head}Connection: close\r\n\r\n".encode())
    return answer.startswith(b"HTTP/1.1 200")


def open_websocket(secure: ssl.SSLSocket, folder: Path, port: int) -> wsproto.WSConnection:
    """Log in as a browser does, and open the live feed."""
    body = b'{"token": "%s"}' % TOKEN.encode()
    head = (
        b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    answer = ask(folder, port, head + body).decode()
    assert answer.startswith("HTTP/1.1 200")
    (cookie,) = [line for line in answer.splitlines() if line.startswith("set-cookie")]
    assert cookie.startswith("set-cookie: __Host-mqlake_session=")
    assert "; Secure" in cookie
    assert "; Path=/" in cookie
    assert "domain" not in cookie.lower()
    assert is_known(folder, port, cookie)
    # Anybody who may set a cookie for the host could have set one of this name.
    assert not is_known(folder, port, cookie.replace("__Host-", ""))

    client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    request = client.send(
        Request(
            host=f"127.0.0.1:{port}",
            target="/api/v1/live/ws",
            extra_headers=[
                (b"Cookie", cookie.partition(": ")[2].partition(";")[0].encode()),
                (b"Origin", b"https://127.0.0.1:%d" % port),
            ],
        )
    )
    secure.sendall(request)
    client.receive_data(secure.recv(65_536))
    assert isinstance(next(iter(client.events())), AcceptConnection)
    return client


@contextmanager
def connect(folder: Path, port: int) -> Iterator[ssl.SSLSocket]:
    context = pinned_context(folder / "api.pem")
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    with context.wrap_socket(plain) as secure:
        yield secure


def ask(folder: Path, port: int, request: bytes) -> bytes:
    received = b""
    with connect(folder, port) as secure:
        secure.sendall(request)
        while part := secure.recv(65_536):
            received += part
    return received


def test_a_new_certificate_is_shown_and_one_that_is_wrong_is_not(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with secure_api(tmp_path, authority) as (api, port):
        certificate = api.services.certificate
        assert certificate is not None
        first = shown(port)
        key = (tmp_path / "api.key").read_bytes()
        write(tmp_path, authority)
        second = of_file(tmp_path / "api.pem")
        new_key = (tmp_path / "api.key").read_bytes()
        (tmp_path / "api.key").write_bytes(key)  # half of the files, as while they are replaced
        certificate.reload_changed()
        assert shown(port) == first
        (tmp_path / "api.key").write_bytes(new_key)
        certificate.reload_changed()
        assert shown(port) == second
        (tmp_path / "api.key").unlink()
        certificate.reload_changed()
        assert shown(port) == second


def test_a_client_that_closes_nothing_does_not_hold_up_the_end(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with ExitStack() as stack, secure_api(tmp_path, authority) as (_api, port):
        secure = stack.enter_context(connect(tmp_path, port))
        secure.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert secure.recv(65_536).startswith(b"HTTP/1.1 200")


def test_old_versions_of_tls_are_refused(tmp_path: Path, authority: trustme.CA) -> None:
    with secure_api(tmp_path, authority, minimum_tls_version="1.3") as (_api, port):
        context = pinned_context(tmp_path / "api.pem")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            pytest.raises(ssl.SSLError),
        ):
            context.wrap_socket(plain)


def test_settings_that_are_half_or_wrong_are_refused(tmp_path: Path, authority: trustme.CA) -> None:
    files = write(tmp_path, authority)
    with pytest.raises(SettingsError, match="set both, or none"):
        load(ApiSettings, key=files["key"])
    files["key"].write_text("nothing")
    settings = load(ApiSettings, **files)
    with pytest.raises(OperationalError, match=r"api\.pem with key .*api\.key cannot be used"):
        ServedCertificate(settings)
    with pytest.raises(OperationalError, match="cannot be used"):
        pinned_context(files["key"])
