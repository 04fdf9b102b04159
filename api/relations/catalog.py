"""Tables, views and functions by their names in Spark SQL, and the statements that make them known.

The catalog of the query application lives in its JVM's memory, and is empty at first: names that a
statement has and Spark does not know are made known then (`made_by`).

Functions are SQL functions, which Spark puts into the query as expressions: no Python, nothing to
register with a session, and the literal beginning of a filter becomes a range of topics, by which
files are left out.
"""

import re
from pathlib import Path
from typing import Final

from api.relations.audits import AUDIT_VIEW, audit_view
from api.relations.views import (
    CATALOG_SCHEMA,
    TOPIC_LEVEL,
    TOPIC_MATCHES,
    VIEW_SCHEMA,
    view_select,
)
from mqlake.tables.catalogue import TABLES, is_there
from rules.sql.quoting import quoted

# `\Q…\E` quotes the text between; a `\E` in the filter itself would end it.
_QUOTED: Final = r"concat('\\Q', replace({0}, '\\E', '\\E\\\\E\\Q'), '\\E')"
_LEVELS: Final = r"replace(" + _QUOTED + r", '+', '\\E[^/]*\\Q')"
_REGEX: Final = (
    r"concat('(?s)\\A', CASE WHEN filter = '#' THEN '.*' WHEN endswith(filter, '/#') THEN concat("
    + _LEVELS.format("left(filter, length(filter) - 2)")
    + r", '(?:/.*)?') ELSE "
    + _LEVELS.format("filter")
    + r" END, '\\z')"
)
# Without repeated groups, and of few wildcards only: Java matches both with a call for each level,
# and a text of a client's has as many levels as it likes.
_MAX_SINGLE_LEVELS: Final = 1_000
_IS_VALID: Final = (
    r"filter <> '' AND NOT filter RLIKE '(?s)[^/][+#]|[+][^/]|#.'"
    f" AND length(filter) - length(replace(filter, '+', '')) <= {_MAX_SINGLE_LEVELS}"
)
# The text before the first wildcard, without the slash between; '/' is followed by '0'.
_PREFIX: Final = r"regexp_replace(regexp_extract(filter, '\\A([^+#]*)', 1), '/\\z', '')"

FUNCTIONS: Final = {
    TOPIC_LEVEL: (
        "topic STRING, n INT",
        "STRING",
        "nth level of a topic, the first is 1, the last -1; null when there is none",
        "CASE WHEN n = 0 THEN NULL ELSE try_element_at(split(topic, '/'), n) END",
    ),
    TOPIC_MATCHES: (
        "topic STRING, filter STRING",
        "BOOLEAN",
        "whether an MQTT topic filter matches a topic; false when it is none or has over 1,000 +",
        (
            f"{_IS_VALID} AND (NOT startswith(topic, '$') OR NOT left(filter, 1) IN ('+', '#'))"
            f" AND (NOT contains(filter, '+') AND NOT contains(filter, '#') OR topic >= {_PREFIX})"
            f" AND ({_PREFIX} = '' OR NOT contains(filter, '+') AND NOT contains(filter, '#')"
            f" OR topic < concat({_PREFIX}, '0'))"
            f" AND CASE WHEN contains(filter, '+') OR contains(filter, '#')"
            f" THEN topic RLIKE {_REGEX} ELSE topic = filter END"
        ),
    ),
}
"""Name -> parameters, type, description, and the expression."""


VIEWS: Final = (*(table.name for table in TABLES), AUDIT_VIEW)
"""Views of the schema `mqlake`, with all tenants' rows: for tools that speak Spark Connect."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


def made_by(name: str, tables: Path) -> tuple[str, ...]:
    """Return the statements that make a table, a view or a function known.

    Args:
        name: Name that Spark has not found, as it says it: parts with points between, quoted or
            not; without a schema it is that of the tables.
        tables: Folder of the tables.

    Returns:
        None of them when there is no such thing.
    """
    *schema, last = name.replace("`", "").lower().split(".")
    if schema[-1:] == [VIEW_SCHEMA]:
        return _view(last)
    if last in FUNCTIONS:
        return (_function(last),)
    is_table = schema in ([], ["default"], CATALOG_SCHEMA.split(".")) and _NAME.fullmatch(last)
    if is_table and is_there(tables / last):
        location = quoted(str(tables / last))
        table = f"{CATALOG_SCHEMA}.{last}"
        return (f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION {location}",)
    return ()


def is_to_be_made(name: str, tables: Path) -> bool:
    """Tell whether a name is that of a table which every system has, and this one not yet."""
    last = name.replace("`", "").lower().rpartition(".")[2]
    known = last in {table.name for table in TABLES}
    return known and not is_there(tables / last)


def _function(name: str) -> str:
    parameters, returned, comment, body = FUNCTIONS[name]
    return (
        f"CREATE OR REPLACE FUNCTION {CATALOG_SCHEMA}.{name}({parameters}) RETURNS {returned} "
        f"COMMENT '{comment}' RETURN {body}"
    )


def _view(name: str) -> tuple[str, ...]:
    by_name = {table.name: table for table in TABLES}
    if name not in VIEWS:
        return ()
    select = audit_view() if name == AUDIT_VIEW else view_select(by_name[name])
    return (
        f"CREATE SCHEMA IF NOT EXISTS {VIEW_SCHEMA}",
        f"CREATE OR REPLACE VIEW {VIEW_SCHEMA}.{name} AS {select}",
    )
