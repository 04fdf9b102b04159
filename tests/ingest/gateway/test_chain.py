"""Who is asked who a client is: a web server and a file, in the order of the settings."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.authentication import validity
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.packets import Connack, Connect
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.clock import ManualClock
from mqlake.errors import SettingsError
from mqlake.security.credentials import make_verifier, set_user
from mqlake.settings import load
from tests.ingest.gateway.harness import Client, Harness, free_port, running_gateway, until

pytestmark = pytest.mark.anyio

OK, REFUSED = ConnackReasonCode.SUCCESS, ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
ANONYMOUS = ConnackReasonCode.NOT_AUTHORIZED
NO_ANSWER = ConnackReasonCode.SERVER_UNAVAILABLE
HERE = ["127.0.0.0/8"]


class Directory:
    """A web server that knows who clients are.

    Attributes:
        asked: What it was asked.
        answer: Makes the body of an answer of a question.
        status: Of its answers.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.status = 200
        self.answer: Callable[[dict[str, Any]], Any] = lambda _: {"result": "next"}
        self.is_silent = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/who"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.headers.append(head.decode())
                fields = dict(
                    line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2]
                )
                question = json.loads(await reader.readexactly(int(fields["content-length"])))
                self.asked.append(question)
                if self.is_silent:
                    await reader.read()
                    return
                answer = self.answer(question)
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                writer.write(
                    b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (self.status, len(body))
                )
                writer.write(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def directory() -> AsyncIterator[Directory]:
    found = Directory()
    server = await asyncio.start_server(found.serve, "127.0.0.1", found.port)
    async with server:
        yield found
        server.close()


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("credentials") / "users"
    set_user(path, "ann", make_verifier("open sesame", iterations=4096))
    return path


def chain(found: Directory, *names: str, **more: Any) -> dict[str, Any]:
    one = {"kind": "http", "url": found.url, "allowed_networks": HERE, **more}
    return {"authenticators": {"web": one}, "authenticate_by": names or ("web",)}


async def answer(
    harness: Harness, user: str | None = "bob", password: bytes | None = b"secret", level: int = 5
) -> ConnackReasonCode:
    client = await Client.open(harness.port, level)
    client.send(Connect(f"pump-of-{user}", level, username=user, password=password))
    return (await client.expect(Connack)).reason_code


@pytest.mark.parametrize("level", [3, 4, 5])
async def test_the_server_allows_and_denies(level: int) -> None:
    async with directory() as found, running_gateway(**chain(found)) as harness:
        found.answer = lambda asked: {
            "result": "allow" if asked["password"] == "secret" else "deny"
        }
        assert await answer(harness, level=level) == OK
        assert await answer(harness, password=b"guessed", level=level) == REFUSED
        assert found.asked[0] == {
            "username": "bob",
            "password": "secret",
            "client_id": "pump-of-bob",
            "address": "127.0.0.1",
            "protocol_level": level,
        }


async def test_those_in_the_file_are_not_asked_about(credentials: Path) -> None:
    async with (
        directory() as found,
        running_gateway(
            credentials_file=credentials, **chain(found, "credentials", "web")
        ) as harness,
    ):
        found.answer = lambda asked: {"result": "allow" if asked["username"] == "bob" else "next"}
        assert await answer(harness, "ann", b"open sesame") == OK
        assert await answer(harness, "ann", b"guessed") == REFUSED
        assert found.asked == []
        assert await answer(harness, "bob") == OK
        assert await answer(harness, "eve") == REFUSED  # nobody knows her


async def test_who_is_passed_on_is_looked_for_in_the_file(credentials: Path) -> None:
    async with (
        directory() as found,
        running_gateway(
            credentials_file=credentials, **chain(found, "web", "credentials")
        ) as harness,
    ):
        assert await answer(harness, "ann", b"open sesame") == OK
        assert await answer(harness, "ann", b"guessed") == REFUSED
        assert len(found.asked) == 2
        found.answer = lambda _: {"result": "deny"}
        assert await answer(harness, "ann", b"open sesame") == REFUSED


async def test_nobody_is_let_in_that_nobody_knows() -> None:
    async with directory() as found, running_gateway(**chain(found)) as harness:
        assert await answer(harness) == REFUSED
        assert await answer(harness, None, None) == ANONYMOUS
    async with (
        directory() as found,
        running_gateway(allow_anonymous=True, **chain(found)) as harness,
    ):
        assert await answer(harness) == REFUSED
        assert await answer(harness, None, None) == OK


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (b"<html>", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 60_000, "is not JSON"),
        (b"[]", "member 'result' of its answer is None"),
        ({"result": "yes"}, "is 'yes', expected 'allow', 'deny' or 'next'"),
        ({"result": True}, "is True, expected 'allow', 'deny' or 'next'"),
        ({"result": "allow", "username": 7}, "member 'username' of its answer is 7"),
        ({"result": "allow", "username": None}, "member 'username' of its answer is None"),
        ({"result": "allow", "username": "a\0b"}, "user name"),
        ({"result": "allow", "expires_at": "soon"}, "member 'expires_at' of its answer is 'soon'"),
        ({"result": "allow", "expires_at": True}, "member 'expires_at' of its answer is True"),
        (b'{"result":"allow","expires_at":1e999}', "member 'expires_at' of its answer is inf"),
        (b" " * 100_000, "more than 65536 bytes"),
    ],
)
async def test_an_answer_that_is_none_lets_nobody_in(
    told: Any, reason: str, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        directory() as found,
        running_gateway(
            credentials_file=credentials, **chain(found, "web", "credentials")
        ) as harness,
    ):
        found.answer = lambda _: told
        assert await answer(harness, "ann", b"open sesame") == NO_ANSWER
        (record,) = [one for one in caplog.records if "does not answer" in one.message]
        assert reason in record.__dict__["fields"]["reason"]


@pytest.mark.parametrize("status", [204, 301, 401, 500])
async def test_another_status_lets_nobody_in(status: int) -> None:
    async with directory() as found, running_gateway(**chain(found)) as harness:
        found.status, found.answer = status, lambda _: {"result": "allow"}
        if status == 204:
            found.answer = lambda _: b""
        assert await answer(harness) == NO_ANSWER


async def test_a_server_that_is_not_there_lets_nobody_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with directory() as found, running_gateway(**chain(found)) as harness:
        found.is_silent = True
    async with running_gateway(**chain(found)) as harness:
        assert await answer(harness) == NO_ANSWER
        assert await answer(harness) == NO_ANSWER
        assert caplog.messages.count("an authenticator does not answer") == 1
        server = await asyncio.start_server(found.serve, "127.0.0.1", found.port)
        async with server:
            found.is_silent, found.answer = False, lambda _: {"result": "allow"}
            assert await answer(harness) == OK
            server.close()
        assert "an authenticator answers again" in caplog.messages


async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async with (
        directory() as found,
        running_gateway(**chain(found, timeout_seconds=0.05)) as harness,
    ):
        found.is_silent = True
        assert await answer(harness) == NO_ANSWER


async def test_an_internal_address_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        directory() as found,
        running_gateway(**chain(found, allowed_networks=[])) as harness,
    ):
        found.answer = lambda _: {"result": "allow"}
        assert await answer(harness) == NO_ANSWER
        assert found.asked == []
    (record,) = [one for one in caplog.records if "does not answer" in one.message]
    assert "authenticators.web.allowed_networks" in record.__dict__["fields"]["reason"]


async def test_the_server_says_who_the_client_is() -> None:
    async with directory() as found, running_gateway(**chain(found)) as harness:
        found.answer = lambda _: {"result": "allow", "username": "device-7"}
        client = await Client.connect(harness.port, "pump", username="token", password=b"x")
        session = harness.gateway.sessions.get("default", "pump")
        assert (session.username, session.principal) == ("device-7", "device-7")
        await client.disconnect()


async def test_a_connection_ends_when_its_login_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "LOOK_SECONDS", 0.01)
    clock = ManualClock()
    async with directory() as found, running_gateway(clock=clock, **chain(found)) as harness:
        found.answer = lambda _: {
            "result": "allow",
            "expires_at": clock.now_ms() / 1000 + 60,
        }
        client = await Client.connect(harness.port, "pump", username="bob", password=b"x")
        await client.expect_answered()
        clock.step_calendar(61_000)
        await client.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)


async def test_an_answer_may_be_remembered() -> None:
    clock = ManualClock()
    async with (
        directory() as found,
        running_gateway(clock=clock, **chain(found, cache_seconds=10)) as harness,
    ):
        found.answer = lambda asked: {
            "result": "allow" if asked["password"] == "secret" else "deny"
        }
        for _ in range(3):
            assert await answer(harness) == OK
        assert len(found.asked) == 1
        assert await answer(harness, password=b"guessed") == REFUSED
        clock.advance(11)
        assert await answer(harness) == OK
        assert len(found.asked) == 3


async def test_a_password_that_is_no_text_is_nobodys() -> None:
    async with directory() as found, running_gateway(**chain(found)) as harness:
        found.answer = lambda _: {"result": "allow"}
        assert await answer(harness, password=b"\xff") == REFUSED
        assert found.asked == []


async def test_guessing_is_slowed() -> None:
    async with (
        directory() as found,
        running_gateway(failed_logins_per_minute=2, **chain(found)) as harness,
    ):
        found.answer = lambda _: {"result": "deny"}
        assert [await answer(harness) for _ in range(3)] == [
            REFUSED,
            REFUSED,
            ConnackReasonCode.CONNECTION_RATE_EXCEEDED,
        ]


async def test_each_listener_may_ask_others(credentials: Path) -> None:
    port = free_port()
    async with directory() as found:
        settings = chain(found) | {"authenticate_by": ()}
        listener = {"kind": "tcp", "port": port, "authenticate_by": ["web"]}
        async with running_gateway(
            credentials_file=credentials, listeners=(listener,), **settings
        ) as harness:
            found.answer = lambda _: {"result": "allow"}
            assert await answer(harness, "bob") == REFUSED
            client = await Client.connect(port, "pump", username="bob", password=b"secret")
            await client.disconnect()
            client = await Client.open(port, 5)
            asked = Connect("c", 5, properties={"authentication_method": "SCRAM-SHA-256"})
            client.send(asked)
            code = (await client.expect(Connack)).reason_code
            assert code is ConnackReasonCode.BAD_AUTHENTICATION_METHOD


async def test_who_goes_is_asked_about_no_more() -> None:
    async with (
        directory() as found,
        running_gateway(**chain(found, timeout_seconds=0.5)) as harness,
    ):
        found.is_silent = True
        client = await Client.open(harness.port, 5)
        client.send(Connect("pump", 5, username="bob", password=b"x"))
        await until(lambda: len(found.asked) == 1)
        client.close()
        await until(lambda: len(harness.gateway.connections) == 0)


async def test_secrets_of_headers_are_sent_and_not_shown() -> None:
    async with directory() as found:
        settings = chain(found, headers={"Authorization": "Bearer s3cret"})
        async with running_gateway(**settings) as harness:
            await answer(harness)
            assert "Authorization: Bearer s3cret" in found.headers[0]
            assert "s3cret" not in repr(harness.gateway.settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"authenticate_by": ["web"]}, "authenticate_by has 'web', expected one of: credentials"),
        ({"authenticate_by": ["credentials"]}, "credentials_file is not set"),
        (
            {"authenticators": {"web": {"url": "https://a.example"}}},
            "authenticators.web is in no authenticate_by",
        ),
        (
            {
                "authenticators": {"web": {"url": "https://a.example"}},
                "authenticate_by": ["web", "web"],
            },
            "names an authenticator twice: web, web",
        ),
        (
            {"authenticators": {"credentials": {"url": "https://a.example"}}},
            "this is the name of credentials_file",
        ),
        (
            {
                "authenticators": {"web": {"url": "http://a.example/who"}},
                "authenticate_by": ["web"],
            },
            "passwords would go to another machine in the clear, expected https",
        ),
        (
            {"listeners": [{"kind": "tcp", "port": 1, "authenticate_by": ["web"]}]},
            "authenticate_by of mqtt://127.0.0.1:1 has 'web'",
        ),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load(GatewaySettings, **settings)


async def test_a_server_brings_rights_along_where_it_is_let(tmp_path: Path) -> None:
    rights = tmp_path / "rights.toml"
    rights.write_text(
        """
        [[rules]]
        effect = "allow"
        actions = ["connect"]
        client_ids = ["*"]
        [[rules]]
        effect = "allow"
        actions = ["publish"]
        topics = ["plants/%{site}/#"]
        """
    )
    more = {"attributes": {"site": "north"}, "rights": [{"actions": ["publish"], "topics": ["x"]}]}
    for brings in (True, False):
        async with (
            directory() as found,
            running_gateway(rights_file=rights, **chain(found, brings_rights=brings)) as harness,
        ):
            found.answer = lambda _: {"result": "allow", **more}
            client = await Client.connect(harness.port, "pump", username="bob", password=b"secret")
            may = harness.connection("pump").rights
            assert may is not None
            for topic_name in ("plants/north/1", "x"):
                assert may.may_publish(topic_name, 0, retain=False) is brings
            assert not may.may_publish("plants/south/1", 0, retain=False)
            await client.disconnect()
            if brings:
                found.answer = lambda _: {"result": "allow", "rights": "all"}
                assert await answer(harness) is not OK
    with pytest.raises(ValueError, match="rights_file is not set"):
        GatewaySettings(**chain(Directory(), brings_rights=True))
