"""Lists for people."""

import sys
from collections.abc import Iterable, Sequence


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their titles, as wide as they are when the output is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=not sys.stdout.isatty())
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    if not sys.stdout.isatty():
        console = Console(highlight=False, width=max(80, console.measure(table).maximum))
    console.print(table)
