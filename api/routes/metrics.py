"""Numbers of the whole system; tenants."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.dependencies import Book, Cache, State, unavailable
from api.live.metrics import MetricsSource, SystemMetrics
from api.pages import DEFAULT_LIMIT, DEFAULT_TENANT, Cursor, Limit, Page, read_cursor, to_page
from api.problems import ProblemDetails

router = APIRouter(responses={503: {"model": ProblemDetails}})


class Tenant(BaseModel):
    name: str
    sessions: int = Field(description="that outlive their connection, or have a will")
    rules: int


@router.get("/metrics", tags=["metrics"])
def get_metrics(request: Request) -> SystemMetrics:
    """Show what gateways, processes and rules do now; rates are over the last seconds."""
    source: MetricsSource = request.app.state.metrics_source
    return source.read()


class Target(BaseModel):
    """As Prometheus reads it (`http_sd_configs`)."""

    targets: list[str] = Field(description="host and port")
    labels: dict[str, str] = Field(description="`instance`: name of the process")


@router.get("/metrics/targets", tags=["metrics"])
def get_targets(state: State) -> list[Target]:
    """List where Prometheus finds the metrics of each process of this system."""
    return [
        Target(targets=[urlsplit(url).netloc], labels={"instance": name})
        for name, url in state.metrics.items()
    ]


@router.get("/tenants", tags=["tenants"])
def get_tenants(
    cache: Cache, book: Book, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Tenant]:
    """List the tenants of whom there are sessions or rules, and `default`, by name."""
    (after,) = read_cursor(cursor, 1)
    with unavailable():
        sessions = cache.tenants()
    names = sorted({DEFAULT_TENANT, *sessions, *book.tenants()})
    found = [
        Tenant(name=name, sessions=sessions.get(name, 0), rules=len(book.all(name)))
        for name in [one for one in names if one > after][: limit + 1]
    ]
    return to_page(found, limit, lambda one: (one.name,))
