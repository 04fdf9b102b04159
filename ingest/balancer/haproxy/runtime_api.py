"""The Runtime API of one HAProxy: a connection for each command, as the manual advises programs."""

from __future__ import annotations

import asyncio
from typing import Final

from mqlake.errors import MqlakeError

ANSWER_SECONDS: Final = 5.0
_MOST_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 65_536


class ProxyError(MqlakeError):
    """A proxy did not answer, or not as it should."""


class RuntimeApi:
    """Sends commands.

    Args:
        place: Unix socket, or host:port.
        timeout_seconds: For connection, command and answer together.
    """

    def __init__(self, place: str, timeout_seconds: float = ANSWER_SECONDS) -> None:
        self.place = place
        self._timeout_seconds = timeout_seconds

    async def ask(self, command: str) -> str:
        """Return the answer to a command, or to several with `;` between them.

        Raises:
            ProxyError: None came.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._ask(command)
        except TimeoutError as exc:
            raise ProxyError(
                f"no answer from {self.place} within {self._timeout_seconds:g} s"
            ) from exc
        except (OSError, ValueError) as exc:
            raise ProxyError(f"{self.place}: {exc}") from exc

    async def _ask(self, command: str) -> str:
        if "/" in self.place:
            reader, writer = await asyncio.open_unix_connection(self.place)
        else:
            host, _, port = self.place.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            writer.write(command.encode() + b"\n")
            await writer.drain()
            answer = bytearray()
            while data := await reader.read(_READ_BYTES):
                answer += data
                if len(answer) > _MOST_BYTES:
                    raise ProxyError(f"{self.place}: an answer of more than {_MOST_BYTES} bytes")
            return answer.decode(errors="replace")
        finally:
            writer.close()
