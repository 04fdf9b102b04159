"""The relation `usage`: what a tenant uses as it is known now, put into a query as its rows.

No table has it, so it has no versions. What is stored is counted in the tables themselves.
"""

from collections.abc import Iterator
from typing import Final

from api.cache import SessionCache
from api.rules.metrics import MetricsBook, total
from mqlake.tables import Column
from rules.language.quoting import quoted

NAME: Final = "usage"
COMMENT: Final = "What the tenant uses, as it is known now"
COLUMNS: Final = (
    Column("kind", "string", "rule_evaluations, rule_outputs, rule_failures or sessions"),
    Column("name", "string", "identifier of the rule; empty for what is of no rule"),
    Column("value", "bigint", "how many: of rules since they were made or reset"),
)
_OF_RULES: Final = {
    "rule_evaluations": "matched",
    "rule_outputs": "outputs",
    "rule_failures": "failed",
}

Row = tuple[str, str, int]


def usage_of(tenant: str, metrics: MetricsBook, sessions: SessionCache) -> Iterator[Row]:
    """Return what a tenant uses: kind, name, value."""
    for rule_id in metrics.rules_of(tenant):
        counters = metrics.counters(tenant, rule_id)
        for kind, counter in _OF_RULES.items():
            yield kind, rule_id, total(counters, counter)
    yield "sessions", "", sessions.tenants().get(tenant, 0)


def usage_select(rows: Iterator[Row]) -> str:
    """Return the SELECT of the relation, of at least one row."""
    values = ", ".join(
        f"({quoted(kind)}, {quoted(name)}, CAST({value:d} AS BIGINT))" for kind, name, value in rows
    )
    names = ", ".join(f"`{column.name}`" for column in COLUMNS)
    return f"SELECT * FROM VALUES {values} AS `{NAME}` ({names})"  # noqa: S608
