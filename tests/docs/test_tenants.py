"""The examples in `docs/tenants.md` are a file that works, and queries that are let through."""

import re
from pathlib import Path

import pytest

from api.sql.checking import check
from api.sql.usage import usage_select
from mqlake.records.tenants import parse_tenants

TEXT = (Path(__file__).parents[2] / "docs" / "tenants.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```sql\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_file_is_one() -> None:
    found = parse_tenants(TEXT.split("```toml\n")[1].split("```")[0])
    assert found["acme"].limits.connections == 500
    assert found["beta"].state == "suspended"


@pytest.mark.parametrize("query", QUERIES)
def test_usage_is_asked_by_queries_that_are_let_through(query: str) -> None:
    used = usage_select(iter([("sessions", "acme", 1)]))
    (rows,) = check(query, "acme", usage=lambda: used).given.values()
    assert "'acme'" in rows.rows
