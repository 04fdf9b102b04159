"""A Unix socket by which others ask a control plane: a line of JSON each way."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from mqlake.errors import MqlakeError, OperationalError
from mqlake.processes.control_socket import ANSWER_SECONDS, connect

if TYPE_CHECKING:
    from pathlib import Path

    from ingest.balancer.control_plane import ControlPlane

_MOST_BYTES: Final = 64 * 1024


class ControlSocket:
    """Answers clients that the file's mode lets in."""

    def __init__(self, path: Path, plane: ControlPlane) -> None:
        self._path = path
        self._plane = plane
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen.

        Raises:
            OperationalError: Another control plane listens there, or it cannot be opened.
        """
        if await asyncio.to_thread(_answers, self._path):
            raise OperationalError(f"another balancer listens at {self._path}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(
                self._serve, self._path, limit=_MOST_BYTES
            )
            self._path.chmod(0o600)
        except OSError as exc:
            raise OperationalError(f"control socket {self._path}: {exc}") from exc

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._answer(await reader.readline())
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # the client is gone
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            question = json.loads(line)
            action = question["action"]
            if action == "status":
                return self._plane.describe()
            name = str(question["node"])
            if action == "drain":
                rate = float(question["connections_per_second"])
                problem = await self._plane.drain(name, rate)
            elif action == "undrain":
                problem = await self._plane.undrain(name)
            else:
                problem = f"there is no action {action!r}"
        except (ValueError, KeyError, TypeError) as exc:
            problem = f"question is malformed: {exc!r}"
        except MqlakeError as exc:
            problem = str(exc)
        return {"problem": problem} if problem else {}


def _answers(path: Path) -> bool:
    try:
        connect(path, 1.0).close()
    except OSError:
        return False
    return True
