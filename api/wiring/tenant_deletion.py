"""Delete a tenant with all that it has, as a job.

Each step may be done again, and finds nothing left then: a job that was interrupted goes on with
the step at which it was. The tenant is suspended first, so nothing new comes meanwhile.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from api.clients.cache import ClientFilter, SessionCache
from api.clients.control import clear_retained, disconnect
from api.jobs.jobs import Job, JobElsewhere, Jobs, Work
from api.log.appending import LogAppender
from api.messages.history import SETTINGS, append_event, delete_rows, vacuum
from api.metrics.rules import forget_metrics
from api.metrics.tenants import forget_tenant_metrics
from api.spark.connect import SparkConnect
from api.wiring.kept import Kept, Step
from api.wiring.parts import GatewayParts, MessageParts, MetricParts, RuleParts
from api.wiring.resources import REFERENCES, RESOURCES, TENANTS
from mqlake.errors import OperationalError
from mqlake.records.rule_tables import rule_tables
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.tables.catalogue import DEAD_LETTERS, DROPS, LATE, MESSAGES
from mqlake.tables.catalogue import EVENTS as EVENTS_TABLE
from rules.sql.quoting import quoted

DELETE_TENANT: Final = "delete_tenant"
"""Kind of these jobs."""

TABLES: Final = (MESSAGES, EVENTS_TABLE, DROPS, DEAD_LETTERS, LATE)
"""Beside those that its rules write. `audit_log` keeps all its rows; the others follow the log."""

WAIT_SECONDS: Final = 120.0
"""For gateways or Spark to do a part of a request."""
POLL_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 15.0
"""Between two looks for rows: records of the log are in the tables by then."""
MOST_LOOKS: Final = 20
PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class DeletionParts:
    """Parts that a deletion needs: all that may have data of a tenant."""

    data_dir: Path
    log: LogAppender
    kept: Kept
    gateways: GatewayParts
    messages: MessageParts
    rules: RuleParts
    metrics: MetricParts
    jobs: Jobs
    spark: SparkConnect


def deletion_work(parts: DeletionParts, tenant: str, by: str) -> Work:
    """Return the work that deletes a tenant."""

    def work(job: Job) -> dict[str, Any]:
        for number, (name, step) in enumerate(_STEPS.items()):
            if name not in job.place.get("done", ()):
                job.check()
                job.advance(number / len(_STEPS), name)
                counts = step(parts, job, tenant) or {}
                job.place = {
                    "done": [*job.place.get("done", ()), name],
                    "counts": {**job.place.get("counts", {}), **counts},
                }
        counts = job.place.get("counts", {})
        _tell(parts, job, tenant, by, counts)
        return dict(counts)

    return work


def is_being_deleted(jobs: Jobs, tenant: str) -> bool:
    return any(
        (one.kind, one.tenant) == (DELETE_TENANT, tenant) and one.finished_at is None
        for one in jobs.all()
    )


def _suspend(parts: DeletionParts, _job: Job, tenant: str) -> None:
    parts.kept[TENANTS].changes.suspend(tenant)


def _end_jobs(parts: DeletionParts, job: Job, tenant: str) -> None:
    for one in parts.jobs.all():
        if one.tenant == tenant and one.id != job.id and one.finished_at is None:
            try:
                parts.jobs.cancel(one.id)
            except JobElsewhere as exc:
                raise OperationalError(str(exc)) from exc


def _forget_kept(parts: DeletionParts, step: Step, tenant: str) -> dict[str, int]:
    """Have each resource do its part of a step."""
    counts: dict[str, int] = {}
    for resource in RESOURCES:
        if forget := resource.forget_tenant.get(step):
            counts |= forget(parts.kept[resource], tenant)
    return counts


def _delete_definitions(parts: DeletionParts, job: Job, tenant: str) -> dict[str, int]:
    counts = _forget_kept(parts, "definitions", tenant)
    references = parts.kept[REFERENCES].view
    _wait(
        job,
        lambda: sum(not one.is_answered for _, one in references.all(tenant)),
        "reference tables are not deleted yet",
    )
    return counts


def _end_sessions(parts: DeletionParts, job: Job, tenant: str) -> dict[str, int]:
    count = parts.gateways.sessions.tenants().get(tenant, 0)
    while found := parts.gateways.sessions.clients(tenant, ClientFilter(), "", PAGE):
        gateways = [one.name for one in parts.gateways.heard.all() if one.is_alive]
        if not gateways:
            raise OperationalError("no gateway is alive to end the tenant's sessions")
        client_ids = [json.loads(one.session)["client_id"] for one in found]
        for client_id in client_ids:
            job.check()
            disconnect(parts.log, gateways, tenant, client_id, end_session=True)
        _wait(
            job,
            partial(_stored, parts.gateways.sessions, tenant, client_ids),
            "sessions have not ended yet",
        )
    return {"sessions": count}


def _stored(cache: SessionCache, tenant: str, client_ids: list[str]) -> int:
    return sum(cache.client(tenant, one) is not None for one in client_ids)


def _still(asked: list[str], topics: Callable[[], list[str]]) -> int:
    return len(set(asked).intersection(topics()))


def _clear_retained(parts: DeletionParts, job: Job, tenant: str) -> dict[str, int]:
    def topics() -> list[str]:
        found = parts.messages.retained.page(tenant, None, "", PAGE, max_payload_bytes=0)
        return [one["topic"] for one in found]

    count = 0
    while asked := topics():
        count += len(asked)
        for topic in asked:
            job.check()
            clear_retained(parts.log, parts.messages.maker, tenant, topic, username=None)
        _wait(job, partial(_still, asked, topics), "retained messages are in the table yet")
    return {"retained": count}


def _revoke(parts: DeletionParts, _job: Job, tenant: str) -> dict[str, int]:
    return _forget_kept(parts, "access", tenant)


def _delete_rows(parts: DeletionParts, job: Job, tenant: str) -> dict[str, int]:
    count = 0
    with parts.spark.session(SETTINGS, job.cancelling.is_set) as spark:
        for look in range(MOST_LOOKS):
            if look:
                job.cancelling.wait(SETTLE_SECONDS)
            gone = 0
            # Of rules a table may come with the last rows.
            own = rule_tables(parts.data_dir / "tables", tenant)
            names = [*(one.name for one in TABLES), *own]
            for name in names:
                gone += delete_rows(job, spark, name, f"tenant = {quoted(tenant)}")
            count += gone
            if look and not gone:
                break
        else:
            raise OperationalError("rows of the tenant keep coming")
        for name in names:
            vacuum(job, spark, name)
    return {"rows": count}


def _forget(parts: DeletionParts, _job: Job, tenant: str) -> None:
    """Let no key of the log name it; the engine forgets where its rules counted in minutes."""
    for rule_id in parts.rules.metrics.rules_of(tenant):
        forget_metrics(parts.log, parts.rules.metrics, tenant, rule_id)
    forget_tenant_metrics(parts.log, parts.metrics.tenants, tenant)
    parts.jobs.drop_ended(tenant)
    _forget_kept(parts, "last", tenant)


_STEPS: Final[dict[str, Callable[[DeletionParts, Job, str], dict[str, int] | None]]] = {
    "suspending it": _suspend,
    "ending its jobs": _end_jobs,
    "deleting its rules, schemas and reference tables": _delete_definitions,
    "ending its sessions": _end_sessions,
    "deleting its retained messages": _clear_retained,
    "revoking its keys and accounts": _revoke,
    "deleting its rows": _delete_rows,
    "forgetting it": _forget,
}
"""By the step as the job tells it."""


def _wait(job: Job, left: Callable[[], int], what: str) -> None:
    """Wait until nothing is left.

    Raises:
        OperationalError: For a long time nothing has gone.
    """
    fewest = left()
    until = time.monotonic() + WAIT_SECONDS
    while fewest:
        if time.monotonic() > until:
            raise OperationalError(f"{fewest} {what}; see: bin/mqlake status, and resume the job")
        job.cancelling.wait(POLL_SECONDS)
        job.check()
        count = left()
        if count < fewest:
            fewest, until = count, time.monotonic() + WAIT_SECONDS


def _tell(parts: DeletionParts, job: Job, tenant: str, by: str, counts: dict[str, int]) -> None:
    """Append to `mqlake.events` that it is done: as an event of no tenant that may go."""
    of = {"deleted_tenant": tenant, "by": by, "job": job.id}
    at_ms = job.started_at_ms
    append_event(parts.log, "tenant.deleted", DEFAULT_TENANT, at_ms, **of, **counts)
