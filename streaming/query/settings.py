"""Settings of the query application (`mqlake query`); `conf/query.toml` shows every key."""

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from streaming.settings import SparkSettings


class QuerySettings(SparkSettings):
    """What the query application may be told."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_QUERY_")

    master: str = Field(
        default="local[8]",
        description="Spark master; a query has two tasks, so these slots are for four at once",
    )
    connect_port: int = Field(
        default=15002, ge=1, le=65535, description="Spark Connect, on 127.0.0.1 only"
    )
    connect_token: SecretStr = Field(description="bearer token that Spark Connect asks for")
    start: Literal["first-use", "with-system"] = Field(
        default="first-use",
        description="first-use: Spark starts with the first query, and ends when it is idle; "
        "with-system: it starts when the system is ready, and stays",
    )
    idle_seconds: float = Field(
        default=600.0,
        ge=1.0,
        le=86_400.0,
        description="Spark ends when nobody has used it for so long, with start = first-use",
    )
    start_timeout_seconds: float = Field(
        default=600.0, ge=10.0, le=3_600.0, description="a start that takes longer has failed"
    )
    heap_mb: int = Field(default=640, ge=512, le=65_536, description="Java heap, MiB")
    niceness: int = Field(
        default=5,
        ge=0,
        le=19,
        description="by how much it gives way to the rest of the system, as nice(1): of what both "
        "want it gets a quarter with 5, a tenth with 10",
    )
    cores: int | None = Field(
        default=None, ge=1, description="processors that it may use; None: all"
    )
