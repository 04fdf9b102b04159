"""How long a web server wants to be left alone, as the header `Retry-After` of its answer says."""

from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

MAX_RETRY_AFTER_SECONDS: Final = 86_400.0
"""A server that asks to be left alone for longer is asked again then."""


def retry_after(headers: Iterable[tuple[bytes, bytes]], now_ms: int) -> float:
    """Return how many seconds the server wants to be left alone; 0 when it does not say.

    A number of seconds, or a date, which is of the server's own clock (RFC 9110, 10.2.3).

    Args:
        headers: Headers of the answer.
        now_ms: Time here, UTC epoch, for servers that do not say theirs.
    """
    given = {name.lower(): value.strip() for name, value in headers}
    asked = given.get(b"retry-after", b"")
    if asked.isdigit():
        seconds = float(asked)
    elif (until := _date(asked)) is not None:
        now = _date(given.get(b"date", b""))
        seconds = until.timestamp() - (now_ms / 1000 if now is None else now.timestamp())
    else:
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _date(text: bytes) -> datetime | None:
    """Read a date of HTTP, in any of its three forms (RFC 9110, 5.6.7)."""
    try:
        found = parsedate_to_datetime(text.decode("ascii"))
    except (ValueError, OverflowError):  # the other one for numbers that are no C integers
        return None
    # One of the forms names no zone: all are UTC.
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
