"""Heartbeat of a gateway: its record about itself, twice a second in `mqlake.gateways`.

The one place that names the members: gateways write it, and gateways, API, balancer and the readers
of growth decode it. Members are only added: one that this release does not know is ignored, one
that an earlier release did not write has its default.
"""

import json
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mqlake.errors import InvalidRecord

SERVING: Final = "serving"
"""State of a gateway that takes clients, and can own shards."""


class ShownGateway(BaseModel):
    """Members that the API shows with the metrics of a gateway, under their names."""

    # In the API's document a member is there always, whatever its default.
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    state: str = SERVING
    """Or `draining`, `drained`, or `retiring`: `bin/mqlake gateway retire` has its name."""
    overload_step: int = Field(
        default=0,
        description="its response: 0 nothing, 1 slows publishers down, 2 stops reading from them, "
        "3 refuses new clients, 4 disconnects those that use most memory",
    )
    clients: int = Field(default=0, description="connected")
    sessions: int = Field(default=0, description="in its memory, connected or not")
    sessions_catching_up: int = Field(
        default=0, description="of these, back and given what they have missed"
    )
    subscriptions: int = 0
    counters: dict[str, int] = Field(default={}, description="since its start")


class GatewayHeartbeat(ShownGateway):
    """The record's value. Readers give it no other values."""

    v: int = 0
    gateway: str = ""
    """Its name, as in the key."""
    incarnation: str = ""
    """Identifier of its run."""
    epoch: int = 0
    """One higher than that of the run before under its name."""
    number: int = 0
    """Counts the heartbeats of the run."""
    process: str = ""
    """Identity of the process, by which others of its machine know whether it has ended."""
    records: int = 1
    """The newest version of records that it knows."""
    at: int = 0
    """Milliseconds UTC, by its own clock."""
    site: str = ""
    listeners: list[str] = []
    """Their URLs."""
    addresses: dict[str, str] = {}
    """Addresses for clients, by kind of listener."""
    overload: int | None = None
    """Level, 0 to 10; see docs/observability.md."""
    rights: int = 0
    """Version of its rights; 0: those of its file, if any."""
    shared: Any = None
    """Demand of its clients for limits that all gateways share: by `u/<user>` or `t/<tenant>`
    messages and bytes a second, and connections of a tenant. Readers of this member and of the
    next two leave out malformed parts (`ingest.gateway.peers.shared_words`,
    `ingest.session.limits.fan_out`)."""
    shared_more: Any = None
    """The same for other limits, by kind."""
    fan_out: Any = None
    """`number`, and `of`: by gateway how many deliveries were made of messages that clients
    published there, by `<tenant>/<client_id>`, since the heartbeat before."""
    metrics_port: int = 0
    """0: none."""
    shards: list[int] = []
    """Those that it owns."""
    shard_count: int = 0
    """Number of shards of all gateways."""
    partitions: int | None = None
    """Partitions of `mqlake.inbound` that its messages go into; none of them is still on its way by
    a smaller number."""
    fixed: bool = False
    """It chooses them itself."""
    lease: float | None = None
    """Seconds: it is gone when it was silent for longer."""
    latency: dict[str, list[int]] = {}
    """Messages of each stage since its start, by class of `mqlake.processes.latency`."""

    def encode(self) -> bytes:
        """Return the record's value: its version first, as of all records, and what was set."""
        members = {"v": self.v} | self.model_dump(mode="json", exclude_unset=True)
        return json.dumps(members, separators=(",", ":")).encode()


def decode_gateway_heartbeat(value: bytes | None) -> GatewayHeartbeat:
    """Undo `GatewayHeartbeat.encode`.

    Raises:
        InvalidRecord: No JSON object, or a member is of another type.
    """
    try:
        return GatewayHeartbeat.model_validate_json(value or b"null")
    except ValidationError as exc:
        problem = exc.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "it"
        raise InvalidRecord(
            f"gateway record is of another form: {place}: {problem['msg']}"
        ) from exc
