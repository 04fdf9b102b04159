"""A bar on standard error that shows how far a long command is."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


def progress_bar(console: Console, *, quiet: bool = False) -> Progress:
    """Return a bar for a `with` block; none is shown when the output is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    unseen = quiet or not console.is_terminal
    return Progress(*columns, console=console, disable=unseen, transient=True)
