"""Replay messages of the past: to all subscribers, or to one client."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from api.entrance.authentication import CurrentCaller, for_topics
from api.jobs.pace import DEFAULT_RATE, MAX_RATE
from api.replay.order import CLIENT_RATE, COLUMNS, ReplayOrder
from api.replay.work import REPLAY
from api.routes.queries.sql import SqlProblemDetails
from api.rules.views import JobView, view_job
from api.sql.confining import MOST_CHARACTERS
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import AllRuns, Settings
from mqlake.clock import SystemClock
from mqlake.errors import InvalidTopic
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.topics.names import is_system, validate_topic_name

router = APIRouter(tags=["history"])
_clock = SystemClock()


def _check_prefix(prefix: str) -> str:
    if prefix:
        try:
            validate_topic_name(prefix)
        except InvalidTopic as exc:
            raise ValueError(str(exc)) from exc
        if is_system(prefix):
            raise ValueError("topics below $SYS are the gateways' own")
    return prefix


class NewReplay(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(
        min_length=1,
        max_length=MOST_CHARACTERS,
        description=f"one SELECT over `messages` that gives the columns {', '.join(COLUMNS)}; "
        "messages are sent in the order of `ts`",
        examples=[
            "SELECT * FROM messages WHERE topic LIKE 'plant/%' AND ts > now() - INTERVAL 1 HOUR"
        ],
    )
    prefix: Annotated[str, AfterValidator(_check_prefix)] = Field(
        default="",
        max_length=1_000,
        description="put before each topic, for example `replay/`; empty: the original topics",
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=65_535,
        description="sends only to this client, those that match its subscriptions; it must be "
        "connected. Nothing is published: rules and the history do not see them",
    )
    speed: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="1 keeps the intervals of the messages, 10 divides them by ten; null: as fast "
        "as `rate` allows",
    )
    rate: int | None = Field(
        default=None,
        ge=1,
        le=MAX_RATE,
        description=f"maximum messages a second; null: {DEFAULT_RATE}, to one client {CLIENT_RATE}",
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        description="maximum number, the earliest; null: a SELECT that gives more than the setting "
        "sql_max_rows is refused",
    )
    keep_retain: bool = Field(
        default=False,
        description="true: retained messages are published with RETAIN, and replace the present "
        "ones",
    )

    @model_validator(mode="after")
    def _check_target(self) -> "NewReplay":
        if self.client_id is not None and (self.prefix or self.keep_retain):
            raise ValueError("a client gets messages as they were: no prefix, no keep_retain")
        return self


@router.post(
    "/replay",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        422: {"model": SqlProblemDetails},
        **{code: {"model": ProblemDetails} for code in (409, 429, 503)},
    },
    response_model=JobView,
    openapi_extra=for_topics(),
)
def post_replay(
    runs: AllRuns,
    settings: Settings,
    caller: CurrentCaller,
    asked: NewReplay,
    tenant: Tenant = DEFAULT_TENANT,
) -> object:
    """Replay messages.

    A job sends the messages that a SELECT over `messages` returns. Published messages are new ones:
    they have new identifiers, rules and the history take them, and three user properties name the
    job and the original (`mqlake-replay`, `mqlake-replay-id`, `mqlake-replay-time`). `DELETE
    /jobs/{id}` ends the job, `POST /jobs/{id}/resume` continues it; messages sent in the last two
    seconds before an interruption are sent again.
    """
    most = settings.sql_max_rows
    if asked.limit is not None and asked.limit > most:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"limit is at most {most} here")
    kept = {
        **asked.model_dump(),
        "rate": asked.rate or (DEFAULT_RATE if asked.client_id is None else CLIENT_RATE),
        "username": caller.name,
        "topic_filters": None if caller.topic_filters is None else list(caller.topic_filters),
    }
    runs.replays.target(ReplayOrder.from_request(tenant, kept), "")
    job = runs.start(REPLAY, tenant, "", kept)
    return view_job(job, now_ms=_clock.now_ms(), with_result=False)
