"""The relation `usage`: the present usage of a tenant, put into a query as its rows.

No table has it, so it has no versions.
"""

from collections.abc import Iterable
from typing import Final

from mqlake.tables.catalogue import Column
from rules.sql.quoting import quoted

NAME: Final = "usage"
COMMENT: Final = "What the tenant uses, as it is known now"
COLUMNS: Final = (
    Column("kind", "string", "what is counted"),
    Column("name", "string", "rule, gateway or table that it is of; empty: of none"),
    Column("value", "bigint", "how many, or how many bytes"),
)


def usage_select(rows: Iterable[tuple[str, str, int]]) -> str:
    """Return the SELECT of the relation.

    Args:
        rows: Kind, name and value; at least one.
    """
    values = ", ".join(
        f"({quoted(kind)}, {quoted(name)}, CAST({value:d} AS BIGINT))" for kind, name, value in rows
    )
    names = ", ".join(f"`{column.name}`" for column in COLUMNS)
    return f"SELECT * FROM VALUES {values} AS `{NAME}` ({names})"  # noqa: S608
