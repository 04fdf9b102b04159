"""Keys of files and of a web server: fetched, renewed, kept while it is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.authentication.keys import KeyFile, KeySet
from ingest.gateway.authentication.tokens import KeysUnusable, read_public_keys, read_secrets
from ingest.gateway.authentication.web import NoAnswer
from ingest.gateway.settings.authenticators import JwtAuthenticatorSettings
from mqlake.clock import ManualClock
from tests.ingest.gateway.authentication.signing import (
    AUDIENCE,
    ISSUER,
    jwk,
    key_set,
    private_key,
    public_pem,
)

pytestmark = pytest.mark.anyio


class KeyServer:
    """A web server that has a key set."""

    def __init__(self) -> None:
        self.body = key_set()
        self.status = 200
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_asked = asyncio.Event()
        self.serving: set[asyncio.Task[None] | None] = set()

    def has(self, *kids: str) -> None:
        self.body = key_set(*(jwk(private_key("RS"), kid=kid) for kid in kids))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.current_task())
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                self.is_asked.set()
                await self.may_answer.wait()
                head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n"
                writer.write(head % (self.status, len(self.body)) + self.body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def end(self) -> None:
        self.may_answer.set()
        await asyncio.gather(*filter(None, self.serving))


@asynccontextmanager
async def key_server(clock: ManualClock, **more: Any) -> AsyncIterator[tuple[KeyServer, KeySet]]:
    served = KeyServer()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    known: dict[str, Any] = {
        "algorithms": ["RS256"],
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "allowed_networks": ["127.0.0.0/8"],
        "jwks_url": f"http://127.0.0.1:{port}/keys",
        "cache_seconds": 300,
        "refetch_seconds": 30,
        "keep_seconds": 3600,
    }
    keys = KeySet("tokens", JwtAuthenticatorSettings(kind="jwt", **(known | more)), clock)
    try:
        yield served, keys
    finally:
        await keys.close()
        server.close()
        await served.end()


async def kids(keys: KeySet, kid: str | None = None) -> list[str | None]:
    return [key.kid for key in await keys.of(kid)]


async def test_keys_are_fetched_once_for_all_who_wait() -> None:
    async with key_server(ManualClock()) as (served, keys):
        served.has("1", "2")
        found = await asyncio.gather(*(kids(keys, "1") for _ in range(20)))
        assert found == [["1"]] * 20
        assert await kids(keys) == ["1", "2"]
        assert served.asked == 1


async def test_keys_are_fetched_anew_when_they_are_old() -> None:
    clock = ManualClock()
    async with key_server(clock) as (served, keys):
        served.has("1")
        assert await kids(keys, "1") == ["1"]
        served.has("2")
        clock.advance(299)
        assert await kids(keys, "1") == ["1"]
        clock.advance(1)
        assert await kids(keys, "1") == []  # it has been taken out of the set
        assert await kids(keys, "2") == ["2"]
        assert served.asked == 2


async def test_an_unknown_key_is_looked_for_once_in_a_while() -> None:
    clock = ManualClock()
    async with key_server(clock) as (served, keys):
        served.has("1")
        assert await kids(keys, "1") == ["1"]
        served.has("1", "2")
        assert await kids(keys, "2") == []
        assert served.asked == 1
        clock.advance(30)
        assert await kids(keys, "2") == ["2"]
        for number in range(100):
            assert await kids(keys, f"made up {number}") == []
        assert served.asked == 2


@pytest.mark.parametrize("trouble", ["status", "body", "large"])
async def test_keys_count_on_while_the_server_is_away(
    trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with key_server(clock) as (served, keys):
        served.has("1")
        assert await kids(keys, "1") == ["1"]
        good = served.body
        served.status = 503 if trouble == "status" else 200
        served.body = {"status": good, "body": b"<html>", "large": b" " * 300_000}[trouble]
        clock.advance(300)
        assert await kids(keys, "1") == ["1"]
        with pytest.raises(NoAnswer):
            await kids(keys, "2")
        assert served.asked == 2
        assert caplog.messages == ["an authenticator does not answer"]
        clock.advance(3600 - 300)
        with pytest.raises(NoAnswer):
            await kids(keys, "1")
        served.status, served.body = 200, good
        clock.advance(30)
        assert await kids(keys, "1") == ["1"]


async def test_nobody_waits_for_a_server_that_is_away() -> None:
    clock = ManualClock()
    async with key_server(clock) as (served, keys):
        served.has("1")
        assert await kids(keys, "1") == ["1"]
        served.status = 500
        clock.advance(300)
        assert await kids(keys, "1") == ["1"]
        clock.advance(30)
        served.may_answer.clear()
        assert await kids(keys, "1") == ["1"]


async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async with key_server(ManualClock(), timeout_seconds=0.05) as (served, keys):
        served.may_answer.clear()
        with pytest.raises(NoAnswer):
            await kids(keys, "1")


async def test_who_goes_leaves_the_others_their_keys() -> None:
    async with key_server(ManualClock()) as (served, keys):
        served.has("1")
        served.may_answer.clear()
        first = asyncio.ensure_future(kids(keys, "1"))
        second = asyncio.ensure_future(kids(keys, "1"))
        await served.is_asked.wait()
        first.cancel()
        served.may_answer.set()
        assert await second == ["1"]


async def test_an_internal_address_is_not_asked() -> None:
    async with key_server(ManualClock(), allowed_networks=[]) as (served, keys):
        served.has("1")
        with pytest.raises(NoAnswer):
            await kids(keys, "1")
        assert served.asked == 0


async def test_a_file_is_read_again_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(public_pem(private_key("RS")))
    path.chmod(0o644)
    keys = KeyFile(path, read_public_keys, is_secret=False)
    path.write_bytes(public_pem(private_key("RS")) + public_pem(private_key("ES256")))
    await keys.reload()
    assert len(await keys.of(None)) == 2
    path.write_text("nothing")
    with pytest.raises(KeysUnusable, match=r"keys\.pem: 0 usable keys"):
        await keys.reload()
    assert len(await keys.of("1")) == 2


def test_files_that_others_may_use_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("x" * 64)
    path.chmod(0o640)
    with pytest.raises(KeysUnusable, match=f"run chmod 600 {path}"):
        KeyFile(path, lambda text: read_secrets(text, ["HS256"]), is_secret=True)
    path.chmod(0o666)
    with pytest.raises(KeysUnusable, match=f"run chmod go-w {path}"):
        KeyFile(path, read_public_keys, is_secret=False)
    with pytest.raises(KeysUnusable, match="No such file"):
        KeyFile(tmp_path / "none", read_public_keys, is_secret=False)
