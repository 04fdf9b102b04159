"""Sources of the keys that verify tokens: a file, or a web server that changes them."""

from __future__ import annotations

import asyncio
import math
import os
from typing import TYPE_CHECKING, Final, Protocol

from ingest.gateway.authentication.tokens import (
    KeysUnusable,
    VerificationKey,
    read_key_set,
    read_public_keys,
    read_secrets,
)
from ingest.gateway.authentication.web import Answering, NoAnswer, WebServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ingest.gateway.settings.authenticators import JwtAuthenticatorSettings
    from mqlake.clock import Clock

MAX_KEY_SET_BYTES: Final = 256 * 1024

_Keys = tuple[VerificationKey, ...]


class Keys(Protocol):
    """Implemented by `KeyFile` and `KeySet`."""

    async def of(self, kid: str | None) -> _Keys:
        """Return the keys that may have signed a token.

        Args:
            kid: By which it says it is signed, if it says so.

        Raises:
            NoAnswer: This is unknown now.
        """
        ...

    async def reload(self) -> None:
        """Read keys again that change only when an operator asks for it.

        Raises:
            KeysUnusable: It cannot be used; the keys stay as they were.
        """
        ...

    async def close(self) -> None: ...


class KeyFile:
    """Keys of a file.

    Args:
        path: File of keys.
        read: Makes keys of its content.
        is_secret: Whether only its owner may read it.

    Raises:
        KeysUnusable: It cannot be used.
    """

    def __init__(self, path: Path, read: Callable[[bytes], _Keys], *, is_secret: bool) -> None:
        self._path = path
        self._read_keys = read
        self._is_secret = is_secret
        self._keys = self._read()

    async def of(self, kid: str | None) -> _Keys:
        del kid  # keys of a file have none
        return self._keys

    async def reload(self) -> None:
        self._keys = await asyncio.to_thread(self._read)

    async def close(self) -> None:
        """Nothing is under way."""

    def _read(self) -> _Keys:
        path, denied = self._path, 0o077 if self._is_secret else 0o022
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                text = file.read(MAX_KEY_SET_BYTES + 1)
        except OSError as exc:
            raise KeysUnusable(f"key file {path}: {exc.strerror}") from exc
        if mode & denied:
            wanted = "600" if self._is_secret else "go-w"
            raise KeysUnusable(
                f"key file {path} is open to others (mode {mode:04o}): run chmod {wanted} {path}"
            )
        if len(text) > MAX_KEY_SET_BYTES:
            raise KeysUnusable(f"key file {path} has more than {MAX_KEY_SET_BYTES} bytes")
        try:
            return self._read_keys(text)
        except KeysUnusable as exc:
            raise KeysUnusable(f"key file {path}: {exc}") from exc


class KeySet:
    """Keys of a web server (JWKS), fetched when they are asked for.

    They are fetched again when they are older than `cache_seconds`, and for a key that is not among
    them; not sooner than `refetch_seconds` after the last time in that case and after a failure, so
    that made-up names of keys, or a server that is away, cost little. While the server
    does not answer the keys count on, for `keep_seconds`.

    Args:
        name: Name of the authenticator.
        settings: Address and bounds of the server.
        clock: Measures how long they count.
    """

    def __init__(self, name: str, settings: JwtAuthenticatorSettings, clock: Clock) -> None:
        assert settings.jwks_url is not None
        self._settings = settings
        self._clock = clock
        self._server = WebServer(name, settings.jwks_url, settings, max_requests=1)
        self._answering = Answering(name)
        self._keys: _Keys = ()
        self._fetched_at = self._tried_at = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def of(self, kid: str | None) -> _Keys:
        age = self._clock.monotonic() - self._fetched_at
        if age >= self._settings.keep_seconds:
            self._keys = ()
        if not self._keys or age >= self._settings.cache_seconds or not self._with(kid):
            await self._renew()
        found = self._with(kid)
        if not found and self._answering.is_silent:
            raise NoAnswer("the key is unknown, and no keys can be fetched")
        return found

    async def reload(self) -> None:
        """They are renewed all the time."""

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        await self._server.close()

    def _with(self, kid: str | None) -> _Keys:
        return tuple(key for key in self._keys if kid is None or key.kid == kid)

    async def _renew(self) -> None:
        """Fetch the keys, once for all callers meanwhile; nothing if it is too soon."""
        if self._fetching is None:
            if self._clock.monotonic() - self._tried_at < self._settings.refetch_seconds:
                return
            self._tried_at = self._clock.monotonic()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        if self._keys and self._answering.is_silent:
            return  # they count on: no client waits for a server that is away
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            keys = read_key_set(await self._server.ask("GET", None, MAX_KEY_SET_BYTES))
        except (NoAnswer, KeysUnusable) as exc:
            self._answering.note_silence(str(exc))
        else:
            self._keys, self._fetched_at = keys, self._clock.monotonic()
            self._answering.note_answer()
        finally:
            self._fetching = None


def open_keys(name: str, settings: JwtAuthenticatorSettings, clock: Clock) -> Keys:
    """Return where the keys of an authenticator are.

    Raises:
        KeysUnusable: A file cannot be used.
    """
    if settings.secret_file is not None:
        algorithms = settings.algorithms
        return KeyFile(
            settings.secret_file, lambda text: read_secrets(text, algorithms), is_secret=True
        )
    if settings.public_key_file is not None:
        return KeyFile(settings.public_key_file, read_public_keys, is_secret=False)
    return KeySet(name, settings, clock)
