"""When the records of a log topic are sent: at once, or, when there are many, in bursts.

A request costs its sender, the broker and every reader behind it about half a millisecond of
processor, however few records it has. Records that are sent as soon as they come make requests of
one to three, and from 1,000 a second on these take more than a processor (design: log, 215). So the
records of a busy log topic are held for a few milliseconds, those of all others are not.
"""

import sys
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mqlake.errors import LogError
from mqlake.log.contract import LogFull

BUSY_RECORDS: Final = 128
BUSY_SECONDS: Final = 0.17
"""A log topic is busy when it gets a full batch within this time, 750 records a second."""
REST_RECORDS: Final = 102
"""It is so no more when it was given fewer, four fifths of them, in the same time."""
MANY_RECORDS: Final = 256
"""In the same time, 1,500 a second: from then on a burst is worth a longer wait."""
TICK_SECONDS: Final = 0.002
FEW_TICKS: Final = 2
MOST_TICKS: Final = 4
"""Longest time that a record is held, in ticks, when there are many records."""
PROBE_BURSTS: Final = 16
"""One burst of this number goes by the clock alone, and shows how many records come then."""
_BUSY_TICKS: Final = round(BUSY_SECONDS / TICK_SECONDS)
_NEVER: Final = sys.maxsize


class Bursts:
    """Holds the records of a busy log topic, in order, and sends them in bursts.

    A burst goes two ticks after the one before, four with many records, or when a tick has brought
    no record, and such a one, a probe, shows how many come. The next ones go when they have as
    many: publishers that send no more before they are answered shall not wait for nothing.

    Args:
        loop: Event loop of the writer.
        send: Hands the record of `append`'s arguments to the client library, or raises as `append`.
        report: Gets each record that could not be sent, and the reason.

    Attributes:
        is_busy: `hold` takes the next record. Otherwise it is sent at once, and `count` counts it.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        send: Callable[..., None],
        report: Callable[[tuple[Any, ...], LogError], None],
    ) -> None:
        self._loop = loop
        self._send = send
        self._report = report
        self._held: deque[tuple[Any, ...]] = deque()
        self._is_full = False
        self._counted = 0
        self._since = float("-inf")
        self._seen = 0  # of the records held, at the last tick
        self._age = 0  # ticks since the last burst
        self._most_age = FEW_TICKS
        self._ticks = 0
        self._bursts = 0  # since the last probe
        self._enough = _NEVER  # records; that it is not known makes the next burst a probe
        self.is_busy = False

    def count(self) -> None:
        """Note that a record was sent at once."""
        self._counted += 1
        if self._counted == BUSY_RECORDS:
            now = self._loop.time()
            took = now - self._since
            self.is_busy = took < BUSY_SECONDS
            self._since, self._counted, self._ticks, self._enough = now, 0, 0, _NEVER
            self._choose_age(BUSY_RECORDS * BUSY_SECONDS / took if took else MANY_RECORDS)
            if self.is_busy:
                self._loop.call_later(TICK_SECONDS, self._tick)

    def hold(self, *record: Any) -> None:
        """Take a record, to be sent with others.

        Raises:
            LogFull: Those before it do not fit into the client library's queue.
        """
        if self._is_full:
            raise LogFull(f"{len(self._held)} records wait for others to be sent, no more fit")
        self._held.append(record)
        if len(self._held) == self._enough:
            self._loop.call_soon(self.release)  # and those that came in the same turn of the loop

    def release(self) -> None:
        """Send what is held, as far as it fits."""
        held, self._is_full = self._held, False
        if held:
            self._learn(len(held))
        while held:
            record = held.popleft()
            try:
                self._send(*record)
            except LogFull:
                held.appendleft(record)
                self._is_full = True
                break
            except LogError as exc:
                self._report(record, exc)
            else:
                self._counted += 1
        self._seen = self._age = 0

    def _learn(self, records: int) -> None:
        self._bursts += 1
        if self._enough == _NEVER:
            self._enough, self._bursts = records, 0
        elif self._bursts == PROBE_BURSTS - 1:
            self._enough = _NEVER

    def close(self, error: LogError) -> None:
        """Hold no more, and report all that is held as not sent."""
        self.is_busy = False
        while self._held:
            self._report(self._held.popleft(), error)

    def _tick(self) -> None:
        if not self.is_busy:  # closed
            return
        self._ticks += 1
        self._age += 1
        is_over = self._ticks >= _BUSY_TICKS
        try:
            count = len(self._held)
            if count == self._seen or self._age >= self._most_age or is_over:
                self.release()
            else:
                self._seen = count
            if is_over:
                self.is_busy = bool(self._held) or self._counted >= REST_RECORDS
                self._choose_age(self._counted)
                self._since, self._counted, self._ticks = self._loop.time(), 0, 0
        finally:
            if self.is_busy:
                self._loop.call_later(TICK_SECONDS, self._tick)

    def _choose_age(self, records: float) -> None:
        """Choose for how long records are held, by how many came in `BUSY_SECONDS`."""
        self._most_age = MOST_TICKS if records >= MANY_RECORDS else FEW_TICKS
