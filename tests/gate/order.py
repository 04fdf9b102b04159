"""In which order files run: one of its own for each commit, so that none comes to need another.

A place goes by the seed and the file's own name: a file that comes or goes moves no other.
"""

import hashlib

import pytest

from tests.gate.full_run import file_of


def mix_files(items: list[pytest.Item], seed: int) -> None:
    """Put files in an order by chance; tests of a file stay together, in their order."""
    items.sort(key=lambda item: _place(file_of(item.nodeid), seed))


def _place(file: str, seed: int) -> tuple[str, str]:
    return hashlib.sha256(f"{seed} {file}".encode()).hexdigest(), file
