"""A real directory that knows users; what it shares with other kinds is in `test_kinds`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from ingest.gateway.authentication.ldap_authenticator import LdapAuthenticator
from ingest.gateway.authentication.outcomes import (
    NEXT,
    WRONG_PASSWORD,
    Accepted,
    Attempt,
    Next,
    Verdict,
)
from ingest.gateway.authentication.web import NO_ANSWER
from ingest.gateway.settings.authenticators import LdapAuthenticatorSettings
from mqlake.rights.grants import NO_GRANTS
from tests.ingest.gateway.authentication.kinds import ldap_settings, log_in_as_bob
from tests.ingest.gateway.authentication.slapd import (
    BASE,
    GROUP,
    SERVICE,
    SERVICE_PASSWORD,
    Slapd,
    running_slapd,
)

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def directory(authority: trustme.CA) -> Iterator[Slapd]:
    with running_slapd(authority) as found:
        yield found


@pytest.fixture
def make(directory: Slapd, authority: trustme.CA, tmp_path: Path) -> Any:
    return lambda **more: LdapAuthenticator(
        "people", ldap_settings(directory, authority, tmp_path, **more)
    )


async def ask(
    link: LdapAuthenticator, name: str = "ann", password: bytes = b"open sesame"
) -> Verdict | Next:
    return await link.check(Attempt(name, password, "c", "", 5))


async def test_groups_are_roles(make: Any) -> None:
    found = await ask(make())
    assert isinstance(found, Accepted)
    assert found.grants.roles == {"operators"}
    found = await ask(make(roles={}))
    assert isinstance(found, Accepted)
    assert not found.grants.roles


async def test_an_attribute_has_one_value_and_a_rule_is_json(make: Any) -> None:
    assert await ask(make(), "two") == NO_ANSWER
    assert await ask(make(), "words") == NO_ANSWER
    found = await ask(make(attributes={}, rights_attribute=None), "two")
    assert isinstance(found, Accepted)
    assert found.grants == NO_GRANTS


async def test_a_name_is_as_the_directory_writes_it(make: Any) -> None:
    for name in ("ANN", "Ann"):
        found = await ask(make(), name)
        assert isinstance(found, Accepted)
        assert found.username == "ann"
    found = await ask(make(), "more")
    assert isinstance(found, Accepted)
    assert found.username == "more"
    assert await ask(make(), "MORE") == NO_ANSWER  # which of its names is it?


async def test_an_empty_password_is_no_login(make: Any) -> None:
    for name in ("ann", "nopass", "nobody"):
        assert await ask(make(), name, b"") == WRONG_PASSWORD


async def test_an_account_without_a_password_is_closed(make: Any) -> None:
    assert await ask(make(), "nopass") == WRONG_PASSWORD


@pytest.mark.parametrize("name", ["*", "a*", "ann)(uid=*", "ann\\00", "uid=ann", SERVICE])
async def test_a_name_is_only_text(make: Any, name: str) -> None:
    assert await ask(make(), name) is NEXT


async def test_only_those_below_the_base_and_of_the_class_are_users(make: Any) -> None:
    assert await ask(make(base=f"ou=nothing,{BASE}")) == NO_ANSWER
    assert await ask(make(user_class="device")) is NEXT
    assert await ask(make(user_attribute="cn", user_class=None), "mqlake") is NEXT


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"password": "wrong"}, "the bind as bind_name with the result 49"),
        ({"bind_name": None, "password": None}, "the search with the result 50"),
        ({"url": "ldaps://127.0.0.1:1"}, "no answer"),
        ({"password": None, "password_file": Path("/nowhere")}, "No such file"),
    ],
)
async def test_what_cannot_be_asked_lets_nobody_in(
    make: Any, more: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    link = make(**more)
    assert await ask(link) == NO_ANSWER
    assert await ask(link) == NO_ANSWER
    (record,) = [one for one in caplog.records if "does not answer" in one.message]
    assert reason in record.__dict__["fields"]["reason"]


async def test_two_entries_are_nobody(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert await ask(make(), "twin") == NO_ANSWER
    (record,) = [one for one in caplog.records if "does not answer" in one.message]
    assert "several entries" in record.__dict__["fields"]["reason"]


async def test_a_directory_shows_who_it_is(make: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    assert await ask(make(ca_certificates=other)) == NO_ANSWER


async def test_more_clients_than_connections_wait(make: Any) -> None:
    link = make(max_connections=2)
    found = await asyncio.gather(*(ask(link) for _ in range(30)))
    assert all(isinstance(one, Accepted) for one in found)


async def test_clients_of_a_gateway_log_in_by_it(
    directory: Slapd, authority: trustme.CA, tmp_path: Path
) -> None:
    roles = {"pumps": GROUP}
    found = ldap_settings(directory, authority, tmp_path, roles=roles).model_dump()
    await log_in_as_bob(found | {"password": SERVICE_PASSWORD}, tmp_path, name="ann")


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
async def test_a_directory_that_says_nothing_is_not_waited_for(
    make: Any, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with saying() as port:
        assert await ask(make(url=f"{scheme}://127.0.0.1:{port}", timeout_seconds=0.1)) == NO_ANSWER
    (record,) = [one for one in caplog.records if "does not answer" in one.message]
    assert record.__dict__["fields"]["reason"] == "no answer within 0.1 s"


@asynccontextmanager
async def saying(*answers: bytes) -> AsyncIterator[int]:
    """Serve somebody who says the same to everybody, or nothing; yields the port."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        for answer in answers:
            await reader.read(1000)
            writer.write(answer)
        if not answers:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.gather(*filter(None, serving), return_exceptions=True)


BOUND = bytes.fromhex("300c02010161070a010004000400")


@pytest.mark.parametrize(
    "answers",
    [
        (b"",),
        (b"HTTP/1.1 200 OK\r\n",),
        (BOUND[:5],),
        (BOUND.replace(b"\x02\x01\x01", b"\x02\x01\x07"),),  # to another question
        (bytes.fromhex("300c02010078070a013404000400"),),  # it hangs up
        (BOUND, BOUND),
        (BOUND, bytes.fromhex("30090201026404040030 00".replace(" ", "")) * 4),
        (bytes.fromhex("3084ffffffff"),),
    ],
)
async def test_answers_that_are_none_let_nobody_in(make: Any, answers: tuple[bytes, ...]) -> None:
    async with saying(*answers) as port:
        assert await ask(make(url=f"ldap://127.0.0.1:{port}")) == NO_ANSWER


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"url": "ldap://ldap.example.org"}, "in the clear, expected ldaps"),
        ({"url": "http://ldap.example.org"}, "url"),
        ({"bind_name": "cn=a"}, "bind_name needs either password or password_file"),
        ({"password": "x"}, "bind_name needs either"),
        ({"bind_name": "cn=a", "password": ""}, "password is empty"),
        ({"user_attribute": "uid=*"}, "user_attribute"),
        ({"roles": {"*": "cn=a"}}, "roles"),
    ],
)
def test_settings_that_cannot_be_meant(more: dict[str, Any], reason: str) -> None:
    known = {"kind": "ldap", "url": "ldaps://ldap.example.org", "base": "dc=x", **more}
    with pytest.raises(ValidationError) as failure:
        LdapAuthenticatorSettings(**known)
    assert reason in str(failure.value)


async def test_a_connection_in_the_clear_goes_on_in_tls(
    make: Any, directory: Slapd, tmp_path: Path
) -> None:
    plain = f"ldap://127.0.0.1:{directory.port}"
    assert isinstance(await ask(make(url=plain, start_tls=True)), Accepted)
    assert await ask(make(url=plain, start_tls=True), password=b"guess") == WRONG_PASSWORD
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    # A directory of somebody else's certificate is not asked.
    assert await ask(make(url=plain, start_tls=True, ca_certificates=stranger)) == NO_ANSWER


async def test_a_directory_that_starts_no_tls_is_told_no_password(make: Any) -> None:
    """Nor one that answers in the clear what TLS was to bring."""
    refusal = bytes.fromhex("300c02010178070a010204000400")
    success = bytes.fromhex("300c02010178070a010004000400")
    bound = bytes.fromhex("300c02010261070a010004000400")
    for said in (refusal, success + bound * 3, b"HTTP/1.1 400\r\n\r\n"):
        heard = bytearray()

        async def serve(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            said: bytes = said,
            heard: bytearray = heard,
        ) -> None:
            heard += await reader.read(1000)
            writer.write(said)
            while data := await reader.read(1000):
                heard += data
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            link = make(url=f"ldap://127.0.0.1:{port}", start_tls=True, timeout_seconds=1.0)
            assert await ask(link) == NO_ANSWER
        assert b"1.3.6.1.4.1.1466.20037" in heard
        assert b"sesame" not in heard
        assert SERVICE_PASSWORD.encode() not in heard


def test_start_tls_is_for_what_begins_in_the_clear() -> None:
    fields: Any = {"kind": "ldap", "base": BASE}
    found = LdapAuthenticatorSettings(url="ldap://ldap.example.org", start_tls=True, **fields)
    assert (found.port, found.is_tls) == (389, False)
    with pytest.raises(ValidationError, match="with start_tls expected ldap://"):
        LdapAuthenticatorSettings(url="ldaps://ldap.example.org", start_tls=True, **fields)
