"""The records of reference tables, in `mqlake.rules`: requests, and their results.

`docs/records.md` is this module in prose. The API appends requests, the lake,
which writes all tables, carries them out and appends a state. The rows themselves are in a file
that the API has written before: `<data-dir>/references/<upload>`, a JSON object a line.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from mqlake.records.members import LIST, load, member, refusal, texts, to_dataclass
from mqlake.records.rule_facts import Fact, read_fact
from mqlake.records.rule_tables import tenant_hash
from mqlake.records.rules import Kind
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.records.versions import RECORD_VERSION

REFERENCE_TABLE_PREFIX: Final = "reference_"
UPLOADS: Final = "references"
"""Folder of uploads in the data directory."""

ColumnType = Literal["STRING", "BIGINT", "DOUBLE", "BOOLEAN"]
COLUMN_TYPES: Final[tuple[ColumnType, ...]] = get_args(ColumnType)
RequestKind = Literal["put", "rollback", "delete"]
State = Literal["ready", "failed", "deleted"]
KeyKind = Literal["request", "state"]
Columns = tuple[tuple[str, ColumnType], ...]
"""Name and type of each column, in order."""


@dataclass(slots=True, frozen=True)
class ReferenceKey:
    """A key of `mqlake.rules` about a reference table."""

    kind: KeyKind
    tenant: str
    reference: str


def reference_key(key: ReferenceKey) -> bytes:
    return f"{Kind[key.kind.upper()]}/{key.tenant}/{key.reference}".encode()


def decode_reference_key(data: bytes) -> ReferenceKey | None:
    """Read a key of `mqlake.rules`; None for one that is of another kind."""
    match read_fact(data, None):
        case Fact(Kind.REQUEST, name):
            return ReferenceKey("request", *name)
        case Fact(Kind.STATE, name):
            return ReferenceKey("state", *name)
    return None


@dataclass(slots=True, frozen=True)
class ReferenceRequest:
    """Request of the API.

    Attributes:
        number: Counts up with each request for this reference, deleted or not.
        upload: Name of the file with the rows; of put.
        version: Version of the table to go back to, for a rollback.
        at: Time of the request, milliseconds UTC.
    """

    tenant: str
    reference: str
    number: int
    kind: RequestKind
    at: int
    upload: str | None = None
    columns: Columns = ()
    key: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    description: str = ""
    version: int | None = None


@dataclass(slots=True, frozen=True)
class ReferenceState:
    """Result of a request, and the table as it is now.

    Attributes:
        number: Newest request that was carried out or given up.
        state: `failed` is about that request; the table then is as it was before.
        error: Reason of the failure.
        version: Version of the table; None without a table. The fields below describe it.
        at: Time of the request for that version, milliseconds UTC.
        created_at: When the first version was.
    """

    tenant: str
    reference: str
    number: int
    state: State
    error: str | None = None
    version: int | None = None
    columns: Columns = ()
    key: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    description: str = ""
    at: int = 0
    created_at: int = 0


_Record = TypeVar("_Record", ReferenceRequest, ReferenceState)


def encode_reference_request(request: ReferenceRequest) -> bytes:
    """Return the value of a request; its key is `reference_key`."""
    return _encode(asdict(request))


def decode_reference_request(data: bytes) -> ReferenceRequest:
    """Undo `encode_reference_request`.

    Raises:
        InvalidRecord: It is something else.
    """
    return _decode(ReferenceRequest, data, "request for a reference table")


def encode_reference_state(state: ReferenceState) -> bytes:
    """Return the value of a state; its key is `reference_key`."""
    return _encode(asdict(state))


def decode_reference_state(data: bytes) -> ReferenceState:
    """Undo `encode_reference_state`.

    Raises:
        InvalidRecord: It is something else.
    """
    return _decode(ReferenceState, data, "state of a reference table")


def reference_table(tenant: str, reference: str) -> str:
    """Return the name of the Delta table; no identifier of a reference holds two underscores."""
    name = REFERENCE_TABLE_PREFIX + reference
    if tenant == DEFAULT_TENANT:
        return name
    return f"{name}__{tenant_hash(tenant)}"


def reference_table_path(data_dir: Path, tenant: str, reference: str) -> Path:
    """Return the folder of the Delta table."""
    return data_dir / "tables" / reference_table(tenant, reference)


def _encode(fields: dict[str, Any]) -> bytes:
    text = json.dumps({"v": RECORD_VERSION, **fields}, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def _decode(class_: type[_Record], data: bytes, what: str) -> _Record:
    found = load(data, what)
    columns = member(found, "columns", LIST)
    if any(type(one) is not list or len(one) != 2 or one[1] not in COLUMN_TYPES for one in columns):
        raise refusal("columns", columns, "a list of pairs of a name and a type")
    found["columns"] = tuple(map(tuple, columns))
    found["key"] = tuple(texts(found, "key"))
    return to_dataclass(class_, found, what)
