"""What routes share: where the system is, what has been read of it, failures as answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Protocol

from fastapi import Depends, Request

from api.cache import SessionCache
from api.jobs import Jobs
from api.log import LogAppender
from api.presence import Gateways
from api.problems import Problem
from api.references.book import ReferenceBook
from api.rules.book import RuleBook
from api.rules.changes import Changes
from api.rules.metrics import MetricsBook
from api.schemas.changes import SchemaChanges
from api.spark import SparkConnect, SparkStarting
from api.tenants import TenantBook
from mqlake.errors import LogError, OperationalError
from mqlake.records import GATEWAYS, RULES, SESSIONS
from mqlake.status import SystemState, read_state


@contextmanager
def unavailable() -> Iterator[None]:
    """Answer 503 when the log, the cache, Spark or a table does not answer."""
    try:
        yield
    except SparkStarting as exc:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(exc), {"Retry-After": "1"}) from exc
    except (OperationalError, LogError) as exc:
        is_open = isinstance(exc, LogError) and not exc.definite
        code = "outcome_unknown" if is_open else "unavailable"
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(exc), code=code) from exc


class Read(Protocol):
    """What is read of a log topic."""

    @property
    def is_complete(self) -> bool: ...


def refuse_part(found: Read, log_topic: str) -> None:
    """Answer 503 until all has been read: part of it would look like all."""
    if not found.is_complete:
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the API is reading {log_topic}: ask again in a moment",
            {"Retry-After": "1"},
        )


def system_state(request: Request) -> SystemState:
    with unavailable():
        return read_state(request.app.state.data_dir)


def complete_cache(request: Request) -> SessionCache:
    """Return the sessions once all of them have been read."""
    cache: SessionCache = request.app.state.cache
    refuse_part(cache, SESSIONS)
    return cache


def heard_gateways(request: Request) -> Gateways:
    gateways: Gateways = request.app.state.gateways
    return gateways


def log_appender(request: Request) -> LogAppender:
    log: LogAppender = request.app.state.log
    return log


def complete_book(request: Request) -> RuleBook:
    """Return the rules once all of them have been read."""
    book: RuleBook = request.app.state.rules
    refuse_part(book, RULES)
    return book


def complete_references(request: Request) -> ReferenceBook:
    """Return the reference tables once all of them have been read."""
    book: ReferenceBook = request.app.state.references
    refuse_part(book, RULES)
    return book


def known_tenants(request: Request) -> TenantBook:
    """Return the tenants once all of them have been read."""
    book: TenantBook = request.app.state.tenants
    refuse_part(book, GATEWAYS)
    return book


def rule_changes(request: Request) -> Changes:
    changes: Changes = request.app.state.rule_changes
    return changes


def schema_changes(request: Request) -> SchemaChanges:
    changes: SchemaChanges = request.app.state.schema_changes
    return changes


def rule_metrics(request: Request) -> MetricsBook:
    metrics: MetricsBook = request.app.state.rule_metrics
    return metrics


def spark_connect(request: Request) -> SparkConnect:
    spark: SparkConnect = request.app.state.spark
    return spark


def running_jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


State = Annotated[SystemState, Depends(system_state)]
Cache = Annotated[SessionCache, Depends(complete_cache)]
Heard = Annotated[Gateways, Depends(heard_gateways)]
Log = Annotated[LogAppender, Depends(log_appender)]
Book = Annotated[RuleBook, Depends(complete_book)]
KnownReferences = Annotated[ReferenceBook, Depends(complete_references)]
KnownTenants = Annotated[TenantBook, Depends(known_tenants)]
RuleChanges = Annotated[Changes, Depends(rule_changes)]
SchemasChanged = Annotated[SchemaChanges, Depends(schema_changes)]
Metrics = Annotated[MetricsBook, Depends(rule_metrics)]
Connect = Annotated[SparkConnect, Depends(spark_connect)]
RunningJobs = Annotated[Jobs, Depends(running_jobs)]
