"""The processes of the system, as `mqlake status --json` shows them."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.web.problems import ProblemDetails
from api.wiring.dependencies import State
from mqlake.processes.status import report

router = APIRouter(tags=["processes"])


class ProcessView(BaseModel):
    name: str
    pid: int | None = Field(description="null while it is down")
    healthy: bool
    detail: str = Field(description="one line: its activity or its problem")
    restarts: int
    last_exit: str | None = Field(description="why it ended last; null if it never did")
    uptime_seconds: float
    rss_bytes: int = Field(description="memory of the process and its children")
    cpu_percent: float = Field(description="of one core, over the last seconds")
    cpu_seconds: float = Field(description="since it started")
    figures: dict[str, Any] = Field(description="its own counters")


class System(BaseModel):
    healthy: bool
    phase: str = Field(description="starting, running or stopping")
    started_at: float = Field(description="seconds since 1970-01-01 UTC")
    entrances: list[str] = Field(
        default_factory=list, description="addresses that place clients over gateways"
    )
    mqtt: list[str] = Field(description="address of each gateway")
    listeners: dict[str, list[str]] = Field(
        description="every address of each gateway: TCP, TLS, WebSocket, Unix socket"
    )
    api: str
    log: str = Field(description="Kafka bootstrap servers")
    durability: str = Field(
        description="class of the log: the failures that an acknowledged message survives"
    )
    metrics: dict[str, str] = Field(
        default_factory=dict, description="metrics address of each process"
    )
    processes: list[ProcessView]


@router.get("/processes", responses={503: {"model": ProblemDetails}})
def get_processes(state: State) -> System:
    """List processes.

    Each has its health, memory and processor use.
    """
    return System.model_validate(report(state))
