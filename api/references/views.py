"""Responses of the API about reference tables."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, Field

from api.references.materialised import Reference
from api.references.tables import Version
from mqlake.records.references import Columns
from rules.references import ReferenceColumn


class ReferenceView(BaseModel):
    """A reference table. The description is of its version, not of one in progress."""

    id: str
    state: str = Field(
        description="ready; writing: a change is in progress; failed: the last change failed"
    )
    error: str | None = Field(description="why the last change failed")
    version: int | None = Field(description="of the Delta table; null before the first")
    columns: list[ReferenceColumn]
    key: list[str] = Field(description="columns that identify a row")
    rows: int
    bytes: int = Field(description="of the rows as JSON")
    description: str
    table: str = Field(description="its name in SQL")
    created_at: datetime | None
    updated_at: datetime | None


class ReferenceVersionView(BaseModel):
    """A version of a reference table."""

    version: int
    kind: str = Field(description="put or rollback")
    of_version: int | None = Field(description="the version restored")
    rows: int
    columns: list[ReferenceColumn]
    key: list[str]
    description: str
    created_at: datetime


class RowsPage(BaseModel):
    """Rows by their key."""

    version: int
    items: list[dict[str, Any]]
    next_cursor: str | None = Field(description="cursor of the next page; null: this is the last")


def view_reference(reference_id: str, table: str, reference: Reference) -> ReferenceView:
    found = reference.table
    answered = found is not None and found.version is not None
    return ReferenceView(
        id=reference_id,
        state=reference.state,
        error=found.error if found is not None and reference.is_answered else None,
        version=None if found is None else found.version,
        columns=_columns(() if found is None else found.columns),
        key=[] if found is None else list(found.key),
        rows=0 if found is None else found.rows,
        bytes=0 if found is None else found.bytes,
        description="" if found is None else found.description,
        table=table,
        created_at=_time(found.created_at) if found is not None and answered else None,
        updated_at=_time(found.at) if found is not None and answered else None,
    )


def view_version(found: Version) -> ReferenceVersionView:
    return ReferenceVersionView(
        version=found.version,
        kind=found.kind,
        of_version=found.of_version,
        rows=found.rows,
        columns=_columns(found.columns),
        key=list(found.key),
        description=found.description,
        created_at=_time(found.at_ms),
    )


def _columns(columns: Columns) -> list[ReferenceColumn]:
    return [ReferenceColumn(name=name, type=type_) for name, type_ in columns]


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)
