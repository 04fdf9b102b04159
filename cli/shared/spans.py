"""Spans of time on the command line."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}
_SPAN: Final = re.compile(r"(\d{1,5})([hdw])")


def time_after(option: str, span: str | None) -> str | None:
    """Return the time so long from now, in ISO 8601; None without a span.

    Raises:
        click.UsageError: It is no span; names the option.
    """
    if span is None:
        return None
    found = _SPAN.fullmatch(span)
    if found is None:
        raise click.UsageError(f"{option} {span}: expected a number and h, d or w")
    return (datetime.now(UTC) + timedelta(**{_UNITS[found[2]]: int(found[1])})).isoformat()
