"""Looks for problems every few seconds, keeps them as alarms, and tells of them.

Every process of the API looks. An alarm belongs to the one that wrote its newest record: it alone
clears the alarm and tells of it. It renews the alarm once a minute; an alarm that was not renewed
for three minutes belongs to the process that finds that first.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from api.alarms.changes import AlarmChanges, Change
from api.alarms.checks import Found, Look
from api.alarms.materialised import Known, MaterialisedAlarms
from api.alarms.notify import Channel, Notice, NotTold
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.records.alarms import Alarm, Told

_logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
SEEN_MS: Final = 60_000
"""How often the owner of an alarm says that it sees it."""
SILENT_MS: Final = 180_000
KEPT_MS: Final = 7 * 24 * 3_600_000
"""An alarm that was cleared is shown so long."""
RETRY_SECONDS: Final = 60.0
"""After a channel has failed, unless it asks for more."""


class AlarmWatch:
    """Raises, clears and tells of alarms.

    Args:
        view: Has the alarms.
        changes: Writes them.
        look: Finds problems.
        clock: Says when.
        channels: Receivers of notices, by name.
        wait_seconds: An alarm that is over by then causes no notice.
        has_warnings: Warnings are sent as well.
    """

    def __init__(
        self,
        view: MaterialisedAlarms,
        changes: AlarmChanges,
        look: Look,
        clock: Clock,
        channels: Sequence[Channel] = (),
        *,
        wait_seconds: float = 0.0,
        has_warnings: bool = False,
    ) -> None:
        self._view = view
        self._changes = changes
        self._look = look
        self._clock = clock
        self._channels = channels
        self._wait_ms = round(wait_seconds * 1000)
        self._has_warnings = has_warnings
        self._owner = secrets.token_hex(4)
        self._retry_at: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        """Channel -> why it could not be reached; those that could are not in it."""

    async def run(self) -> None:
        """Look until cancelled."""
        problem = ""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                await asyncio.to_thread(self.tick)
                await self.tell()
                problem = ""
            except MqlakeError as exc:  # the log does not answer: the problem is there later too
                if str(exc) != problem:  # said once, not each time
                    _logger.warning("no alarms", extra={"fields": {"reason": str(exc)}})
                problem = str(exc)
            except Exception:
                _logger.exception("no alarms")

    def tick(self) -> None:
        """Look once, and write the changes.

        Raises:
            MqlakeError: It could not be written.
        """
        seen = self._look() if self._view.is_complete else None
        if seen is None:
            return
        found = {one.id: one for one in seen}
        now_ms = self._clock.now_ms()
        changes = [*self._seen(found, now_ms), *self._gone(found, now_ms)]
        self._changes.write(changes)
        old = [
            one.id
            for one in self._view.all()
            if one.alarm.cleared_at is not None and one.alarm.cleared_at < now_ms - KEPT_MS
        ]
        self._changes.forget(old)

    def _seen(self, found: dict[str, Found], now_ms: int) -> Iterator[Change]:
        """Yield alarms that are raised, and those whose owner says that it sees them."""
        for alarm_id, one in found.items():
            known = self._view.get(alarm_id)
            if known is None or not known.is_open:
                times = 1 if known is None else known.alarm.times + 1
                yield ("alarm", alarm_id), self._raised(one, times, now_ms)
            elif self._is_ours(known.alarm, now_ms) and known.alarm.seen_at <= now_ms - SEEN_MS:
                now = replace(known.alarm, severity=one.severity, detail=one.detail)
                yield ("alarm", alarm_id), replace(now, seen_at=now_ms, owner=self._owner)

    def _raised(self, one: Found, times: int, now_ms: int) -> Alarm:
        return Alarm(
            severity=one.severity,
            what=one.what,
            detail=one.detail,
            page=one.page,
            item=one.item,
            tenant=one.tenant,
            raised_at=now_ms,
            seen_at=now_ms,
            owner=self._owner,
            times=times,
        )

    def _gone(self, found: dict[str, Found], now_ms: int) -> Iterator[Change]:
        """Yield alarms that are no more."""
        for known in self._view.all():
            if known.is_open and known.id not in found and self._is_ours(known.alarm, now_ms):
                over = replace(known.alarm, cleared_at=now_ms, seen_at=now_ms, owner=self._owner)
                yield ("alarm", known.id), over

    def _is_ours(self, alarm: Alarm, now_ms: int) -> bool:
        return alarm.owner == self._owner or alarm.seen_at <= now_ms - SILENT_MS

    async def tell(self) -> None:
        """Send each channel the alarms that it has not got yet.

        Raises:
            MqlakeError: It was sent, and that could not be written: it is sent again.
        """
        for channel in self._channels:
            wanted = [one for one in self._view.all() if self._is_to_be_told(channel.name, one)]
            now = self._clock.monotonic()
            if not wanted or now < self._retry_at.get(channel.name, now):
                continue
            try:
                await channel.send([Notice.of(one) for one in wanted])
            except MqlakeError as exc:
                asked = exc.again_seconds if isinstance(exc, NotTold) else 0.0
                self._retry_at[channel.name] = now + max(RETRY_SECONDS, asked)
                self.problems[channel.name] = str(exc)
                fields = {"channel": channel.name, "reason": str(exc), "alarms": len(wanted)}
                _logger.warning("a notice of alarms was not sent", extra={"fields": fields})
                continue
            self.problems.pop(channel.name, None)
            told = [_told(channel.name, one) for one in wanted]
            await asyncio.to_thread(self._changes.write, told)

    def _is_to_be_told(self, channel: str, known: Known) -> bool:
        alarm = known.alarm
        if alarm.owner != self._owner or (alarm.severity == "warning" and not self._has_warnings):
            return False
        told = alarm.told.get(channel)
        if not known.is_open:
            return told == "raised"
        is_new = known.acknowledgement is None and told is None
        return is_new and alarm.raised_at <= self._clock.now_ms() - self._wait_ms


def _told(channel: str, known: Known) -> Change:
    what: Told = "raised" if known.is_open else "cleared"
    return ("alarm", known.id), replace(known.alarm, told={**known.alarm.told, channel: what})
