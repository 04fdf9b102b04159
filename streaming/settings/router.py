"""Settings of the router (`mqlake router`); `conf/router.toml` shows every key."""

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from streaming.settings.spark import StreamingSettings


class RouterSettings(StreamingSettings):
    """Settings of the router.

    Read by `bin/mqlake router --config conf/router.toml`. The router is the Spark application that
    routes messages and evaluates stateless rules. `bin/mqlake up` sets folders, rules_key and the
    log's servers itself.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_ROUTER_")

    master: str = Field(
        default="local[32]",
        description="Spark master. Real-time routing occupies one task slot per partition of "
        "mqlake.inbound, real-time rules as many plus one; a query without enough slots "
        "(local[N], local-cluster[workers,N,MiB]) runs in micro-batches.",
    )
    trigger: Literal["real-time", "micro-batch"] = Field(
        default="real-time",
        description='"micro-batch" if real-time mode is not available; it adds about 0.1 s to '
        "each delivery.",
    )
    batch_seconds: float | None = Field(
        default=None,
        ge=1.0,
        le=86_400.0,
        description="Length of a real-time batch of router and rules; each boundary pauses them "
        "for about 0.3 s. Default: a day; 120 s with a master other than local[…], where a crash "
        "repeats a whole batch instead of one second.",
        examples=[86_400.0],
    )
    rules_pause_failures: int = Field(
        default=100,
        ge=1,
        description="A rule is paused when it fails this often within a minute and on more than "
        "rules_pause_share of its evaluations. At most 10 failed messages a minute count per user "
        "(or client without a user), and 50 per address, so that no single client can have a rule "
        "paused.",
    )
    rules_pause_share: float = Field(
        default=0.5,
        ge=0.0,
        le=1.0,
        description="Minimum share of failed evaluations, see rules_pause_failures.",
    )
    rules_ms_per_second: int = Field(
        default=0,
        ge=0,
        description="Milliseconds of processor time per second, over a minute, for the rules of a "
        "tenant without its own limit (rule_ms_per_second); 1000 is one processor. Beyond it the "
        "costliest rule is paused. 0: no limit.",
    )

    @property
    def real_time_batch_seconds(self) -> float:
        """How long a real-time batch is; how far its tasks are is known of our own JVM alone."""
        default = 86_400.0 if self.master.startswith("local[") else 120.0
        return self.batch_seconds or default
