"""A table of users in a real PostgreSQL; what it shares with other kinds is in `test_kinds`."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from ingest.gateway.authentication.outcomes import (
    NEXT,
    WRONG_PASSWORD,
    Accepted,
    Attempt,
    Next,
    Verdict,
)
from ingest.gateway.authentication.passwords import PasswordChecks
from ingest.gateway.authentication.postgres_authenticator import PostgresAuthenticator
from ingest.gateway.authentication.web import NO_ANSWER
from ingest.gateway.settings.authenticators import PostgresAuthenticatorSettings
from mqlake.security.argon2_verifiers import CheckWork, make_argon2_verifier
from tests.ingest.gateway.authentication.kinds import log_in_as_bob, postgres_settings
from tests.rules.runner.postgres import PASSWORD as DATABASE_PASSWORD
from tests.rules.runner.postgres import Postgres, running_postgres

pytestmark = [pytest.mark.programs, pytest.mark.anyio]

PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with running_postgres() as found:
        found.query("CREATE TABLE users (name text, verifier text, roles text[])")
        yield found


@asynccontextmanager
async def asking(server: Postgres, **more: Any) -> AsyncIterator[PostgresAuthenticator]:
    passwords = PasswordChecks()
    link = PostgresAuthenticator("db", postgres_settings(server, **more), passwords)
    try:
        yield link
    finally:
        await link.close()
        passwords.close()


async def ask(link: PostgresAuthenticator, password: str = PASSWORD) -> Verdict | Next:
    return await link.check(Attempt("bob", password.encode(), "c", "", 5))


def set_user(database: Postgres, verifier: object, roles: str = "NULL", count: int = 1) -> None:
    text = "NULL" if verifier is None else f"'{verifier}'"
    rows = ", ".join([f"('bob', {text}, {roles})"] * count)
    database.query(f"TRUNCATE users; INSERT INTO users VALUES {rows}")


async def test_roles_and_argon2_and_changes(database: Postgres) -> None:
    async with asking(database) as link:
        set_user(database, make_argon2_verifier(PASSWORD, CheckWork(8192, 1, 1)), "'{pumps,all}'")
        found = await ask(link)
        assert isinstance(found, Accepted)
        assert found.grants.roles == {"pumps", "all"}
        assert await ask(link, "guess") == WRONG_PASSWORD
        set_user(database, make_argon2_verifier("another", CheckWork(8192, 1, 1)))
        assert await ask(link) == WRONG_PASSWORD  # though it was remembered
        found = await ask(link, "another")
        assert isinstance(found, Accepted)
        assert not found.grants.roles
        database.query("TRUNCATE users")
        assert await ask(link, "another") is NEXT


RIGHTS = '[{"actions": ["publish"], "topics": ["a/#"]}]'


@pytest.mark.parametrize("brings_rights", [False, True])
async def test_rights_and_attributes_count_where_they_are_let(
    database: Postgres, *, brings_rights: bool
) -> None:
    set_user(database, make_argon2_verifier(PASSWORD, CheckWork(8192, 1, 1)))
    query = (
        f"SELECT verifier, '{RIGHTS}' AS rights, '{{\"site\": \"north\"}}'::jsonb AS attributes "
        "FROM users WHERE name = $1"
    )
    async with asking(database, query=query, brings_rights=brings_rights) as link:
        found = await ask(link)
    assert isinstance(found, Accepted)
    assert found.grants.attributes == ({"site": "north"} if brings_rights else {})
    assert [rule.topics for rule in found.grants.rules] == ([("a/#",)] if brings_rights else [])


@pytest.mark.parametrize("rights", ["'no JSON'", "1", "'{}'", "'[[]]'"])
async def test_rights_that_are_none_let_nobody_in(database: Postgres, rights: str) -> None:
    set_user(database, make_argon2_verifier(PASSWORD, CheckWork(8192, 1, 1)))
    query = f"SELECT verifier, {rights} AS rights FROM users WHERE name = $1"
    async with asking(database, query=query, brings_rights=True) as link:
        assert await ask(link) == NO_ANSWER


@pytest.mark.parametrize(
    ("verifier", "roles", "count", "reason"),
    [
        (None, "NULL", 1, "without text in a column verifier"),
        ("plain text", "NULL", 1, "its answer for a user cannot be used: expected SCRAM-SHA-256"),
        ("$argon2id$v=19$m=64,t=3,p=1$" + "A" * 22 + "$" + "A" * 43, "NULL", 1, "m=64 KiB"),
        ("x", "NULL", 2, "several rows for one user"),
    ],
)
async def test_an_answer_that_is_none_lets_nobody_in(
    database: Postgres,
    verifier: str | None,
    roles: str,
    count: int,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_user(database, verifier, roles, count)
    async with asking(database) as link:
        assert await ask(link) == NO_ANSWER
    (record,) = [one for one in caplog.records if "does not answer" in one.message]
    assert reason in record.__dict__["fields"]["reason"]
    assert "plain text" not in record.__dict__["fields"]["reason"]


@pytest.mark.parametrize(
    "more",
    [
        {"query": "SELECT nothing FROM users WHERE name = $1"},
        {"query": "SELECT 1 AS verifier"},
        {"query": "SELECT 1 AS verifier WHERE $1 = 'bob'"},
        {"query": "this is no SQL"},
        {"query": "DELETE FROM users WHERE name = $1 RETURNING verifier"},
        {"query": "SELECT verifier FROM users WHERE name = $1; TRUNCATE users"},
        {"query": "SELECT pg_sleep(60)::text AS verifier WHERE $1 <> ''", "timeout_seconds": 0.2},
        {"password": "wrong"},
        {"database": "none"},
        {"port": 1},
    ],
)
async def test_what_cannot_be_asked_lets_nobody_in(
    database: Postgres, more: dict[str, Any]
) -> None:
    set_user(database, "x")
    async with asking(database, **more) as link:
        assert await ask(link) == NO_ANSWER
        assert await ask(link) == NO_ANSWER
    assert database.query("SELECT count(*) FROM users") == ["1"]


async def test_a_name_is_a_parameter(database: Postgres) -> None:
    set_user(database, "x")
    async with asking(database) as link:
        for name in ("' OR name = 'bob", "bob'; TRUNCATE users; --", "$1", "%", "BOB"):
            assert await link.check(Attempt(name, b"x", "c", "", 5)) is NEXT
    assert database.query("SELECT count(*) FROM users") == ["1"]


async def test_more_clients_than_connections_wait(database: Postgres) -> None:
    set_user(database, make_argon2_verifier(PASSWORD, CheckWork(8192, 1, 1)))
    async with asking(database, max_connections=2) as link:
        found = await asyncio.gather(*(ask(link) for _ in range(50)))
        assert all(isinstance(one, Accepted) for one in found)
    clients = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mqlake'"
    assert int(database.query(clients)[0]) <= 2


async def test_a_server_shows_who_it_is(database: Postgres, tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for name, pem in (
        ("chain.pem", certificate.cert_chain_pems[0]),
        ("key.pem", certificate.private_key_pem),
    ):
        pem.write_to_path(str(database.folder / name))
        (database.folder / name).chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(database.folder / name, "postgres", "postgres")
        setting = {"chain.pem": "ssl_cert_file", "key.pem": "ssl_key_file"}[name]
        database.query(f"ALTER SYSTEM SET {setting} = '{database.folder / name}'")
    database.query("ALTER SYSTEM SET ssl = on")
    database.query("SELECT pg_reload_conf()")
    set_user(database, make_argon2_verifier(PASSWORD, CheckWork(8192, 1, 1)))
    for one in (authority, other):
        trusted = tmp_path / "ca.pem"
        one.cert_pem.write_to_path(str(trusted))
        async with asking(database, tls="verify-full", ca_certificates=trusted) as link:
            found = await ask(link)
            assert isinstance(found, Accepted) if one is authority else found == NO_ANSWER
    database.query("ALTER SYSTEM RESET ALL")
    database.query("SELECT pg_reload_conf()")


async def test_clients_of_a_gateway_log_in_by_it(database: Postgres, tmp_path: Path) -> None:
    set_user(database, make_argon2_verifier(PASSWORD, CheckWork(8192, 1, 1)), "'{pumps}'")
    settings = postgres_settings(database).model_dump() | {"password": DATABASE_PASSWORD}
    await log_in_as_bob(settings, tmp_path)


@pytest.mark.parametrize(
    "more",
    [
        {"host": "db.example.org"},
        {"host": "192.0.2.1", "tls": "require"},
        {"host": "db.example.org", "tls": "verify-full"},
        {"host": "db.example.org", "tls": "prefer", "ca_certificates": "ca.pem"},
    ],
)
def test_a_database_of_another_machine_shows_that_it_is_it(more: dict[str, Any]) -> None:
    known = {"database": "d", "user": "u", "query": "SELECT $1", **more}
    with pytest.raises(ValidationError, match="could say in its place who may log in"):
        PostgresAuthenticatorSettings(**known)
    good = {**known, "tls": "verify-full", "ca_certificates": "ca.pem"}
    assert PostgresAuthenticatorSettings(**good)
