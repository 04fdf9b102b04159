"""Settings of the router (`mqlake router`); `conf/router.toml` shows every key."""

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from streaming.settings.spark import StreamingSettings


class RouterSettings(StreamingSettings):
    """Settings of the router.

    Read by `bin/mqlake router --config conf/router.toml`. It is Spark that routes messages and
    evaluates stateless rules. `bin/mqlake up` sets folders, rules_key and the log's servers
    itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_ROUTER_")

    master: str = Field(
        default="local[32]",
        description="Spark master. Real-time routing keeps one task slot for each partition "
        "of mqlake.inbound, real-time rules as many and one more; a query that finds too few "
        "slots (local[N], local-cluster[workers,N,MiB]) runs in micro-batches.",
    )
    trigger: Literal["real-time", "micro-batch"] = Field(
        default="real-time",
        description='"micro-batch" where real-time mode is not to be had; it adds about 0.1 s '
        "to each delivery.",
    )
    batch_seconds: float | None = Field(
        default=None,
        ge=1.0,
        le=86_400.0,
        description="Length of a real-time batch of router and rules; each boundary pauses "
        "them for some 0.3 s. Without it a day; 120 s with a master that is not local[…], "
        "where a crash repeats a whole batch and not a second.",
        examples=[86_400.0],
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
    rules_ms_per_second: int = Field(
        default=0,
        ge=0,
        description="Milliseconds of processor time a second, over a minute, that the rules of a "
        "tenant without a limit of its own (rule_ms_per_second) may take; 1000 are a whole "
        "processor. Beyond, the costliest of them is paused. 0: any number.",
    )

    @property
    def real_time_batch_seconds(self) -> float:
        """How long a real-time batch is; how far its tasks are is known of our own JVM alone."""
        default = 86_400.0 if self.master.startswith("local[") else 120.0
        return self.batch_seconds or default
