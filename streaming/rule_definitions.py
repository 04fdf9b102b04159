"""Rules: records of `mqlake.rules` to the table of this name.

rules(key, value, offset) -> one row for each rule that a batch says something of

A definition comes from the API, its activation from the engine. The formats are those of
`docs/records.md`; a record that does not follow them is left out. Actions are masked as
`rules/masking.py` does for those who may not change rules: everybody who may ask reads the table.
"""

from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mqlake.rule_records import Kind
from mqlake.tables import RULES
from rules.masking import MASK, MASKED_FUNCTION, NAMES_SECRET, PLACEHOLDER, SERVER

_DEFINITION: Final = """
    name string, description string, sql string, enable boolean, actions string, id string,
    version int, created_at bigint, updated_at bigint, made_by string
"""
_ACTIONS: Final = (
    "array<struct<function: string, args: variant, "
    "fallback: array<struct<function: string, args: variant>>>>"
)
_REQUEST: Final = (
    "struct<url: string, method: string, headers: map<string, string>, body: string, "
    "timeout_seconds: double, concurrency: int, verify_tls: boolean, retry: struct<attempts: int, "
    "give_up_after_seconds: double, first_delay_seconds: double, max_delay_seconds: double>>"
)
"""The arguments of `http`."""
_ACTIVATION: Final = "state string, version int, error string"
_D, _A = str(Kind.DEFINITION), str(Kind.ACTIVATION)
_KEY: Final = ("tenant", "id")
_SAME_RULE: Final = "row.tenant = change.tenant AND row.id = change.id"
_OF_ACTIVATION: Final = ("state", "state_version", "error", "activation_offset")
_OF_DEFINITION: Final = tuple(
    column.name for column in RULES.columns if column.name not in (*_KEY, *_OF_ACTIVATION)
)


def masked_actions(actions: str) -> Column:
    """Return the JSON of a rule's actions without values that may be secret.

    Args:
        actions: Column with the JSON as it was defined.
    """
    fallback = f"transform(a.fallback, b -> {_action('b')})"
    each = _action("a", f", 'fallback', {fallback}")
    return F.expr(f"to_json(transform(from_json({actions}, '{_ACTIONS}'), a -> {each}))")


def _action(action: str, more: str = "") -> str:
    # Spark SQL has no name for a value but that of a lambda's argument.
    masked = f"""element_at(transform(
        array(from_json(to_json({action}.args), '{_REQUEST}')),
        r -> parse_json(to_json(named_struct(
            'url', {_masked_url("r.url")}, 'method', r.method,
            'headers', transform_values(r.headers, (_, v) -> {_masked_text("v")}),
            'body', {_masked_text("r.body")}, 'timeout_seconds', r.timeout_seconds,
            'concurrency', r.concurrency, 'verify_tls', r.verify_tls, 'retry', r.retry)))), 1)"""
    arguments = f"IF({action}.function = '{MASKED_FUNCTION}', {masked}, {action}.args)"
    return f"named_struct('function', {action}.function, 'args', {arguments}{more})"


def _masked_text(text: str) -> str:
    literals = f"regexp_replace({text}, r'{PLACEHOLDER}', '')"
    is_shown = f"{text} IS NULL OR {text} RLIKE r'{NAMES_SECRET}' OR {literals} = ''"
    return f"CASE WHEN {is_shown} THEN {text} ELSE '{MASK}' END"


def _masked_url(url: str) -> str:
    server, rest = (f"regexp_extract({url}, r'{SERVER}', {group})" for group in (1, 2))
    return (
        f"CASE WHEN {url} IS NULL OR {server} != '' AND {rest} IN ('', '/') THEN {url} "
        f"WHEN {server} = '' THEN '{MASK}' "
        f"ELSE concat({server}, '/', {_masked_text(f'substr({rest}, 2)')}) END"
    )


def rule_changes(records: DataFrame) -> DataFrame:
    """Return the last records of each rule: its definition, its activation, or both.

    Returns:
        The columns of the table; `is_defined` and `is_deleted`: of the definition, `is_answered`:
        the activation is there.
    """
    parts = F.split(F.col("key").cast("string"), "/")
    named = records.where(F.is_valid_utf8(F.col("key").cast("string"))).select(
        F.get(parts, F.lit(0)).alias("kind"),
        F.get(parts, F.lit(1)).alias("tenant"),
        F.get(parts, F.lit(2)).alias("id"),
        F.size(parts).alias("parts"),
        F.struct("offset", F.col("value").cast("string").alias("value")).alias("record"),
    )
    last = (
        named.where((F.col("parts") == 3) & F.col("kind").isin(_D, _A))
        .groupBy(*_KEY)
        .agg(*(F.max(F.when(F.col("kind") == one, F.col("record"))).alias(one) for one in (_D, _A)))
    )
    made = last.select(
        "*",
        F.from_json(f"{_D}.value", _DEFINITION).alias("rule"),
        F.from_json(f"{_A}.value", _ACTIVATION).alias("answer"),
    )
    columns: dict[str, Column] = {
        "enabled": F.col("rule.enable"),
        "actions": masked_actions("rule.actions"),
        "created_at": F.timestamp_millis("rule.created_at"),
        "updated_at": F.timestamp_millis("rule.updated_at"),
        "log_offset": F.col(f"{_D}.offset"),
        "state": F.col("answer.state"),
        "state_version": F.col("answer.version"),
        "error": F.col("answer.error"),
        "activation_offset": F.col(f"{_A}.offset"),
    }
    return made.select(
        *_KEY,
        F.col("rule.id").isNotNull().alias("is_defined"),
        (F.col(_D).isNotNull() & F.col(f"{_D}.value").isNull()).alias("is_deleted"),
        F.col("answer.state").isNotNull().alias("is_answered"),
        *(
            columns.get(column.name, F.col(f"rule.{column.name}"))
            .cast(column.type)
            .alias(column.name)
            for column in RULES.columns
            if column.name not in _KEY
        ),
    )


def merge_rules(changes: DataFrame) -> None:
    """Bring the rows of `rule_changes` into the table; a second time changes nothing."""
    is_new = "change.log_offset > row.log_offset"
    is_new_answer = (
        "change.is_answered AND change.activation_offset > coalesce(row.activation_offset, -1)"
    )
    definition: dict[str, str | Column] = {name: f"change.{name}" for name in _OF_DEFINITION}
    answer: dict[str, str | Column] = {name: f"change.{name}" for name in _OF_ACTIVATION}
    kept: dict[str, str | Column] = {
        name: f"CASE WHEN {is_new_answer} THEN change.{name} ELSE row.{name} END"
        for name in _OF_ACTIVATION
    }
    key: dict[str, str | Column] = {name: f"change.{name}" for name in _KEY}
    (
        DeltaTable.forName(changes.sparkSession, RULES.name)
        .alias("row")
        .merge(changes.alias("change"), _SAME_RULE)
        .whenMatchedDelete(f"change.is_deleted AND {is_new}")
        .whenMatchedUpdate(f"change.is_defined AND {is_new}", {**definition, **kept})
        .whenMatchedUpdate(is_new_answer, answer)
        .whenNotMatchedInsert("change.is_defined", {**key, **definition, **answer})
        .execute()
    )
