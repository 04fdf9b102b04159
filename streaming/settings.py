"""Settings of the Spark application (`mqlake streaming`); `conf/streaming.toml` shows every key."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from mqlake.settings import LogSettings, ProcessSettings


class SparkSettings(ProcessSettings):
    """What every process with Spark may be told."""

    data_dir: Path = Field(
        default=Path("data"),
        description="Folder with tables/<name> (Delta tables), checkpoints/<query> and "
        "temporary files.",
    )
    jars_dir: Path = Field(
        default=Path(".runtime/jars"),
        description="Folder; spark/*.jar are the parts that pyspark itself lacks (Kafka "
        "connector, Delta), build/*.jar the Java compiler.",
    )
    master: str = Field(
        default="local[*]",
        description="Spark master.",
    )
    spark: dict[str, str] = Field(
        default_factory=dict,
        description="Further Spark configuration, each key quoted; wins over the "
        "application's own.",
        examples=[{"spark.executor.memory": "1g"}],
    )


class StreamingSettings(SparkSettings):
    """Settings of the Spark application.

    Read by `bin/mqlake streaming --config conf/streaming.toml`. `bin/mqlake up` sets folders,
    rules_key, retention and the log's servers itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_STREAMING_")

    log: LogSettings = LogSettings()

    master: str = Field(
        default="local[32]",
        description="Spark master. Real-time routing keeps one task slot for each partition "
        "of mqlake.inbound, real-time rules as many and one more; a query that finds too few "
        "slots (local[N], local-cluster[workers,N,MiB]) runs in micro-batches.",
    )
    rules_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="Key of 32 characters or more with which activations of rules are signed; "
        "it is for this application alone. Without it everybody who can write the log may "
        "have Spark run any expression. Better given by the environment: "
        "MQLAKE_STREAMING_RULES_KEY.",
        examples=["…"],
    )
    log_dir: Path | None = Field(
        default=None,
        description="Folder of an embedded log with its partitions. Without it the size of "
        "log topics does not count, only age.",
        examples=[Path("data/kafka/log")],
    )
    log_retention_hours: float | None = Field(
        default=None,
        gt=0,
        description="Older messages are deleted from the log once all queries have read them. "
        "`bin/mqlake up` sets it from conf/local.toml. Without it nothing is deleted here; a "
        "log of your own must then keep what is not read yet.",
        examples=[168.0],
    )
    log_retention_bytes: int = Field(
        default=10 * 1000**3,
        ge=64 * 1024**2,
        description="Likewise beyond so many bytes of an embedded log, the oldest first.",
    )
    driver_memory_mb: int = Field(
        default=640,
        ge=384,
        description="Java heap of the driver, MiB.",
    )
    router_trigger: Literal["real-time", "micro-batch"] = Field(
        default="real-time",
        description='"micro-batch" where real-time mode is not to be had; it adds about 0.1 s '
        "to each delivery.",
    )
    router_batch_seconds: float | None = Field(
        default=None,
        ge=1.0,
        le=86_400.0,
        description="Length of a real-time batch of router and rules; each boundary pauses "
        "them for some 0.3 s. Without it a day; 120 s with a master that is not local[…], "
        "where a crash repeats a whole batch and not a second.",
        examples=[86_400.0],
    )
    history_interval_seconds: float = Field(
        default=2.0,
        ge=0.5,
        le=3600.0,
        description="Messages are appended to the table `messages` so often.",
    )
    history_max_records: int = Field(
        default=200_000,
        ge=1_000,
        description="Most records of one append; bounds its memory when it catches up.",
    )
    state_interval_seconds: float = Field(
        default=5.0,
        ge=0.5,
        le=3600.0,
        description="The tables `retained`, `sessions`, `subscriptions`, `events` and `drops` "
        "follow the log so often, at most. After a step that took all there was they rest for "
        "twelve times as long, 15 s at most.",
    )
    state_max_records: int = Field(
        default=200_000,
        ge=1_000,
        description="Most records of one such step; bounds its memory when it catches up.",
    )
    rules_pause_failures: int = Field(
        default=100,
        ge=1,
        description="A rule that fails so often within a minute, and on more than "
        "rules_pause_share of its evaluations, is paused. Of the failures that one user, or a "
        "client without one, causes, 10 messages a minute count, of one address 50: nobody "
        "can have it paused alone.",
    )
    rules_pause_share: float = Field(
        default=0.5,
        ge=0.0,
        le=1.0,
        description="Share of the evaluations of a rule, see rules_pause_failures.",
    )
    stateful_interval_seconds: float = Field(
        default=1.0,
        ge=0.2,
        le=60.0,
        description="Stateful rules (windows, joins, detections) take new messages so often; "
        "less often when there are many rules.",
    )
    stateful_partitions: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Tasks among which one stateful rule is shared out; of rules that start "
        "from then on.",
    )
    outputs_interval_seconds: float = Field(
        default=2.0,
        ge=0.5,
        le=3600.0,
        description="Rows that rules write to tables, and dead letters, are appended so often.",
    )

    @property
    def real_time_batch_seconds(self) -> float:
        """How long a real-time batch is; how far its tasks are is known of our own JVM alone."""
        default = 86_400.0 if self.master.startswith("local[") else 120.0
        return self.router_batch_seconds or default
