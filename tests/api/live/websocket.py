"""A WebSocket to the application, without a network."""

import asyncio
import json
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from fastapi import FastAPI

PATH = "/api/v1/live/ws"
PATIENCE_SECONDS = 60


class Refused(Exception):  # noqa: N818 - it is what was asked for
    """The connection was closed before it was accepted."""


class Socket:
    """Use it as a context: inside it is open."""

    def __init__(
        self, app: FastAPI, headers: dict[str, str] | None = None, subprotocols: Iterable[str] = ()
    ) -> None:
        self._app = app
        given = {"host": "mqlake", **(headers or {})}
        self._scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "scheme": "ws",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), text.encode()) for name, text in given.items()],
            "client": ("127.0.0.1", 5),
            "subprotocols": list(subprotocols),
        }
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[Any] = asyncio.Queue()
        self.subprotocol: str | None = None

    async def __aenter__(self) -> "Socket":
        self._task = asyncio.create_task(
            self._app(self._scope, self._to_app.get, self._from_app.put)
        )
        await self._to_app.put({"type": "websocket.connect"})
        answer = await self._next()
        if answer["type"] != "websocket.accept":
            await self._task
            raise Refused(answer)
        self.subprotocol = answer.get("subprotocol")
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self._to_app.put({"type": "websocket.disconnect", "code": 1000})
        await self._task

    async def say(self, **what: Any) -> None:
        await self._to_app.put({"type": "websocket.receive", "text": json.dumps(what)})

    async def hear(self) -> list[Any]:
        """Return the events of the next frame."""
        found: list[Any] = json.loads((await self._next())["text"])
        return found

    async def _next(self) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._from_app.get()
