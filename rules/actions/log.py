"""`log`: append a record to a Kafka topic, of mqlake's own cluster or of another one.

At least once: the header `output` is the same when a record comes again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator

from mqlake.records.messages import HEADER_OUTPUT
from rules.actions.connections import ConnectionKind, ForTenants
from rules.actions.contract import (
    NO_PROBLEMS,
    ActionError,
    ActionFunction,
    ActionServices,
    Arguments,
    LogTarget,
    NewRecord,
    Problems,
    Retry,
    Work,
    refusal,
)
from rules.actions.fields import ArgumentError, ConnectionName, TemplateText
from rules.templates import MissingField, Template

if TYPE_CHECKING:
    from mqlake.records.versions import Headers

OWN_PREFIX: Final = "mqlake."
"""Log topics that rules must not write into."""

LogTopic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]


class LogArgs(Arguments):
    """Arguments of `log`."""

    topic: LogTopic = Field(description="log topic; it must exist")
    connection: ConnectionName | None = Field(
        default=None,
        description="a cluster in the settings of the process; without it mqlake's own",
    )
    key: TemplateText | None = Field(default=None, description="key; none without it")
    value: TemplateText = Field(default="${.}", description="the row as JSON without it")
    headers: dict[str, TemplateText] = Field(default_factory=dict, max_length=32)
    retry: Retry = Retry()

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        if topic.startswith(("__", OWN_PREFIX)) or topic in (".", ".."):
            raise ArgumentError(f"log topic {topic} is not for rules")
        return topic

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        if HEADER_OUTPUT in headers:
            raise ArgumentError(f"header {HEADER_OUTPUT} is taken by the identifier of the output")
        return headers


class KafkaConnection(ForTenants):
    """A cluster for the action `log`."""

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: str = Field(
        min_length=1,
        description="Kafka bootstrap servers, host:port[,host:port…].",
        examples=["kafka.example.org:9092"],
    )
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="Security protocol of the Kafka listener."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="SASL mechanism."
    )
    user: str = Field(default="", description="User to log in with.")
    password: SecretStr | None = Field(
        default=None,
        description="Password of that user: set this, or password_file, or neither.",
        examples=["…"],
    )
    password_file: Path | None = Field(
        default=None,
        description="File with the password.",
        examples=[Path("/etc/mqlake/kafka-password")],
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities to trust instead of the system's.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )


KAFKA: Final = ConnectionKind[LogTarget](
    KafkaConnection, "rules.runner.cluster:open_cluster", example="analytics"
)


class Log:
    """Appends to a log topic."""

    max_batch = 500
    concurrency = 2
    may_fall_behind = True
    runs_recovered = True

    def __init__(self, args: LogArgs, services: ActionServices) -> None:
        self.retry = args.retry
        name = args.connection
        self._target = services.log if name is None else services.connection(KAFKA, name)
        self._log_topic = args.topic
        self._key = None if args.key is None else Template.parse(args.key)
        self._value = Template.parse(args.value)
        self._headers = [(name, Template.parse(text)) for name, text in args.headers.items()]

    async def run(self, batch: Sequence[Work]) -> Problems:
        records: list[NewRecord] = []
        numbers: list[int] = []
        problems: dict[int, ActionError] = {}
        for number, work in enumerate(batch):
            try:
                records.append(self._record(work))
                numbers.append(number)
            except MissingField as exc:
                problems[number] = ActionError(str(exc))
        for index, error in (await self._target.append(records)).items():
            problems[numbers[index]] = refusal(error)
        return problems or NO_PROBLEMS

    async def close(self) -> None:
        pass

    def _record(self, work: Work) -> NewRecord:
        value = work.output.row if self._value.is_row else self._value.render(work).encode()
        headers: Headers = [(HEADER_OUTPUT, work.action_id)]
        headers += [(name, template.render(work).encode()) for name, template in self._headers]
        key = None if self._key is None else self._key.render(work, needs_all=True).encode()
        return NewRecord(self._log_topic, key, value, headers)


FUNCTION: Final = ActionFunction(
    "log", LogArgs, Log, "appends a record to a Kafka topic", connection=KAFKA
)
