"""Writes what becomes of alarms."""

from collections.abc import Sequence
from typing import Final

from api.alarms.materialised import MaterialisedAlarms
from api.following import Followed
from api.log import LogAppender
from mqlake.alarm_records import Acknowledgement, Alarm, Kind, alarm_record_key, encode_alarm
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.record_versions import VERSION_HEADER, Headers
from mqlake.records import ALARMS

_HEADERS: Final[Headers] = [VERSION_HEADER]

Change = tuple[Kind, str, Alarm | Acknowledgement | None]
"""Kind of the record, identifier of the alarm, and what it is now; None: it is forgotten."""


class NoAlarm(MqlakeError):  # noqa: N818 - it names what is missing
    """There is no such alarm."""


class AlarmChanges:
    """Writes changes; safe to use from any thread.

    Args:
        log: Where to.
        view: Has all that is there; takes what is written at once.
        clock: For the times in records.
    """

    def __init__(self, log: LogAppender, view: MaterialisedAlarms, clock: Clock) -> None:
        self._log = log
        self._view = view
        self._clock = clock

    def write(self, changes: Sequence[Change]) -> None:
        """Append records.

        Raises:
            LogError: The log does not answer; the other methods raise it too.
        """
        if not changes:
            return
        records = [
            Append(
                0,
                alarm_record_key(kind, alarm_id),
                None if value is None else encode_alarm(value),
                _HEADERS,
            )
            for kind, alarm_id, value in changes
        ]
        offsets = self._log.append_all(ALARMS, records, what="alarm")
        self._view.take(
            [
                Followed(ALARMS, offset, record.key, record.value)
                for offset, record in zip(offsets, records, strict=True)
            ],
            is_old=False,
        )

    def acknowledge(self, alarm_id: str, by: str, note: str) -> None:
        """Note that somebody looks after an alarm; it is told to nobody any more.

        Raises:
            NoAlarm: There is none.
        """
        known = self._view.get(alarm_id)
        if known is None:
            raise NoAlarm(f"there is no alarm {alarm_id!r}")
        # Clocks of machines differ: it is of this alarm, whatever they say.
        at = max(self._clock.now_ms(), known.alarm.raised_at)
        said = Acknowledgement(at, by, note, known.alarm.tenant)
        self.write([("acknowledgement", alarm_id, said)])

    def withdraw(self, alarm_id: str) -> None:
        """Take an acknowledgement back; without one nothing happens.

        Raises:
            NoAlarm: There is no such alarm.
        """
        known = self._view.get(alarm_id)
        if known is None:
            raise NoAlarm(f"there is no alarm {alarm_id!r}")
        if known.acknowledgement is not None:
            self.write([("acknowledgement", alarm_id, None)])

    def forget(self, alarm_ids: Sequence[str]) -> None:
        """Delete alarms with their acknowledgements."""
        kinds: tuple[Kind, ...] = ("alarm", "acknowledgement")
        self.write([(kind, one, None) for one in alarm_ids for kind in kinds])

    def forget_tenant(self, tenant: str) -> None:
        """Delete the alarms of a tenant."""
        self.forget([one.id for one in self._view.all() if one.alarm.tenant == tenant])
