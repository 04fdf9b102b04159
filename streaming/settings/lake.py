"""Settings of the lake (`mqlake lake`); `conf/lake.toml` shows every key."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from streaming.settings.spark import StreamingSettings


class LakeSettings(StreamingSettings):
    """Settings of the lake.

    Read by `bin/mqlake lake --config conf/lake.toml`. It is Spark that keeps the tables and
    stateful rules, and deletes from the log. `bin/mqlake up` sets folders, rules_key, retention
    and the log's servers itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_LAKE_")

    master: str = Field(
        default="local[8]",
        description="Spark master. More task slots let more stateful rules work at a time.",
    )
    niceness: int = Field(
        default=5,
        ge=0,
        le=19,
        description="By how much it gives way to the rest of the system, as nice(1): of "
        "processors that both want it gets a quarter with 5, a tenth with 10; idle ones it "
        "gets all the same.",
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
