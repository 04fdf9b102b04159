"""Constraints on reference tables: name, columns, size."""

import re
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from mqlake.records.references import ColumnType

MAX_BYTES: Final = 32 * 1024 * 1024
"""Size of an upload. Each batch of a rule that joins a table reads all of it."""
MAX_ROWS: Final = 500_000
MAX_COLUMNS: Final = 100
MAX_TEXT_CHARACTERS: Final = 65_536
"""Length of one value."""
MAX_REFERENCES: Final = 1_000
"""Most tables of a tenant."""

REFERENCE_PATTERN: Final = r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
MAX_REFERENCE_CHARACTERS: Final = 63
MAX_DESCRIPTION_CHARACTERS: Final = 2_000
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

ReferenceId = Annotated[str, Field(pattern=REFERENCE_PATTERN, max_length=MAX_REFERENCE_CHARACTERS)]


class ReferenceColumn(BaseModel):
    """A column of a reference table."""

    model_config = ConfigDict(frozen=True)

    name: str
    type: ColumnType


def is_column_name(name: str) -> bool:
    """Tell whether a column may have this name: a plain word, as rules write it."""
    return _COLUMN.fullmatch(name) is not None
