"""Merge changes into a table of Delta, which is written again as a whole while it is small.

Delta's own merge runs several jobs, two of which compute which files the table has: to plan them
takes longer than to write a small table (docs/design/tables.md, 219).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from streaming.jvm.bridge import java_class, java_rows, java_session, python_rows

SMALL_BYTES: Final = 256 << 10
"""A table of no more is small. VACUUM takes its old files within a day and a half: 7 GB at most, as
a batch comes every five seconds."""

Assignments = Mapping[str, str]
"""Column to an expression of `row` and `change`."""

# Actions on a row beside the numbers of `matched`.
_KEPT: Final = -1
_GONE: Final = -2
_INSERTED: Final = -3


def of_change(names: Iterable[str]) -> dict[str, str]:
    """Return assignments of the change's columns of these names."""
    return {name: f"change.{name}" for name in names}


@dataclass(frozen=True, slots=True)
class Matched:
    """An action on a row that has a change.

    Attributes:
        condition: In SQL, of `row` and `change`.
        assignments: Columns that become others; None: the row goes.
    """

    condition: str
    assignments: Assignments | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge as Delta has it: of `matched`, the first one whose condition holds counts.

    Attributes:
        on: Tells whether a `change` is one of a `row`; of a row there is one at most. Both have a
            `tenant`, which is never null.
        matched: In order.
        insert_if: Tells whether a `change` without a row becomes one.
        inserted: Columns of that row.
    """

    on: str
    matched: tuple[Matched, ...]
    insert_if: str = "false"
    inserted: Assignments = field(default_factory=dict)

    def into(self, table: str, changes: DataFrame) -> None:
        """Bring changes into a table.

        Args:
            table: Its name in the catalog.
            changes: Rows of any columns.
        """
        spark = changes.sparkSession
        small_table = java_class(spark, "mqlake.spark.SmallTable")
        small = small_table.begin(java_session(spark), table, SMALL_BYTES)
        if small is None:
            self._merge_by_delta(table, changes)
        else:
            rows = python_rows(spark, small.rows())
            small.write(java_rows(self._merged(rows, changes)))

    def _merge_by_delta(self, table: str, changes: DataFrame) -> None:
        merge = (
            DeltaTable.forName(changes.sparkSession, table)
            .alias("row")
            .merge(changes.alias("change"), self.on)
        )
        for one in self.matched:
            if one.assignments is None:
                merge = merge.whenMatchedDelete(one.condition)
            else:
                merge = merge.whenMatchedUpdate(one.condition, dict(one.assignments))
        if self.inserted:
            merge = merge.whenNotMatchedInsert(self.insert_if, dict(self.inserted))
        merge.execute()

    def _merged(self, rows: DataFrame, changes: DataFrame) -> DataFrame:
        """Return all rows that the table has then."""
        cases = [
            f"WHEN {one.condition} THEN {_GONE if one.assignments is None else number}"
            for number, one in enumerate(self.matched)
        ]
        action = (
            f"CASE WHEN row.tenant IS NULL THEN IF({self.insert_if}, {_INSERTED}, {_GONE}) "
            f"WHEN change.tenant IS NULL THEN {_KEPT} {' '.join(cases)} ELSE {_KEPT} END"
        )
        return (
            rows.alias("row")
            .join(changes.alias("change"), F.expr(self.on), "full_outer")
            .withColumn("_action", F.expr(action))
            .where(f"_action <> {_GONE}")
            .selectExpr(*map(self._column, rows.columns))
        )

    def _column(self, name: str) -> str:
        cases = [
            f"WHEN {number} THEN {one.assignments[name]}"
            for number, one in enumerate(self.matched)
            if one.assignments is not None and name in one.assignments
        ]
        cases.append(f"WHEN {_INSERTED} THEN {self.inserted.get(name, 'NULL')}")
        return f"CASE _action {' '.join(cases)} ELSE row.{name} END AS {name}"
