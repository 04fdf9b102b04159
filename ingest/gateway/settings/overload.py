"""Measures against overload, as settings."""

from pydantic import Field

from mqlake.settings import SettingsGroup


class OverloadSettings(SettingsGroup):
    """Measures against overload (docs/observability.md#overload)."""

    highest_step: int = Field(
        default=4,
        ge=0,
        le=4,
        description="Highest measure to take: 1 publishers are slowed down, 2 publishers are not "
        "read, 3 new clients are refused (0x89, 3.x: 3), 4 the client that uses most memory is "
        "disconnected (0x97). 0: none.",
    )
    memory_bytes: int = Field(
        default=0,
        ge=0,
        description="Maximum resident memory of the gateway. 0: half the memory of the machine or "
        "container.",
    )
