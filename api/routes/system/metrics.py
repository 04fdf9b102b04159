"""Numbers of the whole system."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field

from api.entrance.authentication import CurrentCaller, for_tenants
from api.live.metrics import SystemMetrics
from api.web.problems import ProblemDetails
from api.wiring.dependencies import Cache, Figures, State, SystemFigures

router = APIRouter(tags=["metrics"], responses={503: {"model": ProblemDetails}})


@router.get("/metrics")
def get_metrics(source: SystemFigures) -> SystemMetrics:
    """Show current metrics.

    They cover gateways, processes and rules; rates are over the last seconds.
    """
    return source.read()


@router.get(
    "/metrics/tenants",
    openapi_extra=for_tenants(),
    response_class=Response,
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)
def get_tenant_metrics(figures: Figures, caller: CurrentCaller, _cache: Cache) -> Response:
    """Show tenant metrics for Prometheus.

    The answer has the tenants that the caller may access.
    """
    families = list(figures.families(caller.is_of))
    registry = CollectorRegistry()
    registry.register(_Found(families))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Found(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


class ScrapeTarget(BaseModel):
    """A target in the format of Prometheus (`http_sd_configs`)."""

    targets: list[str] = Field(description="host and port")
    labels: dict[str, str] = Field(description="`instance`: name of the process")


@router.get("/metrics/targets")
def get_targets(state: State) -> list[ScrapeTarget]:
    """List scrape targets for Prometheus.

    These are the metrics addresses of the processes of this system.
    """
    return [
        ScrapeTarget(targets=[urlsplit(url).netloc], labels={"instance": name})
        for name, url in state.metrics.items()
    ]
