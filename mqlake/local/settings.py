"""Settings of the one-machine launcher (`mqlake up`); `conf/local.toml` shows every key."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from mqlake.log.durability import Durability
from mqlake.settings import ProcessSettings


class LocalSettings(ProcessSettings):
    """What the machine must offer, and the log."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_LOCAL_")

    log_servers: str = Field(
        default="",
        description="use this log, Kafka at host:port[,host:port…]; without it an embedded one",
    )
    log_security_file: Path | None = Field(
        default=None,
        description="TOML that says how the log at log_servers lets one in; the embedded one has "
        "its own",
    )
    durability: Durability = Field(
        default=Durability.D1,
        description="what an acknowledged message outlives: D1 every process; D2 also the loss of "
        "one of three brokers (log_servers); D3 also that the power fails: it is on the disk "
        "before it is acknowledged",
    )
    log_retention_hours: float = Field(
        default=168.0,
        gt=0,
        description="an accepted message may go from the log after so long, once it is read: "
        "routed, in the tables, evaluated by all rules",
    )
    log_retention_bytes: int = Field(
        default=10 * 1000**3,
        ge=64 * 1024**2,
        description="likewise what is beyond this of them all together, the oldest first",
    )
    log_max_bytes: int | None = Field(
        default=None,
        ge=128 * 1024**2,
        description="with more than this in the log's folder publishers are refused; without it "
        "only when the disk is nearly full (min_free_disk_bytes in conf/gateway.toml)",
    )
    log_partitions: int = Field(
        default=4,
        ge=1,
        le=64,
        description="partitions of a new log; they stay, as they decide the order of topics",
    )
    session_shards: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="parts into which the sessions of a new log are divided; they stay. Gateways "
        "share them out: many gateways need more, 64 for some dozens",
    )
    log_heap_mb: int = Field(default=256, ge=128, description="Java heap of the log, MiB")
    websocket_port: int = Field(
        default=8083,
        ge=0,
        le=65535,
        description="port of the first gateway for MQTT over WebSocket; 0 for none",
    )
    log_port: int | None = Field(
        default=None, ge=1, le=65535, description="port of the log; without one a free one"
    )
    min_available_memory_mb: int = Field(
        default=2_500, ge=0, description="less available memory than this and `up` refuses, MB"
    )
    min_free_disk_mb: int = Field(
        default=2_000, ge=0, description="less free disk than this and `up` refuses, MB"
    )
    ready_timeout_seconds: float = Field(
        default=180.0, gt=0, description="`up` gives up when not everything is healthy by then"
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
