"""The functions that a rule's actions can name, and the check of their arguments.

One module each, whose `FUNCTION` has all that there is to say of it.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError

from rules.actions import console, log, republish, sql, table, webhook
from rules.actions.contract import Action, ActionFunction, ActionServices, Arguments
from rules.errors import RuleError
from rules.model import ActionSpec
from rules.sql.errors import did_you_mean

_MODULES: Final = (republish, table, log, webhook, sql, console)

FUNCTIONS: Final[dict[str, ActionFunction]] = {
    module.FUNCTION.name: module.FUNCTION for module in _MODULES
}

CONNECTION_KINDS: Final = tuple(
    dict.fromkeys(one.connection for one in FUNCTIONS.values() if one.connection is not None)
)


def check_actions(specs: Sequence[ActionSpec]) -> None:
    """Accept the actions of a rule, with their fallbacks.

    Raises:
        RuleError: A function is unknown, or an argument is missing, unknown or wrong.
    """
    tables = {spec.args.get("name") for spec in specs if spec.function == "table"}
    for number, spec in enumerate(specs):
        parse_arguments(spec, f"actions[{number}]")
        for fallback, inner in enumerate(spec.fallback):
            place = f"actions[{number}].fallback[{fallback}]"
            if inner.fallback:
                raise RuleError(f"{place} has a fallback of its own, expected none")
            function = parse_arguments(inner, place)
            if isinstance(function, table.TableArgs) and function.name in tables:
                raise RuleError(
                    f"{place}: table {function.name} has every output of the rule already"
                )
        if spec.fallback and spec.function == "table":
            raise RuleError(f"actions[{number}]: table never gives up, it takes no fallback")


def parse_arguments(spec: ActionSpec, place: str = "action") -> Arguments:
    """Return the arguments of one action, checked.

    Raises:
        RuleError: As `check_actions`.
    """
    function = FUNCTIONS.get(spec.function)
    if function is None:
        raise RuleError(
            f"{place}: there is no function {spec.function!r}",
            fragment=spec.function,
            hint=did_you_mean(spec.function, FUNCTIONS) or "there are " + ", ".join(FUNCTIONS),
        )
    try:
        return function.arguments.model_validate(spec.args)
    except ValidationError as exc:
        problem = exc.errors(include_url=False)[0]
        key = ".".join(("args", *map(str, problem["loc"])))
        cause: Any = problem.get("ctx", {}).get("error")
        hint = cause.hint if isinstance(cause, RuleError) else ""
        text = cause.problem if isinstance(cause, RuleError) else problem["msg"]
        raise RuleError(
            f"{place}: {spec.function} {key}: {text}",
            fragment=str(problem["input"])[:80],
            hint=hint,
        ) from exc


def make_action(
    spec: ActionSpec, services: ActionServices, *, is_fallback: bool = False
) -> Action | None:
    """Return the object that carries out an action; None when another process does.

    Raises:
        RuleError: Its arguments are wrong.
        ActionError: It names a connection that this process does not have.
    """
    arguments = parse_arguments(spec)
    function = FUNCTIONS[spec.function]
    make = (is_fallback and function.make_fallback) or function.make
    return None if make is None else make(arguments, services)


def describe_arguments() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each function's `args`."""
    return {
        name: cast("type[BaseModel]", function.arguments).model_json_schema()
        for name, function in FUNCTIONS.items()
    }
