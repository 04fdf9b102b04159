"""`docs/tables.md` is `mqlake/tables/catalogue.py` in prose."""

import re
from pathlib import Path

import pytest

from api.sql import usage
from mqlake.tables.catalogue import TABLES, Table

TEXT = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


USAGE = Table(usage.NAME, usage.COMMENT, usage.COLUMNS)


@pytest.mark.parametrize("table", [*TABLES, USAGE], ids=lambda table: table.name)
def test_document_describes_every_column(table: Table) -> None:
    section = TEXT.partition(f"## {table.name}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(column.name, column.type, column.comment) for column in table.columns]
    clustering = ", ".join(f"`{name}`" for name in table.cluster_by)
    assert (f"Clustered by {clustering}." in section) == bool(clustering)
