"""One SQLite file that holds a gateway's embedded stores.

It is a cache: everything in it comes from the log and the tables, and is read from there again at
the next start. So nothing is done for its durability: no journal, no fsync, and an old file is
thrown away. All calls come from the event loop's thread and take microseconds: the pages are in the
machine's page cache, the Python objects are not in our memory.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mqlake.errors import OperationalError

FILE_NAME: Final = "gateway.sqlite"

_PRAGMAS: Final = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16384",  # KiB; the rest is in the machine's page cache
)


class Database:
    """The file, and how the stores speak to it.

    Args:
        directory: Folder of the file; files of an earlier run there are removed. None keeps
            everything in memory.

    Raises:
        OperationalError: The directory cannot be written; every other method raises it too.
    """

    def __init__(self, directory: Path | None) -> None:
        self._where = "memory" if directory is None else str(directory / FILE_NAME)
        try:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
                (directory / FILE_NAME).unlink(missing_ok=True)
            # Transactions are ours: the module begins none by itself.
            self._connection = sqlite3.connect(
                ":memory:" if directory is None else self._where, isolation_level=None
            )
            for pragma in _PRAGMAS:
                self._connection.execute(pragma)
        except (OSError, sqlite3.Error) as exc:
            raise self._error(exc) from exc

    def create(self, schema: str) -> None:
        """Create the tables and indexes of a store."""
        try:
            self._connection.executescript(schema)
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write everything inside together: several times cheaper than one by one.

        There is no going back: with no journal, writes before an error stay.
        """
        if self._connection.in_transaction:
            yield
            return
        self.write("BEGIN")
        try:
            yield
        finally:
            self.write("COMMIT")

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement and return how many rows it changed."""
        try:
            return self._connection.execute(sql, values).rowcount
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def write_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run one statement for each row: half the cost of as many calls, and less.

        Returns:
            How many rows it changed in all.
        """
        try:
            return max(0, self._connection.executemany(sql, rows).rowcount)
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        try:
            found: tuple[Any, ...] | None = self._connection.execute(sql, values).fetchone()
        except sqlite3.Error as exc:
            raise self._error(exc) from exc
        return found

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    @contextmanager
    def scan(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Hand out rows one by one, no more of them read than are asked for."""
        try:
            cursor = self._connection.execute(sql, values)
            try:
                yield cursor
            finally:
                cursor.close()
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def close(self) -> None:
        self._connection.close()

    def _error(self, exc: Exception) -> OperationalError:
        return OperationalError(f"the gateway's store ({self._where}): {exc}")
