"""Settings of the Spark application (`mqlake streaming`); `conf/streaming.toml` shows every key."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from mqlake.settings import LogSettings, ProcessSettings


class SparkSettings(ProcessSettings):
    """What every process with Spark may be told."""

    data_dir: Path = Field(
        default=Path("data"), description="holds tables/<name> and checkpoints/<query>"
    )
    jars_dir: Path = Field(
        default=Path(".runtime/jars"),
        description="holds spark/*.jar, what pyspark itself lacks, and the compiler, build/*.jar",
    )
    master: str = Field(default="local[*]", description="Spark master")
    spark: dict[str, str] = Field(
        default_factory=dict, description="further Spark configuration; wins over everything else"
    )


class StreamingSettings(SparkSettings):
    """What the Spark application may be told."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_STREAMING_")

    log: LogSettings = LogSettings()

    master: str = Field(
        default="local[32]",
        description="Spark master; real-time routing keeps one task slot for each partition of "
        "mqlake.inbound, real-time rules as many and one more: what finds too few slots runs in "
        "micro-batches",
    )
    rules_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="key with which activations of rules are signed, for this application alone; "
        "without one whoever can write the log may have Spark run any expression",
    )
    log_dir: Path | None = Field(
        default=None,
        description="folder of an embedded log with its partitions; without one the size of log "
        "topics does not count, only age",
    )
    log_retention_hours: float | None = Field(
        default=None,
        gt=0,
        description="messages older than this are deleted from the log once everybody who reads "
        "them has; without it the log deletes by itself, whether they are read or not",
    )
    log_retention_bytes: int = Field(
        default=10 * 1000**3,
        ge=64 * 1024**2,
        description="likewise what is beyond this of them all together, the oldest first",
    )
    driver_memory_mb: int = Field(default=640, ge=384, description="Java heap of the driver, MiB")
    router_trigger: Literal["real-time", "micro-batch"] = Field(
        default="real-time",
        description="micro-batch where real-time mode is not to be had; it adds about 0.1 s",
    )
    router_batch_seconds: float | None = Field(
        default=None,
        ge=1.0,
        le=86_400.0,
        description="length of a real-time batch of router and rules; each boundary pauses them "
        "for some 0.3 s; without it a day, or 120 s with a master that is not local[…], where a "
        "crash repeats a whole batch",
    )
    history_interval_seconds: float = Field(
        default=2.0, ge=0.5, le=3600.0, description="how often messages are appended to the table"
    )
    history_max_records: int = Field(
        default=200_000, ge=1_000, description="most records of one append, bounds its memory"
    )
    state_interval_seconds: float = Field(
        default=5.0,
        ge=0.5,
        le=3600.0,
        description="how often the tables of retained messages, sessions and events follow the "
        "log, at most; they rest when they have caught up",
    )
    state_max_records: int = Field(
        default=200_000, ge=1_000, description="most records of one such step, bounds its memory"
    )
    rules_pause_failures: int = Field(
        default=100,
        ge=1,
        description="a rule that fails so often within a minute, and on more than the share below "
        "of what it is evaluated on, is paused; of what one user, or client without one, makes it "
        "fail on 10 messages a minute count, of one address 50",
    )
    rules_pause_share: float = Field(default=0.5, ge=0.0, le=1.0, description="see above")
    stateful_interval_seconds: float = Field(
        default=1.0,
        ge=0.2,
        le=60.0,
        description="how often rules with memory (windows, joins, detections) take what is new, "
        "less often when there are many",
    )
    stateful_partitions: int = Field(
        default=1,
        ge=1,
        le=64,
        description="how many tasks one rule with memory is shared out to; of rules that start "
        "from then on",
    )
    outputs_interval_seconds: float = Field(
        default=2.0,
        ge=0.5,
        le=3600.0,
        description="how often what rules write to tables, and dead letters, are appended",
    )

    @property
    def real_time_batch_seconds(self) -> float:
        """How long a real-time batch is; how far its tasks are is known of our own JVM alone."""
        default = 86_400.0 if self.master.startswith("local[") else 120.0
        return self.router_batch_seconds or default
