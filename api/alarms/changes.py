"""Writes changes of alarms."""

from collections.abc import Sequence
from typing import Final

from api.alarms.materialised import Known, MaterialisedAlarms
from api.log.repository import NotThere, RecordKind, Repository
from mqlake.records.alarms import Acknowledgement, Alarm, Kind, alarm_record_key, encode_alarm
from mqlake.records.messages import ALARMS

MAX_NOTE_CHARACTERS: Final = 1_000

Change = tuple[tuple[Kind, str], Alarm | Acknowledgement | None]
"""Kind of the record, identifier of the alarm, and its new value; None: it is forgotten."""


class AlarmChanges(Repository[tuple[Kind, str], Alarm | Acknowledgement, MaterialisedAlarms]):
    """Writes changes."""

    kind = RecordKind(
        ALARMS, lambda key: alarm_record_key(*key), encode_alarm, lambda _key: "alarm"
    )

    def acknowledge(self, alarm_id: str, by: str, note: str) -> None:
        """Note that an alarm is being looked after; no more notices are sent.

        Raises:
            NotThere: There is none.
        """
        known = self._existing(alarm_id)
        # Clocks of machines differ: it is of this alarm in any case.
        at = max(self._clock.now_ms(), known.alarm.raised_at)
        said = Acknowledgement(at, by, note, known.alarm.tenant)
        self.write([(("acknowledgement", alarm_id), said)])

    def withdraw(self, alarm_id: str) -> None:
        """Take an acknowledgement back; without one nothing happens.

        Raises:
            NotThere: There is no such alarm.
        """
        known = self._existing(alarm_id)
        if known.acknowledgement is not None:
            self.write([(("acknowledgement", alarm_id), None)])

    def forget(self, alarm_ids: Sequence[str]) -> None:
        """Delete alarms with their acknowledgements."""
        kinds: tuple[Kind, ...] = ("alarm", "acknowledgement")
        self.write([((kind, one), None) for one in alarm_ids for kind in kinds])

    def forget_tenant(self, tenant: str) -> None:
        """Delete the alarms of a tenant."""
        self.forget([one.id for one in self._view.all() if one.alarm.tenant == tenant])

    def _existing(self, alarm_id: str) -> Known:
        known = self._view.get(alarm_id)
        if known is None:
            raise NotThere(f"there is no alarm {alarm_id!r}")
        return known
