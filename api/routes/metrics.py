"""Numbers of the whole system."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.dependencies import State
from api.live.metrics import MetricsSource, SystemMetrics
from api.problems import ProblemDetails

router = APIRouter(tags=["metrics"], responses={503: {"model": ProblemDetails}})


@router.get("/metrics")
def get_metrics(request: Request) -> SystemMetrics:
    """Show what gateways, processes and rules do now; rates are over the last seconds."""
    source: MetricsSource = request.app.state.metrics_source
    return source.read()


class Target(BaseModel):
    """As Prometheus reads it (`http_sd_configs`)."""

    targets: list[str] = Field(description="host and port")
    labels: dict[str, str] = Field(description="`instance`: name of the process")


@router.get("/metrics/targets")
def get_targets(state: State) -> list[Target]:
    """List where Prometheus finds the metrics of each process of this system."""
    return [
        Target(targets=[urlsplit(url).netloc], labels={"instance": name})
        for name, url in state.metrics.items()
    ]
