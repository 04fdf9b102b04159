"""Alarms: list and acknowledge conditions that need attention."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from api.access.callers import Caller
from api.alarms.changes import MAX_NOTE_CHARACTERS
from api.alarms.materialised import Known, MaterialisedAlarms
from api.entrance.authentication import CurrentCaller, for_tenants
from api.jobs.jobs import to_time
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, write_cursor
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import ChangeAlarms, KnownAlarms, Watch
from mqlake.records.alarms import Severity

router = APIRouter(tags=["alarms"], responses={503: {"model": ProblemDetails}})

_OWN: Final = for_tenants()
"""Callers for some tenants are shown, and acknowledge, alarms of these alone."""
_MISSING: Final[dict[int | str, dict[str, Any]]] = {404: {"model": ProblemDetails}}


class AlarmView(BaseModel):
    id: str = Field(description="the same for the same subject")
    state: Literal["open", "acknowledged", "cleared"]
    severity: Severity
    what: str
    detail: str = Field(description="up to a minute old")
    page: str = Field(description="of the dashboard, with more information")
    item: str = Field(description="of that page; empty: the page itself")
    tenant: str | None = Field(description="null: of the system")
    raised_at: datetime | None
    times: int = Field(description="number of times raised, this one included")
    cleared_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    note: str | None = Field(description="by the user who acknowledged it")
    told: dict[str, str] = Field(description="webhook, mail -> the last notification")


class Note(BaseModel):
    model_config = ConfigDict(extra="forbid")

    note: str = Field(default="", max_length=MAX_NOTE_CHARACTERS, description="for other users")


class AlarmPage(Page[AlarmView]):
    problems: dict[str, str] = Field(
        description="webhook, mail -> why this process cannot notify it now; empty for a caller of "
        "some tenants"
    )


AlarmId = Annotated[str, Path(alias="id", description="identifier of an alarm", max_length=64)]


@router.get("/alarms", openapi_extra=_OWN)
def get_alarms(
    caller: CurrentCaller,
    alarms: KnownAlarms,
    watch: Watch,
    state: Annotated[
        Literal["open", "cleared"] | None,
        Query(description="open: includes acknowledged ones"),
    ] = "open",
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> AlarmPage:
    """List alarms.

    Those raised last come first; cleared ones are kept for a week.
    """
    raised_at, last_id = read_cursor(cursor, 2)
    found = [
        one
        for one in alarms.all()
        if _is_shown(one, caller)
        and (state is None or one.is_open == (state == "open"))
        and (cursor is None or _place(one) < (raised_at, last_id))
    ]
    more = write_cursor(*_place(found[limit - 1])) if len(found) > limit else None
    views = [_view(one) for one in found[:limit]]
    # Why is of the machine, and no tenant's matter.
    shown = dict(watch.problems) if caller.tenants is None else {}
    return AlarmPage(items=views, next_cursor=more, problems=shown)


@router.post("/alarms/{id:segment}/acknowledge", openapi_extra=_OWN, responses=_MISSING)
def post_acknowledge(
    caller: CurrentCaller, alarms: KnownAlarms, changes: ChangeAlarms, alarm_id: AlarmId, note: Note
) -> AlarmView:
    """Acknowledge an alarm.

    No more notifications are sent until it is raised again.
    """
    _check(alarms, caller, alarm_id)
    changes.acknowledge(alarm_id, caller.name, note.note)
    return _view(_check(alarms, caller, alarm_id))


@router.delete("/alarms/{id:segment}/acknowledge", openapi_extra=_OWN, responses=_MISSING)
def delete_acknowledge(
    caller: CurrentCaller, alarms: KnownAlarms, changes: ChangeAlarms, alarm_id: AlarmId
) -> AlarmView:
    """Withdraw an acknowledgement."""
    _check(alarms, caller, alarm_id)
    changes.withdraw(alarm_id)
    return _view(_check(alarms, caller, alarm_id))


def _check(alarms: MaterialisedAlarms, caller: Caller, alarm_id: str) -> Known:
    known = alarms.get(alarm_id)
    if known is None or not _is_shown(known, caller):
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no alarm {alarm_id!r}")
    return known


def _is_shown(known: Known, caller: Caller) -> bool:
    tenant = known.alarm.tenant
    return caller.tenants is None if tenant is None else caller.is_of(tenant)


def _place(known: Known) -> tuple[str, str]:
    """Return the place of an alarm in the list; as texts, since a cursor holds no others."""
    return f"{known.alarm.raised_at:015}", known.id


def _view(known: Known) -> AlarmView:
    alarm, said = known.alarm, known.acknowledgement
    state: Literal["open", "acknowledged", "cleared"] = "open" if said is None else "acknowledged"
    return AlarmView(
        id=known.id,
        state=state if known.is_open else "cleared",
        severity=alarm.severity,
        what=alarm.what,
        detail=alarm.detail,
        page=alarm.page,
        item=alarm.item,
        tenant=alarm.tenant,
        raised_at=to_time(alarm.raised_at),
        times=alarm.times,
        cleared_at=to_time(alarm.cleared_at),
        acknowledged_at=None if said is None else to_time(said.at),
        acknowledged_by=None if said is None else said.by,
        note=None if said is None else said.note,
        told=dict(alarm.told),
    )
