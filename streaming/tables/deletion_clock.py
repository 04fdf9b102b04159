"""The calendar by which stored things are deleted: it goes on no faster than time can have passed.

A machine that starts in 2036, as its clock has no battery or a time server is wrong, would find all
of the history too old. What the calendar says is therefore believed only as far as another clock
bears it out, the one that counts since the machine was booted, in suspension too:

- While the machine runs, this calendar goes on twice as fast as that clock at most.
- Over a boot, of which that clock knows nothing, it goes on by a day.

So a machine that was off for a month deletes what is due within a month, and a wrong calendar
deletes a day more than it should for each day in which it is not corrected, and for each boot.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mqlake.clock import Clock
from mqlake.durable import write_durably
from mqlake.errors import LogError
from mqlake.processes.status import boot_id
from mqlake.records import compact_json
from mqlake.records.messages import EVENTS
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.records.versions import RECORD_VERSION
from rules.actions.contract import NewRecord

_logger = logging.getLogger(__name__)

FILE: Final = "deletion-clock.json"
"""In the folder of the lake."""
CLOCK_AHEAD: Final = "history.clock_ahead"
"""Event: less is deleted than the calendar says."""
RATE: Final = 2
"""How much faster than time it goes on at most, to make up for a boot."""
BOOT_MS: Final = 86_400_000
AHEAD_MS: Final = 3_600_000
"""A calendar that is further ahead than this is reported."""
WRITE_SECONDS: Final = 60.0


def since_boot() -> float:
    """Return the seconds since the machine was booted, those in suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class DeletionClock:
    """Keeps the contract `Clock`; safe to use from any thread.

    Args:
        clock: The machine's.
        path: File that remembers how far it is; without one the calendar is believed once.
        append: Puts records into the log.
        boot: Identifier of this boot of the machine.
        since_boot: Seconds since then.
    """

    def __init__(
        self,
        clock: Clock,
        path: Path,
        append: Callable[[Sequence[NewRecord]], None],
        boot: str | None = None,
        since_boot: Callable[[], float] = since_boot,
    ) -> None:
        self._clock = clock
        self._path = path
        self._append = append
        self._boot = boot_id() if boot is None else boot
        self._since_boot = since_boot
        self._lock = threading.Lock()
        self._at_ms, self._heard = self._remembered()
        self._written: float | None = None
        self._is_told = False

    def monotonic(self) -> float:
        """Return that of the machine's clock."""
        return self._clock.monotonic()

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC, at most the calendar's."""
        with self._lock:
            heard, calendar_ms = self._since_boot(), self._clock.now_ms()
            borne_out_ms = self._at_ms + round((heard - self._heard) * 1000 * RATE)
            self._at_ms, self._heard = min(calendar_ms, borne_out_ms), heard
            self._remember()
            if calendar_ms - self._at_ms >= AHEAD_MS and not self._is_told:
                self._tell(calendar_ms)
            return self._at_ms

    def trouble(self) -> str:
        """Return that the calendar is ahead, in words; "": it is not."""
        now_ms, calendar_ms = self.now_ms(), self._clock.now_ms()
        return _words(now_ms, calendar_ms) if calendar_ms - now_ms >= AHEAD_MS else ""

    def _remembered(self) -> tuple[int, float]:
        """Return how far it was, and when since the boot."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            at_ms = int(found["at_ms"])
            if found["boot"] == self._boot:
                return at_ms, float(found["since_boot"])
        except FileNotFoundError:
            return self._clock.now_ms(), self._since_boot()
        except (ValueError, KeyError, TypeError) as error:
            fields = {"file": str(self._path), "reason": str(error)}
            _logger.error("a damaged file: its own time counts", extra={"fields": fields})
            at_ms = round(self._path.stat().st_mtime * 1000)
        return at_ms + BOOT_MS, 0.0

    def _remember(self) -> None:
        if self._written is not None and self._heard - self._written < WRITE_SECONDS:
            return
        value = {"at_ms": self._at_ms, "boot": self._boot, "since_boot": self._heard}
        try:
            write_durably(self._path, json.dumps(value).encode())
        except OSError as error:  # a full disk: the time until then counts as one before a boot
            _logger.warning("not remembered", extra={"fields": {"reason": str(error)}})
        self._written = self._heard

    def _tell(self, calendar_ms: int) -> None:
        """Say once that the calendar is ahead."""
        self._is_told = True
        reason = _words(self._at_ms, calendar_ms)
        _logger.error("the clock is ahead", extra={"fields": {"reason": reason}})
        value = {
            "v": RECORD_VERSION,
            "event": CLOCK_AHEAD,
            "ts": calendar_ms,
            "tenant": DEFAULT_TENANT,
            "client_id": None,
            "gateway": None,
            "reason": reason,
        }
        key = f"{DEFAULT_TENANT}/".encode()
        try:
            self._append([NewRecord(EVENTS, key, compact_json.encode(value), [], calendar_ms)])
        except LogError as error:
            _logger.warning("an event is lost", extra={"fields": {"reason": str(error)}})


def _words(at_ms: int, calendar_ms: int) -> str:
    at, calendar = (
        datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="minutes")
        for ms in (at_ms, calendar_ms)
    )
    return f"the clock says {calendar}, and so much time has not passed: deletes as of {at}"
