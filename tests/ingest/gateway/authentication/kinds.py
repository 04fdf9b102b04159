"""The kinds of authenticators as their contract tests see them: each knows `ann` alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from pydantic import SecretStr

from ingest.gateway.authentication.chain import AuthenticatorLink
from ingest.gateway.authentication.links import open_link
from ingest.gateway.authentication.outcomes import Attempt
from ingest.gateway.authentication.passwords import PasswordChecks
from ingest.gateway.settings.authenticators import (
    HttpAuthenticatorSettings,
    JwtAuthenticatorSettings,
    LdapAuthenticatorSettings,
    PostgresAuthenticatorSettings,
)
from ingest.protocol.packets import Connack, Connect
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.clock import SystemClock
from mqlake.security.credentials import make_verifier
from tests.ingest.gateway.authentication.signing import (
    AUDIENCE,
    ISSUER,
    SECRET,
    jwk,
    key_set,
    private_key,
    token,
)
from tests.ingest.gateway.authentication.slapd import (
    BASE,
    GROUP,
    SERVICE,
    SERVICE_PASSWORD,
    Slapd,
)
from tests.ingest.gateway.harness import Client, running_gateway
from tests.rules.runner.postgres import PASSWORD, USER, Postgres

BROUGHT: dict[str, dict[str, Any]] = {
    "ann": {
        "roles": ["pumps"],
        "rights": [{"actions": ["publish"], "topics": ["pumps/%u/#"]}],
        "attributes": {"site": "north"},
    },
    "odd": {"rights": [{"effect": "deny", "actions": ["publish"], "topics": ["#"]}]},
    "odder": {"attributes": {"site": "x" * 256}},
}
"""What each kind says of users beside their names; those of the odd ones are no rights."""
NO_CHECKS = PasswordChecks()
"""Without a thread: of kinds that have them checked elsewhere."""
HERE = ("127.0.0.0/8",)


@dataclass(slots=True)
class Peer:
    """A web server on this machine."""

    port: int = 0
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[None] | None] = field(default_factory=set)

    def answer(self, body: bytes) -> bytes:
        """Answer with a key set, or about a client."""
        if not body:
            return key_set(jwk(private_key("ES256"), kid="1"))
        asked = json.loads(body)
        brought = BROUGHT.get(asked["username"])
        right = asked["password"] == "open sesame"
        if brought is None or not right:
            return json.dumps({"result": "next" if brought is None else "deny"}).encode()
        return json.dumps({"result": "allow", **brought}).encode()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for task in filter(None, self.tasks):
            task.cancel()
        await asyncio.gather(*filter(None, self.tasks), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = self.answer(await reader.readexactly(int(size or 0)))
                writer.write(b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@dataclass(slots=True)
class ProcessPeer:
    """A program on this machine."""

    program: Postgres | Slapd

    async def start(self) -> None:
        await asyncio.to_thread(self.program.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self.program.stop)


@dataclass(slots=True)
class Kind:
    """One authenticator with whom it asks.

    Attributes:
        link: The authenticator.
        good: A password of `ann`.
        bad: Passwords that look like one.
        secrets: That nobody may read in a log or an error.
        peer: Who is asked; None: nobody.
        names_users: Whether the user name of CONNECT says who somebody is.
        odd: Names and passwords of who has rights that are none.
    """

    link: AuthenticatorLink
    good: bytes
    bad: tuple[bytes, ...]
    secrets: tuple[str, ...]
    peer: Peer | ProcessPeer | None
    names_users: bool = True
    odd: tuple[tuple[str, bytes], ...] = (("odd", b"open sesame"), ("odder", b"open sesame"))

    async def ask(self, username: str | None, password: bytes | None) -> Any:
        return await self.link.check(Attempt(username, password, "c", "127.0.0.1", 5))


@asynccontextmanager
async def http(_: Path, __: object) -> AsyncIterator[Kind]:
    peer = Peer()
    await peer.start()
    settings = HttpAuthenticatorSettings(
        url=f"http://127.0.0.1:{peer.port}/who",
        allowed_networks=HERE,  # type: ignore[arg-type]
        headers={"Authorization": "Bearer s3cret"},  # type: ignore[dict-item]
        brings_rights=True,
    )
    link = open_link("it", settings, SystemClock(), NO_CHECKS)
    try:
        yield Kind(link, b"open sesame", (b"open", b"\xff"), ("open sesame", "s3cret"), peer)
    finally:
        await link.close()
        await peer.stop()


CLAIMS: dict[str, Any] = {
    "roles_claim": "roles",
    "rights_claim": "rights",
    "attributes_claim": "attributes",
}


@asynccontextmanager
async def jwt_by_secret(folder: Path, _: object) -> AsyncIterator[Kind]:
    path = folder / "secrets"
    path.write_text(SECRET)
    path.chmod(0o600)
    settings = JwtAuthenticatorSettings(
        kind="jwt",
        algorithms=("HS256",),
        secret_file=path,
        issuer=ISSUER,
        audience=AUDIENCE,
        **CLAIMS,
    )
    link = open_link("it", settings, SystemClock(), NO_CHECKS)
    good = token(sub="ann", **BROUGHT["ann"])
    bad = (token("another secret of 32 bytes at least", sub="ann"), token(sub="ann", exp=1))
    odd = tuple((name, token(sub="ann", **BROUGHT[name])) for name in ("odd", "odder"))
    yield Kind(link, good, bad, (SECRET, good.decode()), None, names_users=False, odd=odd)
    await link.close()


@asynccontextmanager
async def jwt_by_url(_: Path, __: object) -> AsyncIterator[Kind]:
    peer = Peer()
    await peer.start()
    settings = JwtAuthenticatorSettings(
        kind="jwt",
        algorithms=("ES256",),
        jwks_url=f"http://127.0.0.1:{peer.port}/keys",
        allowed_networks=HERE,  # type: ignore[arg-type]
        issuer=ISSUER,
        audience=AUDIENCE,
        keep_seconds=0,
        refetch_seconds=1,
        cache_seconds=1,
        **CLAIMS,
    )
    link = open_link("it", settings, SystemClock(), NO_CHECKS)
    by = private_key("ES256"), "ES256", "1"
    good = token(*by, sub="ann", **BROUGHT["ann"])
    odd = tuple((name, token(*by, sub="ann", **BROUGHT[name])) for name in ("odd", "odder"))
    bad = (
        token(private_key("ES256", 1), "ES256", "1", sub="ann"),
        token(private_key("ES256"), "ES256", "2", sub="ann"),
        token(sub="ann"),
    )
    try:
        yield Kind(link, good, bad, (good.decode(),), peer, names_users=False, odd=odd)
    finally:
        await link.close()
        await peer.stop()


@asynccontextmanager
async def postgresql(_: Path, databases: Callable[[str], Any]) -> AsyncIterator[Kind]:
    database: Postgres = databases("database")
    verifier = str(make_verifier("open sesame", iterations=4096))
    database.query(
        "DROP TABLE IF EXISTS users; CREATE TABLE users "
        "(name text, verifier text, roles text[], rights jsonb, attributes json)"
    )
    for name, brought in BROUGHT.items():
        roles = "'{pumps}'" if "roles" in brought else "NULL"
        rights, attributes = (
            f"'{json.dumps(brought[one])}'" if one in brought else "NULL"
            for one in ("rights", "attributes")
        )
        database.query(
            f"INSERT INTO users VALUES ('{name}', '{verifier}', {roles}, {rights}, {attributes})"
        )
    passwords = PasswordChecks()
    query = "SELECT verifier, roles, rights, attributes FROM users WHERE name = $1"
    settings = postgres_settings(database, query=query, brings_rights=True)
    link = open_link("it", settings, SystemClock(), passwords)
    bad = (b"open", b"\xff", b"open sesame\0")
    secrets = ("open sesame", PASSWORD, verifier)
    yield Kind(link, b"open sesame", bad, secrets, ProcessPeer(database))
    await link.close()
    passwords.close()


def postgres_settings(server: Postgres, **more: Any) -> PostgresAuthenticatorSettings:
    known: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": server.port,
        "database": "postgres",
        "user": USER,
        "password": SecretStr(PASSWORD),
        "query": "SELECT verifier, roles FROM users WHERE name = $1",
        "tls": "disable",
    }
    return PostgresAuthenticatorSettings(**(known | more))


@asynccontextmanager
async def ldap(folder: Path, directories: Callable[[str], Any]) -> AsyncIterator[Kind]:
    directory: Slapd = directories("directory")
    authority: trustme.CA = directories("authority")
    settings = ldap_settings(directory, authority, folder, roles={"pumps": GROUP})
    link = open_link("it", settings, SystemClock(), NO_CHECKS)
    bad = (b"open", b"\xff", b"open sesame\0")
    secrets = ("open sesame", SERVICE_PASSWORD)
    yield Kind(link, b"open sesame", bad, secrets, ProcessPeer(directory))
    await link.close()


def ldap_settings(
    directory: Slapd, authority: trustme.CA, folder: Path, **more: Any
) -> LdapAuthenticatorSettings:
    trusted = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    known: dict[str, Any] = {
        "kind": "ldap",
        "url": f"ldaps://127.0.0.1:{directory.tls_port}",
        "ca_certificates": trusted,
        "bind_name": SERVICE,
        "password": SecretStr(SERVICE_PASSWORD),
        "base": f"ou=people,{BASE}",
        "user_class": "inetOrgPerson",
        "roles_attribute": "seeAlso",
        "roles": {"operators": GROUP.upper(), "auditors": f"cn=auditors,{BASE}"},
        "rights_attribute": "description",
        "attributes": {"site": "l"},
    }
    return LdapAuthenticatorSettings(**(known | more))


RULES = """
[roles]
pumps = []

[[rules]]
effect = "allow"
actions = ["connect"]
roles = ["pumps"]
"""


async def log_in_as_bob(settings: dict[str, Any], folder: Path, name: str = "bob") -> None:
    """Log in at a gateway that asks one authenticator, with the password that all have here.

    Only who has the role `pumps` may come in.
    """
    rights = folder / "rights.toml"
    rights.write_text(RULES)
    chain: dict[str, Any] = {"authenticators": {"it": settings}, "authenticate_by": ["it"]}
    async with running_gateway(rights_file=rights, **chain) as harness:
        client = await Client.connect(harness.port, "c", username=name, password=b"open sesame")
        session = harness.gateway.sessions.get("default", "c")
        assert (session.username, session.principal) == (name, name)
        await client.disconnect()
        for user, password in ((name, b"guess"), ("nobody", b"open sesame")):
            client = await Client.open(harness.port, 5)
            client.send(Connect("c", 5, username=user, password=password))
            code = (await client.expect(Connack)).reason_code
            assert code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD


KINDS = {
    "http": http,
    "jwt by secret": jwt_by_secret,
    "jwt by url": jwt_by_url,
    "postgresql": postgresql,
    "ldap": ldap,
}
