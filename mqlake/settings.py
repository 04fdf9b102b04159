"""How a process gets its settings: a TOML file, the environment, and overrides of its caller.

Every process has one frozen class derived from `ProcessSettings`. Its environment variables are
`MQLAKE_<PROCESS>_<KEY>`, with two underscores between the parts of a nested key:
`MQLAKE_GATEWAY_LOG__BOOTSTRAP_SERVERS`.
"""

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

from mqlake.errors import SettingsError
from mqlake.log.security import LogServers
from mqlake.logs import LogFormat
from mqlake.topics.names import MAX_TOPIC_BYTES

TopicLevels = Annotated[int, Field(ge=1, le=MAX_TOPIC_BYTES + 1)]
"""Most levels of a topic that a process takes, its `max_topic_levels`."""


class SettingsGroup(BaseModel):
    """Base of nested groups of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LogSettings(SettingsGroup):
    """The Kafka-compatible log."""

    bootstrap_servers: str = Field(
        default="127.0.0.1:9092",
        description="Kafka bootstrap servers, host:port[,host:port…].",
    )
    security_file: Path | None = Field(
        default=None,
        description="TOML file with protocol, login and certificates of the log "
        "(docs/security.md#the-log). Without it the connection uses neither login nor TLS.",
        examples=[Path("/etc/mqlake/log-security.toml")],
    )

    @property
    def servers(self) -> LogServers:
        """Return address and login of the log, as all that opens a client of it takes it."""
        return LogServers(self.bootstrap_servers, self.security_file)


class LogDiskSettings(SettingsGroup):
    """Disk of an embedded log on this machine; on a nearly full one the log takes no messages.

    `bin/mqlake up` sets these itself. Without folder nothing is looked at: brokers of your own have
    monitoring of their own (docs/observability.md#the-log-on-the-disk).
    """

    folder: Path | None = Field(
        default=None,
        description="Folder of the log with its partitions.",
        examples=[Path("data/kafka/log")],
    )
    min_free_bytes: int = Field(
        default=512 * 1024**2,
        ge=0,
        description="Minimum free space on the log's disk; with less, messages are refused.",
    )
    max_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Maximum bytes of the log's folder; beyond it messages are refused, too. "
        "Without it there is no limit.",
        examples=[50_000_000_000],
    )


class PostgresSettings(SettingsGroup):
    """A database of PostgreSQL."""

    kind: Literal["postgresql"] = "postgresql"
    host: str = Field(
        description="Host name, address, or folder of a Unix socket.",
        examples=["db.example.org"],
    )
    port: int = Field(
        default=5432,
        ge=1,
        le=65535,
        description="TCP port of the database.",
    )
    database: str = Field(
        min_length=1,
        description="Name of the database.",
        examples=["plant"],
    )
    user: str = Field(
        min_length=1,
        description="Role to log in with.",
        examples=["mqlake"],
    )
    password: SecretStr | None = Field(
        default=None,
        description="Password of that role: set this, or password_file, or neither.",
        examples=["…"],
    )
    password_file: Path | None = Field(
        default=None,
        description="File with the password, read at each connection.",
        examples=[Path("/etc/mqlake/database-password")],
    )
    tls: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] = Field(
        default="prefer",
        description="TLS mode, as libpq's sslmode.",
    )
    ca_certificates: Path | None = Field(
        default=None,
        description="PEM file of certificate authorities to trust in addition to the system's.",
        examples=[Path("/etc/mqlake/ca.pem")],
    )
    max_connections: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Maximum number of connections.",
    )

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file exclude each other")
        return self


class MetricsSettings(SettingsGroup):
    """Port of the process for `/metrics`, `/live` and `/ready` (docs/observability.md).

    It requires no login: keep the address private.
    """

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on.",
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="TCP port. 0: none; with `bin/mqlake up`, a free port.",
    )


class TracingSettings(SettingsGroup):
    """Traces of messages (docs/observability.md)."""

    otlp_endpoint: str = Field(
        default="",
        pattern=r"^(https?://\S+)?$",
        description="URL of an OpenTelemetry collector that accepts OTLP over HTTP, such as "
        '"http://127.0.0.1:4318". Empty: no traces.',
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        description="Share of messages that are traced, unless the publisher decides with the "
        "user property traceparent.",
    )


class ProcessSettings(BaseSettings):
    """Base of a process's settings; subclasses set `env_prefix`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_nested_delimiter="__", env_prefix="MQLAKE_"
    )

    heartbeat_file: Path | None = Field(
        default=None,
        description="File to which the process writes its health every second.",
        examples=[Path("data/run/process.json")],
    )
    log_file: Path | None = Field(
        default=None,
        description="Log file, rotated at 10 MiB, 3 kept. Without it the process logs to standard "
        "error.",
        examples=[Path("data/logs/process.log")],
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO",
        description="Minimum level of logged messages.",
    )
    log_format: LogFormat = Field(
        default="text",
        description="Log format: text, or one JSON object per line (docs/observability.md).",
    )
    metrics: MetricsSettings = MetricsSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml = TomlConfigSettingsSource(settings_cls, cls.model_config.get("toml_file"))
        return init_settings, env_settings, toml


Settings = TypeVar("Settings", bound=ProcessSettings)


def load(settings_class: type[Settings], path: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings of one process.

    Args:
        settings_class: Its settings.
        path: TOML file; keys that the class does not know are refused.
        overrides: Values that win over file and environment.

    Raises:
        SettingsError: The file cannot be read, a key or variable is unknown, or a value is out of
            range; with its name.
    """
    _refuse_unknown_variables(settings_class)

    class FromFile(settings_class):  # type: ignore[valid-type, misc]
        model_config = SettingsConfigDict(toml_file=path)

    try:
        if path is not None and not path.is_file():
            raise SettingsError(f"settings file {path} does not exist")
        loaded: Settings = FromFile(**overrides)
    except ValidationError as exc:
        raise SettingsError(_explain(exc, settings_class, path)) from exc
    except SourceError as exc:
        # A variable for a whole group must be JSON; the message names the group.
        raise SettingsError(f"environment: {exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as exc:
        raise SettingsError(f"settings file {path}: {exc}") from exc
    return loaded


def _refuse_unknown_variables(settings_class: type[ProcessSettings]) -> None:
    """Refuse a variable of the process that sets nothing: it would be ignored, as it is misspelt.

    Within a group the class of the group does so.
    """
    prefix = settings_class.model_config["env_prefix"]
    for variable in sorted(os.environ):
        if variable.upper().startswith(prefix):
            name = variable[len(prefix) :].partition("__")[0].lower()
            if name not in settings_class.model_fields:
                similar = get_close_matches(name, settings_class.model_fields, n=1)
                meant = f", did you mean {prefix}{similar[0].upper()}?" if similar else ""
                raise SettingsError(
                    f"environment variable {variable}: there is no such setting{meant}"
                )


def _explain(
    error: ValidationError, settings_class: type[ProcessSettings], path: Path | None
) -> str:
    """Return the error of the first key, and where it is set.

    The values of a group, which may be secret, stay out.
    """
    problem = error.errors()[0]
    names = [str(part) for part in problem["loc"]]
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        text = "there is no such setting" + _suggestion(settings_class, names)
    elif not isinstance(problem["input"], dict | BaseModel):
        text += f", got {problem['input']!r}"
    if not names:
        return text
    return f"setting {'.'.join(names)}: {text}{_place(settings_class, names, path)}"


def _place(settings_class: type[ProcessSettings], names: list[str], path: Path | None) -> str:
    """Return in words where a setting comes from: the environment, else the file."""
    prefix = settings_class.model_config["env_prefix"]
    for depth in range(len(names), 0, -1):
        variable = prefix + "__".join(names[:depth]).upper()
        if variable in os.environ:
            return f" (environment variable {variable})"
    return "" if path is None else f" (file {path})"


def _suggestion(settings_class: type[BaseModel], names: list[str]) -> str:
    """Return in words which setting may be meant, if one is similar."""
    *groups, last = names
    model = settings_class
    for name in groups:
        field = model.model_fields.get(name)
        inner = None if field is None else field.annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ""
        model = inner
    similar = get_close_matches(last, model.model_fields, n=1)
    return f", did you mean {'.'.join([*groups, *similar])}?" if similar else ""
