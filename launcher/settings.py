"""Settings of the one-machine launcher (`mqlake up`); `conf/local.toml` shows every key."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.log.durability import Durability
from mqlake.settings import ProcessSettings


class LocalSettings(ProcessSettings):
    """Settings of the one-machine launcher.

    Read by `bin/mqlake up`.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_LOCAL_")

    log_servers: str = Field(
        default="",
        description="Kafka-compatible log of your own, host:port[,host:port…]. Its topics are "
        "created as by `bin/mqlake log prepare`. `bin/mqlake up --log-servers` overrides it. "
        "Empty: the embedded log.",
    )
    log_security_file: Path | None = Field(
        default=None,
        description="TOML file with protocol, login and certificates of the log at log_servers "
        "(docs/security.md#the-log). The embedded log has its own, in the data directory.",
        examples=[Path("/etc/mqlake/log-security.toml")],
    )
    durability: Durability = Field(
        default=Durability.D1,
        description='Failures that acknowledged messages survive (docs/durability.md). "D1": the '
        'crash of any process; a power failure may lose the last half minute. "D3": a power '
        "failure, too; messages are on disk before they are acknowledged, which takes longer. "
        '"D2": for a log of your own with three brokers (log_servers), of which two have each '
        "message.",
    )
    log_retention_hours: float = Field(
        default=168.0,
        gt=0,
        description="A message may be deleted from the embedded log after this time, once it is "
        "routed, written to the tables and evaluated by all rules.",
    )
    log_retention_bytes: int = Field(
        default=10 * 1000**3,
        ge=64 * 1024**2,
        description="Maximum bytes of all messages together; beyond it the oldest are deleted in "
        "the same way, in segments of up to 256 MiB.",
    )
    log_max_bytes: int | None = Field(
        default=None,
        ge=128 * 1024**2,
        description="Maximum bytes of the log's folder; beyond it messages are refused (MQTT: "
        "0x97). Set it above log_retention_bytes, or publishing soon stops. Without it they are "
        "refused only when the disk is nearly full (log_min_free_bytes).",
        examples=[50_000_000_000],
    )
    log_min_free_bytes: int = Field(
        default=512 * 1024**2,
        ge=0,
        description="Minimum free space on the disk of the embedded log; with less, messages are "
        "refused. Half as much is kept in reserve by a file that is deleted when the disk is full, "
        "so that the log can run and delete what is old.",
    )
    log_partitions: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Partitions of a new log. Default: half as many as processors, at most 4. "
        "`bin/mqlake log grow` adds partitions while the system runs.",
        examples=[4],
    )
    session_shards: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Session shards of a new log, distributed over the gateways. Cannot be "
        "changed later. Many gateways need more, several dozen need 64.",
    )
    log_heap_mb: int = Field(
        default=256,
        ge=128,
        description="Java heap of the log, MiB.",
    )
    websocket_port: int = Field(
        default=8083,
        ge=0,
        le=65535,
        description="Port of the first gateway for MQTT over WebSocket, path /mqtt, on the host "
        "of conf/gateway.toml. 0: none. `bin/mqlake up --websocket-port` overrides it.",
    )
    log_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of the log on 127.0.0.1. Default: the last one used, otherwise a free "
        "one.",
        examples=[9092],
    )
    min_available_memory_mb: int = Field(
        default=2_500,
        ge=0,
        description="Minimum available memory, MB; with less `bin/mqlake up` refuses to start.",
    )
    min_free_disk_mb: int = Field(
        default=2_000,
        ge=0,
        description="Minimum free disk space, MB; with less `bin/mqlake up` refuses to start.",
    )
    hang_seconds: float = Field(
        default=60.0,
        ge=0.0,
        description="A process that gives no sign of life for this time is ended and started "
        "again (three times as long: one with Java); its stacks are in its file in data/logs. On a "
        "loaded machine it takes longer. 0: never, as for a debugger.",
    )
    ready_timeout_seconds: float = Field(
        default=180.0,
        gt=0,
        description="`bin/mqlake up` fails if the system is not healthy within this time.",
    )

    @model_validator(mode="after")
    def _one_broker_has_no_copies(self) -> Self:
        if self.durability is Durability.D2 and not self.log_servers:
            raise ValueError(
                "durability D2 takes a log of three brokers: name them in log_servers "
                "(the embedded log has one)"
            )
        if self.log_security_file is not None and not self.log_servers:
            raise ValueError("log_security_file is for a log of your own: name it in log_servers")
        return self
