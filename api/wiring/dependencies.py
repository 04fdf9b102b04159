"""Dependencies of routes: one part each, by its type."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from api.access.changes import AccessChanges
from api.access.logins import Logins
from api.access.materialised import MaterialisedAccess
from api.access.provider import Provider
from api.alarms.changes import AlarmChanges
from api.alarms.materialised import MaterialisedAlarms
from api.alarms.watch import AlarmWatch
from api.clients.balancing import BalancerLink
from api.clients.cache import SessionCache
from api.clients.presence import Gateways
from api.federation import FederationLink
from api.jobs.jobs import Jobs
from api.live.messages import MessageFeed
from api.live.metrics import MetricsSource
from api.log.appending import LogAppender
from api.messages.completeness import Completeness
from api.messages.history import Deleter
from api.messages.messages import MessageMaker
from api.messages.publishing import ApiPublisher
from api.messages.retained import RetainedTable
from api.metrics.rules import MaterialisedMetrics
from api.metrics.tenants import TenantFigures
from api.references.changes import ReferenceChanges
from api.references.materialised import MaterialisedReferences
from api.references.tables import ReferenceTables
from api.rules.changes import RuleChanges
from api.rules.materialised import MaterialisedRules
from api.schemas.changes import SchemaChanges
from api.settings import ApiSettings
from api.spark.connect import SparkConnect
from api.sql.running import QueryRunner
from api.sql.threads import QueryThreads
from api.sql.warming import WarmUp
from api.tenants.bans import BanChanges, MaterialisedBans
from api.tenants.rights import MaterialisedRights, RightsChanges
from api.tenants.tenants import MaterialisedTenants, TenantChanges
from api.tracing.traces import Traces
from api.web.problems import Problem
from api.wiring.kept import Resource
from api.wiring.parts import LiveParts
from api.wiring.resources import (
    ACCESS,
    ALARMS,
    BANS,
    REFERENCES,
    RESOURCES,
    RIGHTS,
    RULES,
    SCHEMAS,
    TENANTS,
)
from api.wiring.runs import LongRuns
from api.wiring.services import Services
from mqlake.processes.status import SystemState, read_state
from mqlake.records.messages import SESSIONS


def services_of(connection: HTTPConnection) -> Services:
    """Return all parts; routes ask for one of those below."""
    services: Services = connection.app.state.services
    return services


Choose = Callable[[Services], Any]


def _part(choose: Choose, read: Choose | None = None, log_topic: str = "") -> Any:
    """Return the dependency that gives a part.

    Args:
        choose: The part.
        read: A view that must be read whole before: part of it would look like all. 503 until then.
        log_topic: It is read of this.
    """

    async def part(connection: HTTPConnection) -> Any:
        services = services_of(connection)
        if read is not None and not read(services).is_complete:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the API is reading {log_topic}: ask again in a moment",
                {"Retry-After": "1"},
            )
        return choose(services)

    return Depends(part)


def _view(choose: Choose, log_topic: str) -> Any:
    """Return the dependency that gives a view that has been read whole."""
    return _part(choose, choose, log_topic)


def known(resource: Resource[Any, Any]) -> Any:
    """Return the dependency that gives the view of a resource.

    Raises:
        TypeError: It is not listed; `changes` raises it too.
    """
    return _view(_kept(resource), resource.log_topic)


def changes(resource: Resource[Any, Any]) -> Any:
    """Return the dependency that gives the changes of a resource, when its view has been read."""
    view = _kept(resource)
    return _part(lambda its: its.kept[resource].changes, view, resource.log_topic)


def _kept(resource: Resource[Any, Any]) -> Choose:
    if resource not in RESOURCES:
        raise TypeError(
            f"RESOURCES of api/wiring/resources.py lacks what {resource.log_topic} keeps"
        )
    return lambda its: its.kept[resource].view


Settings = Annotated[ApiSettings, _part(lambda its: its.settings)]
Log = Annotated[LogAppender, _part(lambda its: its.log)]

KnownAccess = Annotated[MaterialisedAccess, known(ACCESS)]
ChangeAccess = Annotated[AccessChanges, _part(lambda its: its.kept[ACCESS].changes)]
"""A caller may log out before all is read."""
LoggingIn = Annotated[Logins, _part(lambda its: its.access.logins)]
Oidc = Annotated[Provider | None, _part(lambda its: its.access.provider)]

Heard = Annotated[Gateways, _part(lambda its: its.gateways.heard)]
Cache = Annotated[SessionCache, _view(lambda its: its.gateways.sessions, SESSIONS)]
KnownBans = Annotated[MaterialisedBans, known(BANS)]
ChangeBans = Annotated[BanChanges, changes(BANS)]
KnownRights = Annotated[MaterialisedRights, known(RIGHTS)]
ChangeRights = Annotated[RightsChanges, changes(RIGHTS)]
KnownTenants = Annotated[MaterialisedTenants, known(TENANTS)]
ChangeTenants = Annotated[TenantChanges, changes(TENANTS)]
Balancing = Annotated[BalancerLink, _part(lambda its: its.gateways.balancer)]
Federated = Annotated[FederationLink, _part(lambda its: its.gateways.federation)]

Maker = Annotated[MessageMaker, _part(lambda its: its.messages.maker)]
Publishing = Annotated[ApiPublisher, _part(lambda its: its.messages.publisher)]
Retained = Annotated[RetainedTable, _part(lambda its: its.messages.retained)]
Completed = Annotated[Completeness, _part(lambda its: its.messages.completeness)]
Tracing = Annotated[Traces, _part(lambda its: its.traces)]

KnownRules = Annotated[MaterialisedRules, known(RULES)]
ChangeRules = Annotated[RuleChanges, changes(RULES)]
ChangeSchemas = Annotated[SchemaChanges, changes(SCHEMAS)]
KnownReferences = Annotated[MaterialisedReferences, known(REFERENCES)]
ChangeReferences = Annotated[ReferenceChanges, changes(REFERENCES)]
Tables = Annotated[ReferenceTables, _part(lambda its: its.rules.reference_tables)]
Metrics = Annotated[MaterialisedMetrics, _part(lambda its: its.rules.metrics)]

Connect = Annotated[SparkConnect, _part(lambda its: its.queries.spark)]
Queries = Annotated[QueryRunner, _part(lambda its: its.queries.runner)]
ForQueries = Annotated[QueryThreads, _part(lambda its: its.queries.threads)]
Warming = Annotated[WarmUp, _part(lambda its: its.queries.warm_up)]

RunningJobs = Annotated[Jobs, _part(lambda its: its.runs.jobs)]
AllRuns = Annotated[LongRuns, _part(lambda its: its.runs)]
HistoryDeleter = Annotated[Deleter, _part(lambda its: its.runs.history)]

SystemFigures = Annotated[MetricsSource, _part(lambda its: its.metrics.source)]
Figures = Annotated[TenantFigures, _part(lambda its: its.metrics.figures)]
Live = Annotated[LiveParts, _part(lambda its: its.live)]
Feed = Annotated[MessageFeed, _part(lambda its: its.live.messages)]

KnownAlarms = Annotated[MaterialisedAlarms, known(ALARMS)]
ChangeAlarms = Annotated[AlarmChanges, changes(ALARMS)]
Watch = Annotated[AlarmWatch, _part(lambda its: its.alarms.watch)]


def system_state(settings: Settings) -> SystemState:
    return read_state(settings.data_dir)


State = Annotated[SystemState, Depends(system_state)]
