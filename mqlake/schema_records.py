"""The records of schemas, in `mqlake.rules`: there they stand in one order with the rules.

`docs/records.md` is this module in prose. The value is a version of a schema as JSON, see
`rules.schemas.model`; a tombstone deletes it.
"""

from dataclasses import dataclass
from typing import Final

_LETTER: Final = "s"


@dataclass(slots=True, frozen=True)
class SchemaKey:
    """A version of a schema; neither a tenant nor the name of a schema holds a slash."""

    tenant: str
    name: str
    version: int


def schema_key(key: SchemaKey) -> bytes:
    return f"{_LETTER}/{key.tenant}/{key.name}/{key.version}".encode()


def decode_schema_key(data: bytes) -> SchemaKey | None:
    """Read a key of `mqlake.rules`; None for one that is of another kind."""
    parts = data.decode(errors="replace").split("/")
    if len(parts) != 4 or parts[0] != _LETTER or not parts[3].isdecimal():
        return None
    return SchemaKey(parts[1], parts[2], int(parts[3]))
