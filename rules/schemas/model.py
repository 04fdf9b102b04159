"""A schema as users define it and as the log topic `mqlake.rules` keeps it.

Field names are those of EMQX's schema registry.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_SOURCE_CHARACTERS: Final = 131_072
MAX_DESCRIPTION_CHARACTERS: Final = 2_000
MAX_VERSIONS: Final = 1_000
"""Versions of one schema; they stay until they are deleted."""
MAX_SCHEMAS: Final = 1_000
"""Most schemas of a tenant."""
SPARKPLUG_B: Final = "sparkplug_b"
"""Name of the schema that is always there."""

SchemaName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
SchemaType = Literal["avro", "protobuf"]


class SchemaBody(BaseModel):
    """The user's part of a schema."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: SchemaType = Field(description="how payloads are encoded")
    source: str = Field(
        min_length=1,
        max_length=MAX_SOURCE_CHARACTERS,
        description="avro: the schema as JSON text; protobuf: the text of a .proto file",
    )
    message_type: str | None = Field(
        default=None,
        max_length=500,
        description="protobuf: the message of a payload, unless a rule names another; null: the "
        "first one",
    )
    description: str = Field(
        default="", max_length=MAX_DESCRIPTION_CHARACTERS, description="for people"
    )


class Schema(SchemaBody):
    """One version of a schema."""

    name: SchemaName
    tenant: str = "default"
    version: int = Field(default=1, ge=1, description="counts up with each change")
    created_at: int = Field(description="of this version, milliseconds UTC")
    layout: dict[str, Any] = Field(description="what it was compiled to")
