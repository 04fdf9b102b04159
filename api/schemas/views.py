"""Schemas as the API shows and takes them; names are those of EMQX's schema registry."""

import json
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from rules.schemas.model import SPARKPLUG_B, Schema, SchemaBody, SchemaName

_EXAMPLE: JsonDict = {
    "name": "boiler",
    "type": "avro",
    "source": json.dumps(
        {
            "type": "record",
            "name": "Boiler",
            "fields": [{"name": "celsius", "type": "double"}, {"name": "bar", "type": "float"}],
        }
    ),
}


class NewSchema(SchemaBody):
    """A new schema."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: SchemaName

    def body(self) -> SchemaBody:
        return SchemaBody(**{name: getattr(self, name) for name in SchemaBody.model_fields})


class SchemaView(BaseModel):
    """One version of a schema."""

    name: str
    version: int = Field(description="0 for a built-in one")
    type: str = Field(description="avro or protobuf; sparkplug_b is built in")
    source: str = Field(description="its text; empty for a built-in one")
    message_type: str | None = Field(description="protobuf: the message of a payload")
    message_types: list[str] = Field(description="protobuf: all messages")
    description: str
    created_at: datetime | None = Field(description="of this version")


class SchemaDetails(SchemaView):
    versions: list[int] = Field(description="that rules can name, the newest first")
    rules: list[str] = Field(description="that decode with it")


SPARKPLUG_VIEW = SchemaView(
    name=SPARKPLUG_B,
    version=0,
    type=SPARKPLUG_B,
    source="",
    message_type=None,
    message_types=[],
    description="payloads of Sparkplug B, built in",
    created_at=None,
)


def view_schema(schema: Schema) -> SchemaView:
    messages = schema.layout.get("messages", {})
    return SchemaView(
        name=schema.name,
        version=schema.version,
        type=schema.type,
        source=schema.source,
        message_type=schema.layout.get("root"),
        message_types=[
            name
            for name in messages
            if not name.startswith("google.protobuf.") and not name.endswith("Entry")
        ],
        description=schema.description,
        created_at=datetime.fromtimestamp(schema.created_at / 1000, tz=UTC),
    )
