"""Making up expressions and payloads."""

import random
from typing import Any

from rules.language.functions import FUNCTIONS

OPERANDS = [
    "payload.a", "payload.b", "payload.c", "payload.l[1]", "payload.o.x", "clientid", "topic(2)",
    "qos", "payload", "1", "2.5", "-3", "'x'", "'5'", "true", "user_properties.unit", "[1, 'x']",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "div", "mod", "||", "=", "<>", "<", ">=", "AND", "OR"]
PAYLOADS: list[Any] = [
    {"a": 1, "b": 2.5, "c": "x", "l": [1, {"z": None}], "o": {"x": True}},
    {"a": "5", "b": None, "c": [1], "l": {"a": 1}, "o": 5},
    {"a": 9223372036854775807, "b": -1, "c": 0, "l": [], "o": {"x": "NaN"}},
    {"a": 1e308, "b": 1e308, "c": True, "l": ["é☃"], "o": {"x": {}}},
    {},
    "not json",
]


def expression(chance: random.Random, depth: int) -> str:
    """Make an expression; many are refused, none may break the compiler."""
    kind = chance.randrange(8) if depth else 0
    if kind < 2:
        return chance.choice(OPERANDS)
    inner = [expression(chance, depth - 1) for _ in range(3)]
    if kind < 5:
        return f"({inner[0]} {chance.choice(OPERATORS)} {inner[1]})"
    if kind == 5:
        return f"CASE WHEN {inner[0]} = {inner[1]} THEN {inner[2]} ELSE {inner[0]} END"
    if kind == 6:
        return f"({inner[0]} IN ({inner[1]}, {inner[2]}) OR {inner[0]} IS NULL)"
    name = chance.choice(sorted(FUNCTIONS))
    count = chance.randint(FUNCTIONS[name].minimum, min(FUNCTIONS[name].maximum or 3, 3))
    return f"{name}({', '.join(inner[:count])})"
