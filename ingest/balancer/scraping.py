"""Prometheus metrics of a node: the two that count, read from the text format."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from mqlake.errors import MqlakeError

_MOST_BYTES: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 65_536


class ScrapeError(MqlakeError):
    """A node does not give its metrics."""


def read_metric(text: str, name: str) -> float | None:
    """Return the sum of all samples of a metric; None when there is none.

    Only lines of that name are read: a page of some thousand lines costs next to nothing.
    """
    total: float | None = None
    begin = text.find(name)
    while begin != -1:
        end = text.find("\n", begin)
        line = text[begin : end if end != -1 else len(text)]
        rest = line[len(name) :]
        if (begin == 0 or text[begin - 1] == "\n") and rest[:1] in (" ", "\t", "{"):
            words = rest.rpartition("}")[2].split()
            try:
                total = (total or 0.0) + float(words[0])
            except (IndexError, ValueError):
                return None
        begin = text.find(name, begin + len(name))
    return total


async def scrape(url: str, timeout_seconds: float) -> str:
    """Return the page of metrics at an `http://` URL.

    Raises:
        ScrapeError: None comes in time.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _get(url)
    except TimeoutError as exc:
        raise ScrapeError(f"{url}: no answer within {timeout_seconds:g} s") from exc
    except (OSError, ValueError) as exc:
        raise ScrapeError(f"{url}: {exc}") from exc


async def _get(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ScrapeError(f"{url}: expected http://host[:port]/path")
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # 1.0: the answer ends with the connection and is not in chunks.
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: text/plain\r\n\r\n".encode()
        )
        answer = bytearray()
        while data := await reader.read(_READ_BYTES):
            answer += data
            if len(answer) > _MOST_BYTES:
                raise ScrapeError(f"{url}: more than {_MOST_BYTES} bytes")
    finally:
        writer.close()
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split()
    if len(status) < 2 or status[1] != b"200":
        raise ScrapeError(f"{url}: answered {head[:60]!r}, expected status 200")
    return body.decode(errors="replace")
