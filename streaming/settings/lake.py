"""Settings of the lake (`mqlake lake`); `conf/lake.toml` shows every key."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from mqlake.settings import LogDiskSettings
from streaming.settings.spark import StreamingSettings


class LakeSettings(StreamingSettings):
    """Settings of the lake.

    Read by `bin/mqlake lake --config conf/lake.toml`. The lake is the Spark application that writes
    the tables, runs stateful rules and deletes records from the log. `bin/mqlake up` sets folders,
    rules_key, retention and the log's servers itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_LAKE_")

    log_disk: LogDiskSettings = LogDiskSettings()

    master: str = Field(
        default="local[8]",
        description="Spark master. With more task slots more stateful rules run at the same time.",
    )
    niceness: int = Field(
        default=5,
        ge=0,
        le=19,
        description="Niceness of the process, as nice(1), while the table `messages` is up to "
        "date. When processors are busy, 5 gives it a quarter of a normal process's share, 10 a "
        "tenth; idle processors it can use fully. When the table is 5 seconds behind, the lake has "
        "a normal share; at 8 seconds three times that and at 12 nine times, where this is "
        "allowed. 0: always a normal share.",
    )
    log_retention_hours: float | None = Field(
        default=None,
        gt=0,
        description="Messages older than this are deleted from the log once all queries have read "
        "them. `bin/mqlake up` sets it from conf/local.toml. Without it the lake deletes nothing; "
        "a log of your own must then keep unread records.",
        examples=[168.0],
    )
    log_retention_bytes: int = Field(
        default=10 * 1000**3,
        ge=64 * 1024**2,
        description="Maximum bytes of an embedded log (log_disk.folder); beyond it the oldest "
        "messages are deleted in the same way.",
    )
    history_interval_seconds: float = Field(
        default=2.0,
        ge=0.5,
        le=3600.0,
        description="Interval at which messages are appended to the table `messages`.",
    )
    history_max_records: int = Field(
        default=500_000,
        ge=1_000,
        description="Maximum records of one append, while the lake catches up.",
    )
    state_interval_seconds: float = Field(
        default=5.0,
        ge=0.5,
        le=3600.0,
        description="Minimum interval at which the tables `retained`, `sessions`, "
        "`subscriptions`, `events` and `drops` are updated from the log. After an update that has "
        "caught up they pause for twelve times its duration, at most 15 s.",
    )
    state_max_records: int = Field(
        default=500_000,
        ge=1_000,
        description="Maximum records of one such update, while the lake catches up.",
    )
    stateful_interval_seconds: float = Field(
        default=1.0,
        ge=0.2,
        le=60.0,
        description="Interval at which stateful rules (windows, joins, detections) read new "
        "messages; longer when there are many rules.",
    )
    stateful_partitions: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of tasks of a stateful rule; applies to rules that start after a "
        "change.",
    )
    outputs_interval_seconds: float = Field(
        default=2.0,
        ge=0.5,
        le=3600.0,
        description="Interval at which dead letters, and rows that rules write to tables, are "
        "appended.",
    )
