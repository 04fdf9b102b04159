"""Statements of Spark of which a part is a user's: each reads what is given with it, no more.

Two parsers read such a text, ours and Spark's, and may read it differently. So it is Spark that
holds the statement to what it was given: `ConfinedParser.java`, in each session that has the
setting `FUNCTIONS_OPTION`. What has no head there is refused.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

FUNCTIONS_OPTION: Final = "spark.mqlake.functions"
"""Option of a session: functions that its confined statements may call, comma-separated."""
OWN_STATEMENT: Final = "/*mqlake:own*/"
"""Head of a statement that is mqlake's own, without any text of a user's but literals."""
CONFINED_STATEMENT: Final = "/*mqlake:confined "
"""Beginning of the head of a confined one; then come its relations as JSON, and `*/`."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """The rows of a relation that a confined statement may read.

    Attributes:
        rows: A SELECT. Spark reads it apart from the statement.
        reads: Names of the tables that it may read, as it writes them, without quotes.
    """

    rows: str
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Confined:
    """A confined statement.

    Attributes:
        sql: A query over the relations.
        relations: By name; None: a temporary view that the session has.
    """

    sql: str
    relations: Mapping[str, GivenRows | None]

    def inside(self, write: Callable[[str], str]) -> "Confined":
        """Return a query around this one.

        Args:
            write: Gets this query, returns the other.
        """
        return replace(self, sql=write(self.sql))

    @property
    def text(self) -> str:
        """The statement as Spark gets it."""
        head = {
            name: given and {"rows": given.rows, "reads": [one.lower() for one in given.reads]}
            for name, given in self.relations.items()
        }
        written = json.dumps(head).replace("*/", "*\\u002f")  # it stands in a comment
        return f"{CONFINED_STATEMENT}{written}*/{self.sql}"


def own(sql: str) -> str:
    """Return a statement of mqlake's own, as a session that confines others takes it."""
    return f"{OWN_STATEMENT}{sql}"


def listed(functions: Iterable[str]) -> str:
    """Return functions, lower case, as `FUNCTIONS_OPTION` has them."""
    return ",".join(sorted(functions))
