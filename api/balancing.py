"""The balancer of this machine, asked by its control socket."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from mqlake.control_socket import ask_balancer

ANSWER_SECONDS: Final = 2.0
"""It answers within a millisecond, or is in trouble."""


class FactorView(BaseModel):
    healthy: bool | None = Field(description="null: not known yet")
    reason: str = Field(description="why not; empty: it is")


class NodeView(BaseModel):
    name: str
    address: str
    ports: dict[str, int] = Field(description="by kind of listener: `mqtt`, `ws`, …")
    slot: int | None = Field(description="server of HAProxy; null: there is none left for it")
    weight: int | None = Field(description="1 to 100: its part of new clients; null: not yet known")
    takes_clients: bool = Field(description="new ones; those that it has stay in any case")
    draining: bool = Field(description="somebody has asked for that")
    overloaded: bool
    overload_level: int | None = Field(description="0 to 10, as it publishes it; null: it does not")
    cpu_percent: float | None = Field(description="mean of the window; null: not known")
    factors: dict[str, FactorView] = Field(description="health; a node is healthy if all are")


class ProxyView(BaseModel):
    name: str
    version: str = Field(description="of the snapshot that it runs; empty: none that is known")
    problem: str = Field(description="why it does not run the one in force; empty: it does")
    changes: int = Field(description="commands that changed something")
    repairs: int = Field(description="times that it had drifted and was brought back")


class Loads(BaseModel):
    made_at: datetime | None = Field(description="UTC; null: there are none yet")
    problem: str = Field(description="why they could not be read, or made anew; empty: they could")


class DrainView(BaseModel):
    node: str
    state: str
    closed: int = Field(description="that proxies have closed; gateways do it themselves")


class Balancer(BaseModel):
    healthy: bool
    detail: str
    strategy: str
    version: str = Field(description="of the snapshot in force: SHA-256 of what is in it")
    talkers: int = Field(description="clients that are placed with those who hear the same topics")
    loads: Loads = Field(description="what clients are expected to publish and to hear")
    nodes: list[NodeView] = Field(description="by name")
    left_out: list[str] = Field(description="nodes for which there is no slot")
    proxies: list[ProxyView]
    drains: list[DrainView]


class BalancerLink:
    """Asks the balancer of a data directory.

    Args:
        data_dir: Of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._socket = data_dir / "balancer" / "control.sock"

    @property
    def is_there(self) -> bool:
        """Whether there is one; it may not answer."""
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
