"""Names in paths: a segment is a name, percent-encoded, and may hold slashes and line ends.

Routes are found by the path in plain text, in which `pump%2Fsubscriptions` would be the
subscriptions of `pump`, and a line end at the end would be nothing. So the path that routes are
found by has marks in the place of both, and the convertors, which each parameter of a path has,
give the name back.
"""

from http import HTTPStatus
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from api.web.problems import problem_response

# No name holds U+0000: MQTT has no such strings [MQTT5-1.5.4-2], and the log no such keys.
_MARKS: Final = {"/": "\0s", "\n": "\0n"}
"""Marks for characters that have a meaning in a path or in a regular expression."""


class NameSegment(Convertor[str]):
    """A name that is one segment: `{id:segment}`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return plain(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


class NameSegments(NameSegment):
    """A name that may be several, as topics and client identifiers: `{topic:segments}`."""

    regex = ".*"


register_url_convertor("segment", NameSegment())
register_url_convertor("segments", NameSegments())


class MarkedPath:
    """Middleware between all others and the routes: gives these a path with marks.

    Args:
        app: Has the routes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope["path"] = marked(scope["raw_path"])
            except ValueError as exc:
                answer = problem_response(HTTPStatus.NOT_FOUND, str(exc))
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def marked(raw_path: bytes) -> str:
    """Return the path that routes are found by.

    Raises:
        ValueError: It is no text, or holds U+0000.
    """
    return "/".join(map(_marked, raw_path.split(b"/")))


def plain(path: str) -> str:
    """Return a path, or a part of one, without marks, for people."""
    for character, mark in _MARKS.items():
        path = path.replace(mark, character)
    return path


def _marked(segment: bytes) -> str:
    try:
        text = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as exc:
        raise ValueError(f"expected UTF-8 in the path, got {segment[:100]!r}") from exc
    if "\0" in text:
        raise ValueError(f"expected a path without U+0000, got {segment[:100]!r}")
    for character, mark in _MARKS.items():
        text = text.replace(character, mark)
    return text
