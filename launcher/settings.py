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
        description="A log of your own, Kafka or one that speaks its protocol, at "
        "host:port[,host:port…]. Its topics are made as `bin/mqlake log prepare` makes them. "
        "`bin/mqlake up --log-servers` wins. Empty: the embedded log.",
    )
    log_security_file: Path | None = Field(
        default=None,
        description="TOML file that says how the log at log_servers lets a client in: "
        "protocol, login, certificates (docs/security.md#the-log). The embedded log has its "
        "own, in the data directory.",
        examples=[Path("/etc/mqlake/log-security.toml")],
    )
    durability: Durability = Field(
        default=Durability.D1,
        description='What an acknowledged message outlives (docs/durability.md): "D1" '
        'every process; in a power failure messages of the last half minute may be lost. "D3" '
        "also a power failure: it is on the disk before it is acknowledged, which takes "
        'longer. "D2" is for a log of your own with three brokers (log_servers): two of them '
        "have it.",
    )
    log_retention_hours: float = Field(
        default=168.0,
        gt=0,
        description="An accepted message may be deleted from the embedded log after so long, "
        "once it is routed, in the tables, and evaluated by all rules.",
    )
    log_retention_bytes: int = Field(
        default=10 * 1000**3,
        ge=64 * 1024**2,
        description="Likewise beyond so many bytes of all messages together; the oldest go "
        "first, in pieces of up to 256 MiB.",
    )
    log_max_bytes: int | None = Field(
        default=None,
        ge=128 * 1024**2,
        description="With more than this in the log's folder, publishers are refused with "
        "0x97. More than log_retention_bytes, or nobody can publish for long. Without it only "
        "when the disk is nearly full (min_free_disk_bytes in conf/gateway.toml).",
        examples=[50_000_000_000],
    )
    log_partitions: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Partitions of a new log. `bin/mqlake log grow` puts messages into more while "
        "the system runs.",
    )
    session_shards: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Shards of the sessions of a new log, which gateways share out. They "
        "stay. Many gateways need more, 64 for some dozens.",
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
        description="Port of the first gateway for MQTT over WebSocket, path /mqtt, on the "
        "host of conf/gateway.toml. 0: none. `bin/mqlake up --websocket-port` wins.",
    )
    log_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of the log on 127.0.0.1. Without it: the one it had last time, else "
        "a free one.",
        examples=[9092],
    )
    min_available_memory_mb: int = Field(
        default=2_500,
        ge=0,
        description="With less available memory than this, MB, `bin/mqlake up` refuses to start.",
    )
    min_free_disk_mb: int = Field(
        default=2_000,
        ge=0,
        description="With less free disk space than this, MB, `bin/mqlake up` refuses to start.",
    )
    ready_timeout_seconds: float = Field(
        default=180.0,
        gt=0,
        description="`bin/mqlake up` gives up when not everything is healthy by then.",
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
