"""Settings of the query application (`mqlake query`); `conf/query.toml` shows every key."""

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from streaming.settings.spark import SparkSettings


class QuerySettings(SparkSettings):
    """Settings of the query application.

    Read by `bin/mqlake query --config conf/query.toml`. It is the Spark application for SQL, trials
    of rules, dry runs, backfills and deletions. `bin/mqlake up` sets data_dir, jars_dir,
    connect_port and connect_token itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_QUERY_")

    master: str = Field(
        default="local[8]",
        description="Spark master. A query has two tasks, so 8 slots run four queries at once. "
        'Executors on other machines ("spark://…") must find the tables under the same path.',
    )
    connect_port: int = Field(
        default=15002,
        ge=1,
        le=65535,
        description="TCP port of Spark Connect, on 127.0.0.1 only. With `bin/mqlake up`, a free "
        "port unless it is set.",
    )
    connect_token: SecretStr = Field(
        description="Bearer token that Spark Connect requires. Better set in the environment: "
        "MQLAKE_QUERY_CONNECT_TOKEN.",
        examples=["…"],
    )
    start: Literal["first-use", "with-system"] = Field(
        default="first-use",
        description='"first-use": Spark starts with the first query and shuts down when idle. '
        '"with-system": Spark starts when the system is ready and enough memory is available, and '
        "keeps running, so no query waits for it.",
    )
    idle_seconds: float = Field(
        default=600.0,
        ge=1.0,
        le=86_400.0,
        description='With start = "first-use", Spark shuts down after this time without use.',
    )
    start_timeout_seconds: float = Field(
        default=600.0,
        ge=10.0,
        le=3_600.0,
        description="Timeout for the start of Spark. A start takes about 5 s, on busy processors "
        "minutes, since it runs at low priority.",
    )
    heap_mb: int = Field(
        default=640,
        ge=512,
        le=65_536,
        description="Java heap, MiB. A query that needs more fails and ends Spark.",
    )
    niceness: int = Field(
        default=5,
        ge=0,
        le=19,
        description="Niceness of the process, as nice(1). When processors are busy, 5 gives it a "
        "quarter of a normal process's share, 10 a tenth; idle processors it can use fully.",
    )
    cores: int | None = Field(
        default=None,
        ge=1,
        description="Number of processors to use. Without it all.",
        examples=[1],
    )
