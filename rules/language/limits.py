"""Limits on the size of a rule and of its outputs for one message."""

from dataclasses import dataclass
from typing import Final

from rules.model import MAX_SQL_CHARACTERS


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep one rule from taking the engine's time or memory from the others."""

    sql_characters: int = MAX_SQL_CHARACTERS
    depth: int = 40
    """Depth of brackets, CASE and calls inside each other, and of the tree of operators."""

    select_items: int = 200
    filters: int = 64
    path_segments: int = 32
    list_items: int = 1_000
    """Elements of IN and of an array written out."""

    regular_expression_characters: int = 512
    expression_characters: int = 131_072
    """Length of the Spark SQL of a rule; names given with AS are put in wherever they are used."""

    foreach_elements: int = 10_000
    """Elements of one message; more is an error of that message."""

    foreach_bytes: int = 67_108_864
    """Elements times the payload's size, where the rows repeat parts of the payload."""

    text_characters: int = 65_536
    """Length of a text after padding or repeating."""

    group_keys: int = 16
    references: int = 4
    """Tables that a rule joins."""

    window_ms: int = 31 * 86_400_000
    """Longest window or gap; the shortest is a second."""

    hops: int = 100
    """Windows of a hop that one message is in."""

    lateness_ms: int = 86_400_000
    join_ms: int = 86_400_000
    """Between the earliest and the latest message that one joins."""

    detection_ms: int = 7 * 86_400_000
    detection_messages: int = 1_000
    collected: int = 1_000
    """Elements that an aggregate puts into an array."""


DEFAULT_LIMITS: Final = Limits()
