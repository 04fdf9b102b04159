"""Settings that the applications of Spark share; each has a class and a file of its own."""

from pathlib import Path

from pydantic import Field, SecretStr

from mqlake.settings import LogSettings, ProcessSettings


class SparkSettings(ProcessSettings):
    """Settings of every process with Spark."""

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
    """Settings of the processes with Spark that read the log: router and lake."""

    log: LogSettings = LogSettings()

    rules_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="Key of 32 characters or more with which activations of rules are signed; "
        "it is for router and lake alone, the same for both. Without it everybody who can write "
        "the log may have Spark run any expression. Better given by the environment: "
        "MQLAKE_ROUTER_RULES_KEY, MQLAKE_LAKE_RULES_KEY.",
        examples=["…"],
    )
    heap_mb: int = Field(
        default=512,
        ge=480,
        description="Java heap, MiB; Spark does not start with less than 480.",
    )
