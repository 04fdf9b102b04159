"""State of a federator beyond its process, in one SQLite file: marks, messages, interests, epoch.

Written in one transaction some forty times a second while messages flow, without waiting for the
disk: it survives the death of the process, not of the machine.
"""

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ingest.federation.brokers.events import SavedSite
from ingest.federation.envelope import ChainKey, InvalidEnvelope, SiteMessage, read, write
from ingest.federation.overlay_map import SiteMember
from mqlake.errors import OperationalError

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS marks (
    origin INTEGER, epoch INTEGER, topic TEXT, mark INTEGER, written_ms INTEGER,
    PRIMARY KEY (origin, epoch, topic)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
    published_ms INTEGER, topic TEXT, envelope TEXT, payload BLOB);
CREATE INDEX IF NOT EXISTS by_time ON messages (published_ms);
CREATE TABLE IF NOT EXISTS interests (topic_filter TEXT PRIMARY KEY, since_ms INTEGER);
CREATE TABLE IF NOT EXISTS members (site INTEGER PRIMARY KEY, told TEXT);
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value INTEGER);
"""
MARKS_DAYS: Final = 7
"""Marks that have not moved for so long are forgotten."""


class SavedState:
    """The file.

    Args:
        path: File of the database; made if it is missing.
        site: This one, as the sender in the envelopes.
        store_seconds: How long messages are kept.
        interest_seconds: How long subscribers count that were not heard of again.

    Raises:
        OperationalError: It cannot be opened or is no such file.
    """

    def __init__(
        self, path: Path, site: int, *, store_seconds: float, interest_seconds: float
    ) -> None:
        self._site = site
        self._store_ms = round(store_seconds * 1000)
        self._interest_ms = round(interest_seconds * 1000)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(SCHEMA)
        except (sqlite3.Error, OSError) as exc:
            raise OperationalError(f"state of the federation in {path}: {exc}") from exc

    def new_epoch(self, now_ms: int) -> int:
        """Return a number higher than that of each run before."""
        row = self._database.execute("SELECT value FROM numbers WHERE name = 'epoch'").fetchone()
        epoch = max(now_ms, row[0] + 1 if row else 0)
        self._database.execute("REPLACE INTO numbers VALUES ('epoch', ?)", (epoch,))
        return epoch

    def load(self, now: float, now_ms: int) -> SavedSite:
        """Return the state of the run before, its times by this run's clock."""
        self._forget(now_ms)
        marks = [
            (ChainKey(origin, epoch, topic), mark)
            for origin, epoch, topic, mark in self._database.execute(
                "SELECT origin, epoch, topic, mark FROM marks"
            )
        ]
        messages: list[SiteMessage] = []
        for published_ms, topic, envelope, payload in self._database.execute(
            "SELECT published_ms, topic, envelope, payload FROM messages ORDER BY rowid"
        ):
            try:
                message, _ = read(envelope, topic, payload)
            except InvalidEnvelope:
                continue  # of a former version
            message.since = now - max(now_ms - published_ms, 0) / 1000
            messages.append(message)
        row = self._database.execute("SELECT value FROM numbers WHERE name = 'seen'").fetchone()
        interests: dict[str, float] = {}
        if row is not None and now_ms - row[0] < self._interest_ms:
            interests = {
                topic_filter: max(now_ms - since_ms, 0) / 1000
                for topic_filter, since_ms in self._database.execute("SELECT * FROM interests")
            }
        row = self._database.execute("SELECT value FROM numbers WHERE name = 'stamp'").fetchone()
        return SavedSite(marks, messages, interests, row[0] if row else 0)

    def save(self, saved: SavedSite, now: float, now_ms: int) -> None:
        """Write changes.

        Raises:
            OperationalError: The disk does not take it.
        """
        try:
            self._database.execute("BEGIN")
            self._database.executemany(
                "REPLACE INTO marks VALUES (?, ?, ?, ?, ?)",
                [(*key, mark, now_ms) for key, mark in saved.marks],
            )
            self._database.executemany(
                "INSERT INTO messages VALUES (?, ?, ?, ?)",
                [
                    (
                        now_ms - round((now - one.since) * 1000),
                        one.topic,
                        write(one, self._site, with_properties=True),
                        one.payload,
                    )
                    for one in saved.messages
                ],
            )
            self._database.executemany(
                "REPLACE INTO numbers VALUES (?, ?)", [("stamp", saved.stamp), ("seen", now_ms)]
            )
            self._database.execute("COMMIT")
        except sqlite3.Error as exc:
            raise OperationalError(f"state of the federation: {exc}") from exc

    def save_interests(self, saved: SavedSite, now_ms: int) -> None:
        """Write the filters of subscribers, and forget old ones; once in a while."""
        self._database.execute("BEGIN")
        self._database.execute("DELETE FROM interests")
        self._database.executemany(
            "INSERT INTO interests VALUES (?, ?)",
            [(one, now_ms - round(age * 1000)) for one, age in saved.interests.items()],
        )
        self._database.execute("REPLACE INTO numbers VALUES ('seen', ?)", (now_ms,))
        self._database.execute("COMMIT")
        self._forget(now_ms)

    def load_members(self) -> list[SiteMember]:
        """Return the sites that the run before knew."""
        rows = self._database.execute("SELECT told FROM members").fetchall()
        return [SiteMember(*json.loads(told)) for (told,) in rows]

    def save_members(self, members: Iterable[SiteMember]) -> None:
        """Write which sites are known; their links are others by the time they are read."""
        self._database.execute("BEGIN")
        self._database.execute("DELETE FROM members")
        self._database.executemany(
            "INSERT INTO members VALUES (?, ?)",
            [(one.site, json.dumps(one)) for one in members],
        )
        self._database.execute("COMMIT")

    def close(self) -> None:
        self._database.close()

    def _forget(self, now_ms: int) -> None:
        self._database.execute(
            "DELETE FROM messages WHERE published_ms < ?", (now_ms - self._store_ms,)
        )
        oldest = now_ms - MARKS_DAYS * 86_400_000
        self._database.execute("DELETE FROM marks WHERE written_ms < ?", (oldest,))
