"""What queries find beside the tables: functions on topics and, for who uses Spark Connect, views.

SQL functions, which Spark puts into the query as expressions: no Python, nothing to register with a
session, and the literal beginning of a filter becomes a range of topics, by which files are left
out. The catalog lives in the JVM's memory: all of it is made at each start.
"""

from typing import Final

from pyspark.sql import SparkSession

from mqlake.audit import AUDIT_VIEW, audit_view
from mqlake.tables import TABLES
from mqlake.views import (
    CATALOG_SCHEMA,
    EMPTY_SCHEMA,
    TOPIC_LEVEL,
    TOPIC_MATCHES,
    VIEW_SCHEMA,
    view_select,
)

# `\Q…\E` quotes what stands between; a `\E` in the filter itself would end it.
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
# What comes before the first wildcard, without the slash between; '/' is followed by '0'.
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
"""Name -> parameters, type, what it does, and the expression."""


def create_functions(spark: SparkSession) -> None:
    """Make functions and views known to all sessions; the tables are there."""
    for name, (parameters, returned, comment, body) in FUNCTIONS.items():
        spark.sql(
            f"CREATE OR REPLACE FUNCTION {CATALOG_SCHEMA}.{name}({parameters}) RETURNS {returned} "
            f"COMMENT '{comment}' RETURN {body}"
        )
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {VIEW_SCHEMA}")
    for table in TABLES:
        spark.sql(f"CREATE OR REPLACE VIEW {VIEW_SCHEMA}.{table.name} AS {view_select(table)}")
    spark.sql(f"CREATE OR REPLACE VIEW {VIEW_SCHEMA}.{AUDIT_VIEW} AS {audit_view()}")
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {EMPTY_SCHEMA}")
