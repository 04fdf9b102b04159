"""Contract between actions and the process that runs them.

The argument models beside this module are for everybody who reads rules; no module here imports a
client library. An action reaches the world only by `ActionServices`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from mqlake.errors import LogError, MqlakeError
from mqlake.records.outputs import Output
from mqlake.records.versions import Headers
from rules.actions.connections import Client, ConnectionKind


class Failure(Enum):
    """Kinds of failures of an action, by the reaction to them."""

    REFUSED = "refused"
    """The same would happen again: give up."""
    FAILED = "failed"
    """It may be this row's fault: try again, a number of times."""
    UNAVAILABLE = "unavailable"
    """It is the target's fault: try again for a long time."""


class ActionError(MqlakeError):
    """An action did not work for an output.

    Attributes:
        failure: Its kind.
        retry_after_seconds: When the target says how long to leave it alone; else 0. It is not
            tried before.
    """

    def __init__(
        self, message: str, failure: Failure = Failure.REFUSED, *, retry_after_seconds: float = 0.0
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.retry_after_seconds = retry_after_seconds


def refusal(error: LogError) -> ActionError:
    """Return the action's error for a failed append."""
    is_ours = error.definite and not error.passing
    return ActionError(str(error), Failure.REFUSED if is_ours else Failure.UNAVAILABLE)


class Arguments(BaseModel):
    """Base of the `args` of all functions."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Retry(Arguments):
    """How long an action is tried; between two tries twice as long as before, and some chance."""

    attempts: int = Field(
        default=8, ge=1, le=100, description="tries when the target answers that it failed"
    )
    give_up_after_seconds: float = Field(
        default=86_400.0,
        ge=0,
        le=604_800.0,
        description="how long a target that does not answer, or says that it is not available, is "
        "waited for",
    )
    first_delay_seconds: float = Field(default=0.2, gt=0, le=60, description="after the first try")
    max_delay_seconds: float = Field(default=15.0, gt=0, le=600, description="between two tries")


NO_RETRY: Final = Retry(attempts=1, give_up_after_seconds=0.0)


class Work:
    """One output on its way through one action; the scope of the action's templates."""

    __slots__ = ("_row", "action", "offset", "output", "partition", "recovered")

    def __init__(
        self, output: Output, action: int, partition: int, offset: int, *, recovered: bool = False
    ) -> None:
        self.output = output
        self.action = action
        """Index of the action in its rule."""
        self.partition = partition
        self.offset = offset
        """Its offset in `mqlake.outputs`."""
        self.recovered = recovered
        """It may have been done by a run that was killed."""
        self._row: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return self.output.row.decode()

    @property
    def row(self) -> dict[str, Any]:
        if self._row is None:
            row = json.loads(self.output.row)
            self._row = row if isinstance(row, dict) else {}
        return self._row

    @property
    def output_id(self) -> str:
        """Return the identifier of the output: the same when the rule is evaluated again."""
        output = self.output
        return f"{output.rule}/{output.version}/{output.position}"

    @property
    def action_id(self) -> bytes:
        """Return the identifier of this action's work; the header `output` of its records."""
        return f"{self.output_id}/{self.action}".encode()

    def field(self, name: str) -> str:
        output = self.output
        match name:
            case "$output":
                return self.output_id
            case "$rule":
                return output.rule
            case "$version":
                return str(output.version)
            case "$topic":
                return output.topic_name
            case "$clientid":
                return output.client_id
            case _:
                return str(output.received_at_ms)


Problems = Mapping[int, ActionError]
"""Errors of a batch, by the index of the output in it."""

NO_PROBLEMS: Final[Problems] = {}


class Action(Protocol):
    """Carries out one action of one rule.

    Attributes:
        max_batch: How many outputs `run` takes at once.
        concurrency: How many calls of `run` may be under way; they are begun in order.
        may_fall_behind: False for an action whose target is the log itself: nothing else can go on
            either when that is away, so the outputs wait where they are.
        runs_recovered: False for one that would rather miss an output than do it twice.
        retry: How long it is tried.
    """

    max_batch: int
    concurrency: int
    may_fall_behind: bool
    runs_recovered: bool
    retry: Retry

    async def run(self, batch: Sequence[Work]) -> Problems:
        """Carry it out for some outputs.

        Raises:
            ActionError: It worked for none of them.
        """
        ...

    async def close(self) -> None: ...


class ActionAround:
    """Base of an action that does something around another one, and has its bounds.

    Args:
        action: The other one.
    """

    def __init__(self, action: Action) -> None:
        self._action = action
        self.max_batch = action.max_batch
        self.concurrency = action.concurrency
        self.may_fall_behind = action.may_fall_behind
        self.runs_recovered = action.runs_recovered
        self.retry = action.retry

    async def close(self) -> None:
        await self._action.close()


@dataclass(slots=True)
class NewRecord:
    """A record on its way into a log topic."""

    log_topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int = 0


class LogTarget(Protocol):
    """Appends to one Kafka cluster."""

    async def append(self, records: Sequence[NewRecord]) -> Mapping[int, LogError]:
        """Append records, in order, before the first await; return errors by index."""
        ...


@dataclass(slots=True, frozen=True)
class Request:
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    has_secrets: bool = False
    """Then messages of the server or the client library about it are not shown."""


class HttpClient(Protocol):
    """Sends requests to web servers that it may talk to."""

    async def send(self, request: Request) -> None:
        """Send a request and wait until it is answered well.

        Raises:
            ActionError: It was not.
        """
        ...

    async def close(self) -> None: ...


class ActionServices(Protocol):
    """Services for actions. A connection is a name in the settings of the process."""

    @property
    def log(self) -> LogTarget:
        """Mqlake's own cluster."""
        ...

    def connection(self, kind: ConnectionKind[Client], name: str) -> Client:
        """Return the client of a connection.

        Raises:
            ActionError: There is no connection of this name, or it is of another kind.
        """
        ...

    def http(self, *, concurrency: int, timeout_seconds: float, verify_tls: bool) -> HttpClient: ...

    def check_secret(self, name: str, server: str) -> None:
        """Accept a secret for a server, `scheme://host[:port]`.

        Raises:
            ActionError: There is no such secret, or it is not for this server.
        """
        ...

    def read_secret(self, name: str) -> str:
        """Return a secret that has been accepted.

        Raises:
            ActionError: It cannot be read now.
        """
        ...

    def is_published(self, action_id: bytes) -> bool:
        """Tell whether an earlier run of the process has published this already."""
        ...

    def may_publish(self, topic_name: str) -> bool:
        """Tell whether the maker of the rule may publish to a topic now."""
        ...

    def next_message_id(self) -> bytes: ...

    @property
    def max_topic_levels(self) -> int:
        """Most levels of a topic to publish to."""
        ...

    @property
    def origin(self) -> bytes:
        """The origin in messages: the place where they entered the system."""
        ...

    def stop(self, reason: str) -> None:
        """End the process: only a new one can find out the outcome."""
        ...


@dataclass(frozen=True, slots=True)
class ActionFunction:
    """A function that a rule's actions can name: `FUNCTION` of its module."""

    name: str
    arguments: type[Arguments]
    make: Callable[[Any, ActionServices], Action] | None
    """None for a function that another process carries out."""
    summary: str
    make_fallback: Callable[[Any, ActionServices], Action] | None = None
    """Set where a fallback is made otherwise."""
    connection: ConnectionKind[Any] | None = None
    """Kind of connection that its argument `connection` names."""
