"""Checks of a rule: its SQL compiles, its actions are known; and warnings."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from api.rules.trial import constant_conditions
from api.spark.connect import EvaluationError, SparkConnect
from mqlake.errors import InvalidTopic, OperationalError
from mqlake.records.references import Columns
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import is_system, validate_topic_name
from rules.actions import check_actions
from rules.language.compiled import CompiledRule
from rules.language.compiler import compile_rule
from rules.model import ActionSpec, RuleBody
from rules.schemas.registry import NO_SCHEMAS, Schemas


def compiled(
    sql: str, schemas: Schemas = NO_SCHEMAS, references: Mapping[str, Columns] | None = None
) -> CompiledRule:
    """Compile a statement.

    Args:
        sql: The statement.
        schemas: Schemas of the rule's tenant; the same object as long as none changes.
        references: Columns of each reference table there is; None leaves open whether there are
            those that the statement joins.

    Raises:
        RuleError: It cannot be used, or joins a table that is not there.
    """
    rule = _compiled(sql, schemas)
    if references is None or rule.plan is None or not rule.plan.references:
        return rule
    return compile_rule(sql, references, schemas=schemas)


@lru_cache(maxsize=1024)
def _compiled(sql: str, schemas: Schemas) -> CompiledRule:
    return compile_rule(sql, schemas=schemas)


def check(body: RuleBody, schemas: Schemas, references: Mapping[str, Columns]) -> CompiledRule:
    """Refuse a rule that cannot run.

    Args:
        body: The rule.
        schemas: Schemas of its tenant.
        references: Columns of each reference table there is.

    Raises:
        RuleError: Its SQL or one of its actions cannot be used.
    """
    rule = compiled(body.sql, schemas, references)
    check_actions(body.actions)
    return rule


def warnings(
    rule: CompiledRule,
    actions: Sequence[ActionSpec],
    spark: SparkConnect,
    tenant: str = DEFAULT_TENANT,
) -> list[str]:
    """Return warnings of things that are allowed and probably not meant."""
    found = []
    if not actions:
        found.append("the rule has no actions: nothing is done with its output")
    found += [
        f"no message of the log lies below $SYS: {one!r} never matches"
        for one in rule.filters
        if is_system(one)
    ]
    found += [
        f"{one!r} is matched by {other!r} too"
        for at, one in enumerate(rule.filters)
        for place, other in enumerate(rule.filters)
        if at != place and _covers(other, one) and not (at < place and _covers(one, other))
    ]
    found += _never_closes(rule)
    if not rule.deterministic:
        found.append(
            "the rule uses the time of evaluation or random numbers: evaluated again, after a "
            "crash or over history, it gives something else"
        )
    found += _loops(rule, actions)
    found += _constants(rule, spark, tenant)
    return found


def _never_closes(rule: CompiledRule) -> list[str]:
    """Say of a time from the payload that it stands still without messages."""
    if rule.plan is None or all(stream.is_receive_time for stream in rule.plan.streams):
        return []
    return ["time goes on with the messages: without them, what is open stays open"]


def _covers(wide: str, narrow: str) -> bool:
    """Tell whether every topic of one filter is matched by another."""
    if set(wide) & {"+", "#"}:
        wide_levels, levels = wide.split("/"), narrow.split("/")
        for at, level in enumerate(wide_levels):
            if level == "#":
                return at > 0 or not narrow.startswith("$")
            if at >= len(levels) or levels[at] == "#":
                return False
            if level not in ("+", levels[at]) or (level == "+" and at == 0 and narrow[:1] == "$"):
                return False
        return len(wide_levels) == len(levels)
    return wide == narrow


def _loops(rule: CompiledRule, actions: Sequence[ActionSpec]) -> list[str]:
    found = []
    for at, action in enumerate(actions):
        topic = action.args.get("topic")
        if action.function != "republish" or not isinstance(topic, str) or rule.is_events:
            continue
        try:
            validate_topic_name(topic)
        except InvalidTopic:
            continue
        if "${" not in topic and any(filter_matches(one, topic) for one in rule.filters):
            found.append(
                f"actions[{at}] publishes to {topic!r}, which the rule itself reads: what comes "
                "back to it is a dead letter (loop)"
            )
    return found


def _constants(rule: CompiledRule, spark: SparkConnect, tenant: str) -> list[str]:
    try:
        return [
            f"the condition {text!r} is never true: the rule never gives an output"
            for text in constant_conditions(rule, spark, tenant)
        ]
    except (EvaluationError, OperationalError):  # an ill-made condition fails when it is evaluated
        return []
