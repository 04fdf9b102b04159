"""Rules as the API shows and takes them; names are those of EMQX's `/api/v5/rules`."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from api.jobs.jobs import Job, JobState, to_time
from api.rules.checking import compiled
from api.rules.materialised import Entry
from mqlake.records.rules import LeftUnread
from rules.errors import RuleError
from rules.language.compiled import CompiledRule
from rules.language.plan import encode_plan
from rules.masking import mask_actions
from rules.model import MAX_SQL_CHARACTERS, ActionSpec, Rule, RuleBody, RuleId, RuleState

_EXAMPLE: JsonDict = {
    "id": "too_hot",
    "name": "too hot",
    "sql": "SELECT payload.celsius AS celsius, clientid FROM 'plant/+/temperature' "
    "WHERE payload.celsius > 80",
    "actions": [{"function": "republish", "args": {"topic": "alarms/${clientid}", "qos": 1}}],
}


class NewRule(RuleBody):
    """A new rule."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    id: RuleId | None = Field(default=None, description="null: generated")

    def body(self) -> RuleBody:
        return RuleBody(**{name: getattr(self, name) for name in RuleBody.model_fields})


class ChangedRule(RuleBody):
    """The complete new content of a rule; omitted fields get the defaults of a new rule."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{**{k: v for k, v in _EXAMPLE.items() if k != "id"}, "version": 1}]
        }
    )

    version: int | None = Field(
        default=None,
        ge=1,
        description="the version changed; 409 if it is no longer the newest",
    )

    def body(self) -> RuleBody:
        return RuleBody(**{name: getattr(self, name) for name in RuleBody.model_fields})


class VersionView(BaseModel):
    """One version of a rule."""

    id: str
    version: int
    name: str
    description: str
    sql: str
    enable: bool
    actions: list[ActionSpec] = Field(
        description="callers who may not change rules see *** for possible secrets in those of http"
    )
    created_at: datetime = Field(description="of the rule")
    updated_at: datetime = Field(description="of this version")
    made_by: str | None = Field(
        description="maker of this version, whose rights it has; null: an administrator's, as "
        "the version is older than this field"
    )


class LeftUnreadView(BaseModel):
    """Records that a version of a stateful rule was to take, and has not."""

    version: int
    at: datetime = Field(description="when it was given up")
    reason: str
    count: int = Field(description="number of offsets")
    offsets: dict[str, dict[str, tuple[int, int]]] = Field(
        description="by log topic and partition: from, up to and without; empty: all was taken, "
        "but the last windows gave nothing"
    )


class RuleView(VersionView):
    """A rule: its newest version and its state in the engine."""

    model_config = ConfigDict(
        populate_by_name=True,
        json_schema_extra={
            "examples": [
                {
                    **_EXAMPLE,
                    "description": "",
                    "enable": True,
                    "from": ["plant/+/temperature"],
                    "version": 1,
                    "created_at": "2026-01-01T12:00:00Z",
                    "updated_at": "2026-01-01T12:00:00Z",
                    "made_by": "key:4f1c",
                    "state": "running",
                    "error": None,
                    "unread": None,
                }
            ]
        },
    )

    topics: list[str] = Field(alias="from", description="the filters in its SQL")
    state: RuleState = Field(
        description="starting: the engine has not reported this version; running; stopped: not "
        "enabled; failed: it cannot run; paused: it failed repeatedly, or exceeded its "
        "tenant's processor time; any change restarts it"
    )
    error: str | None = Field(description="why it does not run")
    unread: LeftUnreadView | None = Field(
        description="of the last version of a stateful rule that was given up before it had taken "
        "all messages that it applied to; null: there is none"
    )


class ConditionView(BaseModel):
    condition: str = Field(description="of WHERE, as written in the rule")
    expression: str = Field(description="Spark SQL")
    fields: list[str] = Field(description="columns and fields that it reads")


class CompiledView(BaseModel):
    """The meaning of a rule's SQL."""

    topics: list[str] = Field(alias="from")
    is_events: bool = Field(description="whether it reads events instead of messages")
    columns: list[str] = Field(description="of an output")
    fields: list[str] = Field(description="columns and payload fields that it reads")
    conditions: list[ConditionView]
    expression: str | None = Field(
        description="Spark SQL over the columns of a message: an array of JSON objects, the "
        "outputs; null or empty without outputs. Null for a stateful rule, which has a "
        "plan"
    )
    plan: dict[str, Any] | None = Field(
        description="of a stateful rule (windows, joins, detections): its `streams` of "
        "messages, each with the Spark SQL of its condition, columns and time; the `references` "
        "and the `detection` that it uses; and the Spark SQL `query` over all of them"
    )
    deterministic: bool
    schemas: list[str] = Field(description="schemas that it decodes with, as name:version")

    model_config = ConfigDict(populate_by_name=True)


class RuleCheck(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"sql": _EXAMPLE["sql"], "actions": _EXAMPLE["actions"]}]},
    )

    sql: str = Field(max_length=MAX_SQL_CHARACTERS)
    actions: list[ActionSpec] = Field(default_factory=list)


class RuleProblem(BaseModel):
    """An error in a rule, and its position."""

    problem: str
    line: int | None = Field(description="1-based, in the SQL; null without a place there")
    column: int | None = Field(description="1-based")
    fragment: str = Field(description="the wrong part")
    hint: str = Field(description="a correction; empty if none is known")


class CheckResult(BaseModel):
    valid: bool
    errors: list[RuleProblem]
    warnings: list[str]
    compiled: CompiledView | None = Field(description="null if the SQL is not valid")


class SpanView(BaseModel):
    """The range in which a version applies: two offsets of each partition."""

    version: int
    sources: dict[str, Any] = Field(
        description="by log topic: `from` and `to`, offsets by partition; `to` is null while the "
        "version is in force"
    )
    run: str | None = Field(
        description="of a stateful rule: its query, and the source of its outputs"
    )


class Explanation(CompiledView):
    id: str
    version: int
    state: RuleState
    query: str = Field(
        description="its Spark query: `rules` runs all stateless ones, each other one has its own"
    )
    sources: list[str] = Field(description="log topics that the query reads")
    spans: list[SpanView]


class Difference(BaseModel):
    diff: str = Field(description="unified diff of both versions as YAML; empty: they are equal")


class ActionMetrics(BaseModel):
    model_config = ConfigDict(extra="allow")

    function: str = ""
    success: int = 0
    failed: int = Field(default=0, description="given up")
    retried: int = Field(default=0, description="retries")
    dropped: int = Field(default=0, description="never tried")
    queued: int = Field(default=0, description="waiting now")
    latency_ms_mean: float | None = Field(
        default=None, description="from receipt of the message to the end of the action"
    )


class RateView(BaseModel):
    now: float = Field(description="over the last 10 seconds")
    last_5_minutes: float
    highest: float = Field(description="since the API was started")


class MetricsView(BaseModel):
    id: str
    matched: int = Field(description="messages that match a filter")
    passed: int = Field(
        description="of those, the ones with an output; of a stateful rule the ones that entered "
        "its window, join or detection"
    )
    no_result: int = Field(description="of those, the ones without an output")
    failed: int = Field(
        description="of those, the ones whose evaluation failed; of a stateful rule also outputs "
        "that failed"
    )
    outputs: int
    late: int = Field(description="of a stateful rule: late messages; see the table `late`")
    evaluation_ms: int = Field(description="processor time of its evaluation, sampled")
    lag_ms_mean: float | None = Field(
        description="of a stateful rule: from the end of a window, or another time of an output, "
        "to its writing"
    )
    matched_per_second: RateView
    actions: list[ActionMetrics] = Field(description="in the order of the rule's actions")
    reset_at: datetime | None = Field(description="start of counting; null: the beginning")


class SourceColumn(BaseModel):
    name: str
    type: str = Field(description="text, binary, integer, boolean or json")
    meaning: str
    nullable: bool


class RuleEvent(BaseModel):
    event: str = Field(description="its name after FROM")
    title: str
    columns: list[SourceColumn]
    sql_example: str


class JobView(BaseModel):
    id: str
    kind: str = Field(
        description="dry_run, backfill, rerun, replay, delete_history or delete_tenant"
    )
    rule_id: str = Field(description="empty for a job without a rule")
    tenant: str
    state: JobState
    progress: float = Field(description="from 0 to 1")
    note: str = Field(description="current step")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    seconds: float | None = Field(description="running time")
    error: str | None
    result: dict[str, Any] | None = Field(description="once it has succeeded; not in lists")


def view_version(rule: Rule, *, masked: bool) -> VersionView:
    return VersionView(**_version(rule, masked=masked))


def view_rule(entry: Entry, *, masked: bool) -> RuleView:
    fields = {**_version(entry.rule, masked=masked), "topics": _topics(entry)}
    return RuleView(
        **fields, state=entry.state, error=entry.error, unread=_left_unread(entry.unread)
    )


def _left_unread(unread: LeftUnread | None) -> LeftUnreadView | None:
    if unread is None:
        return None
    return LeftUnreadView(
        version=unread.version,
        at=datetime.fromtimestamp(unread.at_ms / 1000, tz=UTC),
        reason=unread.reason,
        count=unread.count,
        offsets={
            log_topic: {str(partition): range_ for partition, range_ in found.items()}
            for log_topic, found in unread.offsets.items()
        },
    )


def masked_body(body: RuleBody) -> RuleBody:
    return body.model_copy(update={"actions": mask_actions(body.actions)})


def view_compiled(rule: CompiledRule) -> dict[str, Any]:
    """Return the members of `CompiledView`."""
    return {
        "topics": list(rule.filters),
        "is_events": rule.is_events,
        "columns": list(rule.columns),
        "fields": [one.name for one in rule.fields],
        "conditions": [
            ConditionView(
                condition=one.text,
                expression=one.expression,
                fields=[read.name for read in one.fields],
            )
            for one in rule.conditions
        ],
        "expression": rule.expression,
        "plan": None if rule.plan is None else encode_plan(rule.plan),
        "deterministic": rule.deterministic,
        "schemas": sorted({f"{use.name}:{use.version}" for use in rule.schemas}),
    }


def view_problem(error: RuleError) -> RuleProblem:
    return RuleProblem(
        problem=error.problem,
        line=error.line,
        column=error.column,
        fragment=error.fragment,
        hint=error.hint,
    )


def view_job(job: Job, *, now_ms: int, with_result: bool) -> JobView:
    end = now_ms if job.finished_at_ms is None else job.finished_at_ms
    seconds = None if job.started_at_ms is None else (end - job.started_at_ms) / 1000
    created_at = to_time(job.created_at_ms)
    assert created_at is not None
    return JobView(
        id=job.id,
        kind=job.kind,
        rule_id=job.rule_id,
        tenant=job.tenant,
        state=job.state,
        progress=round(job.progress, 3),
        note=job.note,
        created_at=created_at,
        started_at=to_time(job.started_at_ms),
        finished_at=to_time(job.finished_at_ms),
        seconds=seconds,
        error=job.error,
        result=job.result if with_result else None,
    )


def _version(rule: Rule, *, masked: bool) -> dict[str, Any]:
    return {
        "id": rule.id,
        "version": rule.version,
        "name": rule.name,
        "description": rule.description,
        "sql": rule.sql,
        "enable": rule.enable,
        "actions": list(mask_actions(rule.actions) if masked else rule.actions),
        "created_at": datetime.fromtimestamp(rule.created_at / 1000, tz=UTC),
        "updated_at": datetime.fromtimestamp(rule.updated_at / 1000, tz=UTC),
        "made_by": rule.made_by,
    }


def _topics(entry: Entry) -> list[str]:
    try:
        return list(compiled(entry.rule.sql, entry.schemas).filters)
    except RuleError:  # written by an earlier version of the language
        return []
