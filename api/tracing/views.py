"""Traces, as the API shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

Basis = Literal["recorded", "unknown"]

Outcome = Literal[
    "acked",
    "delivered",
    "in_flight",
    "waiting",
    "handed_over",
    "dropped",
    "unknown",
]

ActionOutcome = Literal["done", "failed", "waiting", "unknown"]


class AcceptedView(BaseModel):
    """The message as stored in the log."""

    topic_name: str
    at: datetime
    origin: str = Field(description="<site>/<gateway> that accepted it; <site>/api for the API")
    client_id: str = Field(description="of the publisher")
    username: str | None
    qos: int
    retain: bool
    payload_bytes: int
    partition: int = Field(description="of the log topic `mqlake.inbound`")
    offset: int = Field(description="in that partition")
    found_in: Literal["log", "table"]


class Routed(BaseModel):
    """An entry of the gateway's delivery topic, which is kept for ten minutes."""

    gateway: str
    basis: Basis
    offset: int = Field(description="in `mqlake.delivery.<gateway>`")


class SubscriberTrace(BaseModel):
    client_id: str
    topic_filter: str
    qos: int | None = Field(description="of the subscription")
    gateway: str | None = Field(description="of the current or last connection")
    presence: str | None = Field(
        description="when the message was accepted, according to events: connected, away, "
        "session_expired, session_ended"
    )
    outcome: Outcome
    reason: str | None = Field(description="of a drop: queue_full, too_large, …")
    at: datetime | None = Field(description="of the record")
    basis: Basis
    detail: str


class ActionTrace(BaseModel):
    action: str = Field(description="<index>/<function>")
    outcome: ActionOutcome
    basis: Basis
    detail: str
    message_id: str | None = Field(description="of a message that it published")


class OutputTrace(BaseModel):
    output_id: str = Field(description="rule/version/position")
    row: Any = Field(description="a JSON object; null when it is larger than 4 KiB")
    at: datetime
    actions: list[ActionTrace]


class DeadLetterTrace(BaseModel):
    stage: str
    action: str | None
    error: str
    at: datetime


class RuleTrace(BaseModel):
    """A rule that gave an output or a dead letter for the message."""

    rule_id: str
    version: int
    basis: Basis
    detail: str
    outputs: list[OutputTrace]
    dead_letters: list[DeadLetterTrace]


class Recording(BaseModel):
    """State of recording: gateways record deliveries while a running rule reads them."""

    delivered: bool = Field(description="a running rule reads $events/message_delivered")
    acked: bool = Field(description="a running rule reads $events/message_acked")


class Trace(BaseModel):
    message_id: str
    tenant: str
    summary: str
    accepted: AcceptedView
    routed: list[Routed]
    subscribers: list[SubscriberTrace]
    rules: list[RuleTrace]
    recording: Recording
    not_known: list[str] = Field(description="missing facts, with reasons")
