"""Passwords checked off the event loop, for all authenticators of a gateway."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.security.credentials import PasswordVerifier

THREADS: Final = max(1, (os.cpu_count() or 2) // 2)
"""That check passwords; the others are the event loop's and its neighbours'."""

MAX_WAITING_CHECKS: Final = 1_000
"""Some seconds of work; further clients hear that the server is busy."""

MAX_REMEMBERED_LOGINS: Final = 10_000

Result = TypeVar("Result")


class PasswordChecks:
    """Threads that check passwords, and those that were right before.

    A client that comes back is not made to wait, and a storm of them does not cost a core.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
        self._waiting = 0
        # Name -> the verifier that accepted a password, and the password under a key of our own.
        self._remembered: dict[str, tuple[PasswordVerifier, bytes]] = {}
        self._key = secrets.token_bytes(32)

    @property
    def are_too_many(self) -> bool:
        return self._waiting >= MAX_WAITING_CHECKS

    def remembers(self, name: str, password: bytes, verifier: PasswordVerifier) -> bool:
        """Tell whether a verifier has accepted a prepared password before."""
        digest = hmac.digest(self._key, password, "sha256")
        known, remembered = self._remembered.get(name, (None, b""))
        return known == verifier and hmac.compare_digest(remembered, digest)

    def remember(self, name: str, password: bytes, verifier: PasswordVerifier) -> None:
        self._remembered.pop(name, None)
        if len(self._remembered) >= MAX_REMEMBERED_LOGINS:
            del self._remembered[next(iter(self._remembered))]
        digest = hmac.digest(self._key, password, "sha256")
        self._remembered[name] = (verifier, digest)

    def run(self, judge: Callable[[], Result]) -> asyncio.Future[Result]:
        """Have a check done by one of the threads."""

        def done(_: object) -> None:
            self._waiting -= 1

        self._waiting += 1
        checking = asyncio.get_running_loop().run_in_executor(self._pool, judge)
        checking.add_done_callback(done)
        return checking

    def close(self) -> None:
        """Drop passwords that wait to be checked."""
        self._pool.shutdown(wait=False, cancel_futures=True)
