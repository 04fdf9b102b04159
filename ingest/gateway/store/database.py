"""A SQLite file that holds embedded stores of a gateway.

It is a cache: everything in it comes from the log and the tables. So nothing is flushed to the
disk. A file without an identity has no journal either, and the next run throws it away. One with an
identity is kept: whole after a kill, thanks to the journal; after a crash of the machine it may be
torn, so the identity names the boot. All calls come from the event loop's thread and take
microseconds: the pages are in the machine's page cache, the Python objects are not in our memory.
"""

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mqlake.errors import OperationalError

logger = logging.getLogger(__name__)

FILE_NAME: Final = "gateway.sqlite"

_PRAGMAS: Final = (
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16384",  # KiB; the rest is in the machine's page cache
)
_NO_JOURNAL: Final = "PRAGMA journal_mode = OFF"
_JOURNAL: Final = "PRAGMA journal_mode = PERSIST"
_IDENTITY: Final = "CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL)"

Identity = Mapping[str, str]
"""Names and values that a file must have, so that a later run may go on with it."""


class Database:
    """The file, and how the stores speak to it.

    Args:
        directory: Folder of the file. None keeps everything in memory.
        name: Name of the file.
        identity: With the one that the file has, it is gone on with. Else, and with None, a file
            of an earlier run is removed.

    Attributes:
        is_kept: The file has what an earlier run wrote.

    Raises:
        OperationalError: The directory cannot be written; every other method raises it too. A file
            with an identity is removed then: what is wrong with it is not known.
    """

    def __init__(
        self, directory: Path | None, name: str = FILE_NAME, identity: Identity | None = None
    ) -> None:
        self._path = None if directory is None else directory / name
        self._identity = identity
        try:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
            kept = self._open_kept()
            self.is_kept = kept is not None
            if kept is None:
                self._remove()
            self._connection = kept or self._open()
        except (OSError, sqlite3.Error) as exc:
            raise self._error(exc) from exc

    def _open_kept(self) -> sqlite3.Connection | None:
        """Open the file of an earlier run, if it is there and as it must be."""
        if self._identity is None or self._path is None or not self._path.exists():
            return None
        try:
            connection = self._open()
            found = dict(connection.execute("SELECT name, value FROM identity"))
            expected = self._identity.items()
            wrong = [
                f"{name} is {found.get(name)}, expected {value}"
                for name, value in expected
                if found.get(name) != value
            ]
            if not wrong:
                return connection
            connection.close()
        except sqlite3.Error as exc:
            wrong = [str(exc)]
        fields = {"file": str(self._path), "reason": "; ".join(wrong)}
        logger.warning("a kept store is thrown away", extra={"fields": fields})
        return None

    def _open(self) -> sqlite3.Connection:
        # Transactions are ours: the module begins none by itself.
        connection = sqlite3.connect(
            ":memory:" if self._path is None else self._path, timeout=0, isolation_level=None
        )
        for pragma in (*_PRAGMAS, _NO_JOURNAL if self._identity is None else _JOURNAL):
            connection.execute(pragma)
        return connection

    def _remove(self) -> None:
        """Remove the file, and a journal, which would be of another file otherwise."""
        if self._path is not None:
            for path in (self._path, self._path.with_name(f"{self._path.name}-journal")):
                path.unlink(missing_ok=True)

    def create(self, schema: str) -> None:
        """Create the tables and indexes of a store.

        With an identity the file is one to go on with from then on: it has this store alone.
        """
        try:
            self._connection.executescript(schema)
            if self._identity is not None:
                with self.batch():
                    self._connection.execute(_IDENTITY)
                    self._connection.executemany(
                        "INSERT INTO identity VALUES (?, ?)", self._identity.items()
                    )
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write everything inside together: several times cheaper than one by one.

        There is no going back: writes before an error stay.
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
        self._identity = None  # who asks from now on finds no fault of the file

    def _error(self, exc: Exception) -> OperationalError:
        if self._identity is not None:
            with suppress(OSError):
                self._remove()
        return OperationalError(f"the gateway's store ({self._path or 'memory'}): {exc}")
