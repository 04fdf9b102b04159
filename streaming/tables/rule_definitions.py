"""Rules: records of `mqlake.rules` to the table of this name.

rules(key, value, offset) -> one row for each rule that a batch says something of

A definition comes from the API, its activation from the engine. A record that does not follow
`docs/records.md` is left out. Rules are few, so their records are decoded here as everywhere
(`mqlake/records/rule_facts.py`), and not by an expression of SQL. Actions are masked as for those
who may not change rules: everybody who may ask reads the table.
"""

import json
import logging
from typing import Any, Final

from pydantic import TypeAdapter
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mqlake.errors import InvalidRecord
from mqlake.records.rule_facts import Fact, RuleKey, read_fact
from mqlake.records.rules import Kind, decode_activation
from mqlake.tables.catalogue import RULES
from rules.masking import mask_actions
from rules.model import ActionSpec, Rule
from streaming.engine.spark import frame_of_texts
from streaming.tables.merges import Matched, Merge, of_change

_logger = logging.getLogger(__name__)

_ACTIONS: Final = TypeAdapter(tuple[ActionSpec, ...])
_KEY: Final = ("tenant", "id")
_SAME_RULE: Final = "row.tenant = change.tenant AND row.id = change.id"
_OF_ACTIVATION: Final = ("state", "state_version", "error", "activation_offset")
_OF_DEFINITION: Final = tuple(
    column.name for column in RULES.columns if column.name not in (*_KEY, *_OF_ACTIVATION)
)
_TIMES: Final = tuple(column.name for column in RULES.columns if column.type == "timestamp")
_LAST_MS: Final = 253_402_300_799_999
"""End of the year 9999."""
_CHANGE: Final = ", ".join(
    (
        *(f"{one.name} {'bigint' if one.name in _TIMES else one.type}" for one in RULES.columns),
        "is_defined boolean",
        "is_deleted boolean",
        "is_answered boolean",
    )
)


def rule_changes(records: DataFrame) -> DataFrame:
    """Return what the last records of each rule say: its definition, its activation, or both.

    Returns:
        The columns of the table; `is_defined` and `is_deleted`: of the definition, `is_answered`:
        the activation is there; null: it is not.
    """
    changes: dict[RuleKey, dict[str, Any]] = {}
    for name, offset, value in _last_records(records).collect():
        fact = read_fact(bytes(name), None if value is None else bytes(value))
        if fact is None:
            continue
        try:
            said = _said(fact, offset)
        except InvalidRecord as error:
            fields = {"rule": fact.name, "offset": offset, "reason": str(error)}
            _logger.warning("record of rules left out of the table", extra={"fields": fields})
            continue
        key = dict(zip(_KEY, fact.name, strict=True))
        changes[fact.name] = changes.get(fact.name, key) | said
    # As text: whatever number or character a column does not take becomes null.
    texts = [json.dumps(change) for change in changes.values()]
    rows = frame_of_texts(records.sparkSession, texts, "change")
    return (
        rows.select(F.from_json("change", _CHANGE).alias("change"))
        .select("change.*")
        .withColumns({name: _time(name) for name in _TIMES})
    )


def _time(milliseconds: str) -> Column:
    # Spark fails for what has no microsecond of 64 bits, Python for what is after its last year.
    is_time = F.col(milliseconds).between(0, _LAST_MS)
    return F.when(is_time, F.timestamp_millis(milliseconds))


def _last_records(records: DataFrame) -> DataFrame:
    """Return (key, offset, value) of the last definition and activation of each rule."""
    letter = F.substring_index(F.col("key").cast("string"), "/", 1)
    return (
        records.where(letter.isin(str(Kind.DEFINITION), str(Kind.ACTIVATION)))
        .groupBy("key")
        .agg(F.max(F.struct("offset", "value")).alias("last"))
        .select("key", "last.offset", "last.value")
    )


def _said(fact: Fact, offset: int) -> dict[str, Any]:
    """Return what a record says of the columns.

    Raises:
        InvalidRecord: It is malformed.
    """
    if fact.kind is Kind.DEFINITION:
        return (fact.content(_defined) or {"is_deleted": True}) | {"log_offset": offset}
    return (fact.content(_answered) or {}) | {"activation_offset": offset}


def _defined(data: bytes) -> dict[str, Any]:
    rule = Rule.model_validate_json(data)
    actions = _ACTIONS.dump_json(mask_actions(rule.actions)).decode()
    columns = rule.model_dump(exclude={*_KEY, "enable", "actions"})
    return columns | {"is_defined": True, "enabled": rule.enable, "actions": actions}


def _answered(data: bytes) -> dict[str, Any]:
    activation = decode_activation(data)
    return {
        "is_answered": True,
        "state": activation.state,
        "state_version": activation.version,
        "error": activation.error,
    }


def merge_rules(changes: DataFrame) -> None:
    """Bring the rows of `rule_changes` into the table; a second time changes nothing."""
    is_new = "change.log_offset > row.log_offset"
    is_new_answer = (
        "change.is_answered AND change.activation_offset > coalesce(row.activation_offset, -1)"
    )
    definition, answer = of_change(_OF_DEFINITION), of_change(_OF_ACTIVATION)
    kept = {
        name: f"CASE WHEN {is_new_answer} THEN change.{name} ELSE row.{name} END"
        for name in _OF_ACTIVATION
    }
    Merge(
        on=_SAME_RULE,
        matched=(
            Matched(f"change.is_deleted AND {is_new}"),
            Matched(f"change.is_defined AND {is_new}", definition | kept),
            Matched(is_new_answer, answer),
        ),
        insert_if="change.is_defined",
        inserted=of_change(_KEY) | definition | answer,
    ).into(RULES.name, changes)
