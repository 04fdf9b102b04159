"""Settings of the query application (`mqlake query`); `conf/query.toml` shows every key."""

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from streaming.settings.spark import SparkSettings


class QuerySettings(SparkSettings):
    """Settings of the query application.

    Read by `bin/mqlake query --config conf/query.toml`. It is Spark for SQL, trials of rules, dry
    runs, backfills and deletions. `bin/mqlake up` sets data_dir, jars_dir, connect_port and
    connect_token itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_QUERY_")

    master: str = Field(
        default="local[8]",
        description="Spark master. A query has two tasks, so these slots are for four queries "
        'at once. Executors elsewhere ("spark://…") must find the tables at the same place.',
    )
    connect_port: int = Field(
        default=15002,
        ge=1,
        le=65535,
        description="TCP port of Spark Connect, on 127.0.0.1 only. Under `bin/mqlake up` a "
        "free one unless it is set.",
    )
    connect_token: SecretStr = Field(
        description="Bearer token that Spark Connect asks for. Better given by the "
        "environment: MQLAKE_QUERY_CONNECT_TOKEN.",
        examples=["…"],
    )
    start: Literal["first-use", "with-system"] = Field(
        default="first-use",
        description='"first-use": Spark starts with the first query, and ends when it is '
        'idle. "with-system": it starts when the system is ready and the machine has the '
        "memory, and stays: no query waits for it.",
    )
    idle_seconds: float = Field(
        default=600.0,
        ge=1.0,
        le=86_400.0,
        description='With start = "first-use", Spark ends when nobody has used it for so long.',
    )
    start_timeout_seconds: float = Field(
        default=600.0,
        ge=10.0,
        le=3_600.0,
        description="A start that takes longer has failed. It takes five seconds, on busy "
        "processors minutes: it gives way.",
    )
    heap_mb: int = Field(
        default=640,
        ge=512,
        le=65_536,
        description="Java heap, MiB. A query that needs more ends Spark, and its caller is told.",
    )
    niceness: int = Field(
        default=5,
        ge=0,
        le=19,
        description="By how much it gives way to the rest of the system, as nice(1): of "
        "processors that both want it gets a quarter with 5, a tenth with 10; idle ones it "
        "gets all the same.",
    )
    cores: int | None = Field(
        default=None,
        ge=1,
        description="Processors that it may use. Without it all.",
        examples=[1],
    )
