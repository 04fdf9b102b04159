"""Lists for people."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click


def print_list(
    found: Sequence[dict[str, Any]],
    titles: Sequence[str],
    row: Callable[[dict[str, Any]], Sequence[str]],
    *,
    as_json: bool,
) -> None:
    """Print what a list of the API has, as JSON or in rows."""
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        print_table(titles, map(row, found))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their titles, each column as wide as its content.

    Clients choose their names: characters that move a terminal's cursor are shown as escapes.
    """
    lines = [titles, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo(padded.rstrip())


def printable(text: str) -> str:
    """Return a foreign text without codes that would move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def tell_complete(until: str | None) -> None:
    """Say on standard error up to when tables have all that was accepted; None: not known."""
    told = f"complete until {until}" if until else "it is not known up to when they are complete"
    click.echo(told, err=True)


def shown_all(known: Sequence[str] | None) -> str:
    """Return in a cell which topics a key or an account is for."""
    return "all" if known is None else " ".join(known)
