"""Settings that the applications of Spark share; each has a class and a file of its own."""

from pathlib import Path

from pydantic import Field, SecretStr

from mqlake.settings import LogSettings, ProcessSettings


class SparkSettings(ProcessSettings):
    """Settings of every process with Spark."""

    data_dir: Path = Field(
        default=Path("data"),
        description="Folder for tables/<name> (Delta tables), checkpoints/<query> and temporary "
        "files.",
    )
    jars_dir: Path = Field(
        default=Path(".runtime/jars"),
        description="Folder of jars that pyspark does not include: spark/*.jar (Kafka connector, "
        "Delta) and build/*.jar (Java compiler).",
    )
    master: str = Field(
        default="local[*]",
        description="Spark master.",
    )
    spark: dict[str, str] = Field(
        default_factory=dict,
        description="Additional Spark configuration, each key quoted; overrides the application's "
        "own.",
        examples=[{"spark.executor.memory": "1g"}],
    )


class StreamingSettings(SparkSettings):
    """Settings of the processes with Spark that read the log: router and lake."""

    log: LogSettings = LogSettings()

    rules_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="Key of 32 characters or more that signs activations of rules; the same for "
        "router and lake, and for no one else. Without it everyone who can write to the log can "
        "make Spark run any expression. Better set in the environment: MQLAKE_ROUTER_RULES_KEY, "
        "MQLAKE_LAKE_RULES_KEY.",
        examples=["…"],
    )
    heap_mb: int = Field(
        default=512,
        ge=480,
        description="Java heap, MiB; Spark needs at least 480.",
    )
