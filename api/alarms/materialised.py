"""Every alarm as `mqlake.alarms` has it, with its acknowledgement."""

from dataclasses import dataclass

from api.log.materialised import MaterialisedView
from mqlake.records.alarms import Acknowledgement, Alarm, decode_alarm, decode_alarm_key


@dataclass(frozen=True, slots=True)
class Known:
    """An alarm with its acknowledgement, if that is of this alarm and not of one before it."""

    id: str
    alarm: Alarm
    acknowledgement: Acknowledgement | None

    @property
    def is_open(self) -> bool:
        return self.alarm.cleared_at is None


class MaterialisedAlarms(MaterialisedView):
    """All known alarms; safe to use from any thread."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._alarms: dict[str, Alarm] = {}
        self._acknowledgements: dict[str, Acknowledgement] = {}

    def _take(self, data: bytes, value: bytes | None) -> None:
        kind, alarm_id = decode_alarm_key(data) or (None, "")
        if kind == "alarm":
            self._alarms.pop(alarm_id, None)
            if value is not None:
                self._alarms[alarm_id] = decode_alarm(Alarm, value)
        elif kind == "acknowledgement":
            self._acknowledgements.pop(alarm_id, None)
            if value is not None:
                self._acknowledgements[alarm_id] = decode_alarm(Acknowledgement, value)

    def get(self, alarm_id: str) -> Known | None:
        with self._changed:
            alarm = self._alarms.get(alarm_id)
            return None if alarm is None else self._known(alarm_id, alarm)

    def all(self) -> list[Known]:
        """Return all alarms, those that were raised last first."""
        with self._changed:
            found = [self._known(*one) for one in self._alarms.items()]
        return sorted(found, key=lambda one: (one.alarm.raised_at, one.id), reverse=True)

    def _known(self, alarm_id: str, alarm: Alarm) -> Known:
        found = self._acknowledgements.get(alarm_id)
        is_of_this = found is not None and found.at >= alarm.raised_at
        return Known(alarm_id, alarm, found if is_of_this else None)
