"""Relations that queries can name, with their columns."""

from collections.abc import Iterator

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.entrance.authentication import CurrentCaller
from api.relations.views import view_columns
from api.rules.checking import compiled
from api.rules.materialised import Entry
from api.sql import usage
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, Tenant, read_cursor, to_page
from api.web.problems import ProblemDetails
from api.wiring.dependencies import KnownReferences, KnownRules
from mqlake.records.references import REFERENCE_TABLE_PREFIX
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.tables.catalogue import (
    FOR_ADMINISTRATORS,
    RULE_TABLE_COLUMNS,
    RULE_TABLE_PREFIX,
    TABLES,
)
from rules.errors import RuleError

router = APIRouter(tags=["sql"], responses={code: {"model": ProblemDetails} for code in (422, 503)})


class RelationColumn(BaseModel):
    name: str
    type: str | None = Field(description="of Spark SQL; null: that of the rule's expression")
    comment: str


class Relation(BaseModel):
    name: str
    comment: str
    columns: list[RelationColumn]


@router.get("/sql/relations")
def get_relations(
    rules: KnownRules,
    references: KnownReferences,
    caller: CurrentCaller,
    tenant: Tenant = DEFAULT_TENANT,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Relation]:
    """List relations for queries.

    They are listed by name, with their columns. Tables that rules write to are listed as the
    current rules define them: a table is created with its first row, and stays when no rule writes
    to it any more.
    """
    (after,) = read_cursor(cursor, 1)
    found = [
        *_tables(is_administrator=caller.may("admin")),
        *_rule_tables(rules.all(tenant)),
        *(
            Relation(
                name=REFERENCE_TABLE_PREFIX + name,
                comment="Reference table, uploaded",
                columns=[_column(one, kind.lower(), "") for one, kind in columns],
            )
            for name, columns in references.columns(tenant).items()
        ),
    ]
    asked = sorted((one for one in found if one.name > after), key=lambda one: one.name)
    return to_page(asked[: limit + 1], limit, lambda one: (one.name,))


def _tables(*, is_administrator: bool) -> Iterator[Relation]:
    for table in TABLES:
        if table.name in FOR_ADMINISTRATORS and not is_administrator:
            continue
        columns = [_column(one.name, one.type, one.comment) for one in view_columns(table)]
        yield Relation(name=table.name, comment=table.comment, columns=columns)
    columns = [_column(one.name, one.type, one.comment) for one in usage.COLUMNS]
    yield Relation(name=usage.NAME, comment=usage.COMMENT, columns=columns)


def _rule_tables(entries: list[Entry]) -> list[Relation]:
    """Return the tables that rules write to: columns of ours, then those of all their outputs."""
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        names = {name for action in entry.rule.actions for name in action.tables()}
        if not names:
            continue
        try:
            outputs = compiled(entry.rule.sql, entry.schemas).columns
        except RuleError:  # written by an earlier version of the language
            outputs = ()
        for name in names:
            columns = found.setdefault(name, {})
            # AS a.b nests: the column is a.
            columns |= dict.fromkeys(
                (one.partition(".")[0] for one in outputs), f"of the rule {entry.rule.id}"
            )
    return [
        Relation(
            name=RULE_TABLE_PREFIX + name,
            comment="What rules append with the action table",
            columns=[
                *(_column(one.name, one.type, one.comment) for one in RULE_TABLE_COLUMNS),
                *(_column(one, None, comment) for one, comment in columns.items()),
            ],
        )
        for name, columns in found.items()
    ]


def _column(name: str, type_: str | None, comment: str) -> RelationColumn:
    return RelationColumn(name=name, type=type_, comment=comment)
