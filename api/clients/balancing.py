"""The balancer of this machine, asked by its control socket."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from mqlake.processes.control_socket import ask_balancer

ANSWER_SECONDS: Final = 2.0
"""It answers within a millisecond, or is in trouble."""


class FactorView(BaseModel):
    healthy: bool | None = Field(description="null: not known yet")
    reason: str = Field(description="why it is unhealthy; empty: healthy")


class NodeView(BaseModel):
    name: str
    address: str
    ports: dict[str, int] = Field(description="by kind of listener: `mqtt`, `ws`, …")
    slot: int | None = Field(description="server of HAProxy; null: no slot is left")
    weight: int | None = Field(
        description="1 to 100: its share of new clients; null: not yet known"
    )
    takes_clients: bool = Field(description="new ones; existing clients stay")
    draining: bool = Field(description="a drain was requested")
    overloaded: bool
    overload_level: int | None = Field(
        description="0 to 10, as the node publishes it; null: not published"
    )
    cpu_percent: float | None = Field(description="mean of the window; null: not known")
    factors: dict[str, FactorView] = Field(
        description="health factors; a node is healthy if all are"
    )


class ProxyView(BaseModel):
    name: str
    version: str = Field(description="of the snapshot that it runs; empty: unknown")
    problem: str = Field(description="why it does not run the current one; empty: it does")
    changes: int = Field(description="number of commands that changed something")
    repairs: int = Field(description="times that its drifted state was restored")


class Loads(BaseModel):
    made_at: datetime | None = Field(description="UTC; null: none yet")
    problem: str = Field(description="why they could not be read or renewed; empty: they could")


class DrainView(BaseModel):
    node: str
    state: str
    closed: int = Field(
        description="connections closed by proxies; gateways close theirs themselves"
    )


class Balancer(BaseModel):
    healthy: bool
    detail: str
    strategy: str
    version: str = Field(description="of the current snapshot: SHA-256 of its content")
    talkers: int = Field(description="clients placed with others that hear the same topics")
    loads: Loads = Field(description="expected publishes and deliveries of clients")
    nodes: list[NodeView] = Field(description="by name")
    left_out: list[str] = Field(description="nodes without a slot")
    proxies: list[ProxyView]
    drains: list[DrainView]


class BalancerLink:
    """Asks the balancer of a data directory.

    Args:
        data_dir: Data directory of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._socket = data_dir / "balancer" / "control.sock"

    @property
    def is_there(self) -> bool:
        """Tell whether there is one; it may not answer."""
        return self._socket.exists()

    def read(self) -> Balancer:
        """Return its status.

        Raises:
            OperationalError: It does not answer.
        """
        return Balancer.model_validate(self._ask(action="status"))

    def drain(self, node: str, connections_per_second: float) -> None:
        """Let a node have no new clients, and let those go that it has.

        Raises:
            OperationalError: It does not answer, or there is no such node.
        """
        self._ask(action="drain", node=node, connections_per_second=connections_per_second)

    def undrain(self, node: str) -> None:
        """Give a node clients again.

        Raises:
            OperationalError: As of `drain`.
        """
        self._ask(action="undrain", node=node)

    def _ask(self, **question: Any) -> dict[str, Any]:
        return ask_balancer(self._socket, timeout_seconds=ANSWER_SECONDS, **question)
