"""One test of many cases says in its failure which of them it was."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: str) -> Iterator[None]:
    """Add a case's name to whatever fails in the `with` block."""
    try:
        yield
    except BaseException as exc:
        exc.add_note(name)
        raise
