"""The records of schemas, in `mqlake.rules`: there they stand in one order with the rules.

`docs/records.md` is this module in prose. The value is a version of a schema as JSON, see
`rules.schemas.model`; a tombstone deletes it.
"""

from dataclasses import dataclass

from mqlake.records.rules import Kind


@dataclass(slots=True, frozen=True)
class SchemaKey:
    """A version of a schema; neither a tenant nor the name of a schema holds a slash."""

    tenant: str
    name: str
    version: int


def schema_key(key: SchemaKey) -> bytes:
    return f"{Kind.SCHEMA}/{key.tenant}/{key.name}/{key.version}".encode()
