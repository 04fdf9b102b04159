"""Sets of topic filters: which covers which, where two overlap, how many become few.

A topic filter is a set of topic names. Three operations on such sets carry the federation:

- `covers(f, g)`: each topic of g is one of f's;
- `meet(f, g)`: the filter of the topics that both have, None when there are none;
- `join(f, g)`: a filter that covers both, no wider than levels allow.

Topics that begin with `$` are no part of a federation, so a leading wildcard matches all.
"""

from collections.abc import Collection, Iterable
from typing import Final

from mqlake.topics.matching import TopicFilterTrie
from mqlake.topics.names import SEPARATOR

MULTI: Final = "#"
SINGLE: Final = "+"


def covers(wide: str, narrow: str) -> bool:
    """Tell whether each topic name that `narrow` matches is matched by `wide` too.

    `+/#` matches all names as `#` does, and is taken for narrower: of two filters at most one
    covers the other.
    """
    wider, narrower = wide.split(SEPARATOR), narrow.split(SEPARATOR)
    for depth, level in enumerate(wider):
        if level == MULTI:
            return True
        if depth == len(narrower):
            return False
        other = narrower[depth]
        if other == MULTI or (level not in (SINGLE, other)):
            return False
    # `a/#` has the topic `a` as well, but more than that.
    return len(wider) == len(narrower)


def meet(one: str, other: str) -> str | None:
    """Return the filter of the topic names that both match, or None when no name does."""
    left, right = one.split(SEPARATOR), other.split(SEPARATOR)
    if left[-1] == MULTI and right[-1] != MULTI:
        left, right = right, left
    # Now, if one of them ends with `#`, it is `right`, or both do.
    levels: list[str] = []
    for depth in range(max(len(left), len(right))):
        a = left[depth] if depth < len(left) else None
        b = right[depth] if depth < len(right) else None
        if b == MULTI:
            return SEPARATOR.join([*levels, *left[depth:]]) or None
        if a == MULTI:
            return SEPARATOR.join([*levels, *right[depth:]]) or None
        if a is None or b is None:
            return None
        if a == SINGLE:
            levels.append(b)
        elif b in (SINGLE, a):
            levels.append(a)
        else:
            return None
    return SEPARATOR.join(levels)


def join(one: str, other: str) -> str:
    """Return a filter that covers both."""
    left, right = one.split(SEPARATOR), other.split(SEPARATOR)
    levels: list[str] = []
    for depth in range(max(len(left), len(right))):
        a = left[depth] if depth < len(left) else None
        b = right[depth] if depth < len(right) else None
        if a is None or b is None or MULTI in (a, b):
            return SEPARATOR.join([*levels, MULTI])
        levels.append(a if a == b else SINGLE)
    return SEPARATOR.join(levels)


def uncovered(filters: Iterable[str]) -> set[str]:
    """Return the filters that no other of them covers.

    Cost: O(n) times the cost of a match: a filter that covers another matches it as if it were the
    name of a topic.
    """
    distinct = set(filters)
    wild: TopicFilterTrie[str] = TopicFilterTrie()
    for one in distinct:
        if SINGLE in one or MULTI in one:
            wild.insert(one, one)
    return {
        one
        for one in distinct
        if not any(other != one and covers(other, one) for other in wild.match(one))
    }


def disjoint(filters: Iterable[str]) -> set[str]:
    """Return filters that cover these, of which no two match the same topic name.

    A client that subscribes to them gets each message once, however its broker treats overlapping
    subscriptions; it then gets some that it has to leave out itself.
    """
    found = uncovered(filters)
    while True:
        wild = [one for one in found if SINGLE in one or MULTI in one]
        pair = next(
            (
                (one, other)
                for one in wild
                for other in found
                if one != other and meet(one, other) is not None
            ),
            None,
        )
        if pair is None:
            return found
        found = uncovered([*(found - set(pair)), join(*pair)])


def summarise(filters: Collection[str], most: int) -> set[str]:
    """Return at most `most` filters that cover these.

    A filter that another one covers is left out. While they are too many, the level that tells
    most of them apart becomes `+`, those of the same shape together; those that differ in shape are
    cut to `#` at their deepest level. The same filters give the same summary at every site, so that
    sites with the same interest share their meshes.
    """
    found = uncovered(filters)
    while len(found) > most:
        generalised = _generalised(found)
        if len(generalised) >= len(found):
            deepest = max(one.count(SEPARATOR) for one in found)
            generalised = {_cut(one) if one.count(SEPARATOR) == deepest else one for one in found}
        found = uncovered(generalised)
    return found


def _generalised(filters: set[str]) -> set[str]:
    """Replace one level by `+` in the filters of one length, where that leaves fewest."""
    lengths: dict[int, list[list[str]]] = {}
    for one in filters:
        levels = one.split(SEPARATOR)
        lengths.setdefault(len(levels), []).append(levels)
    crowded = max(lengths, key=lambda length: (len(lengths[length]), length))
    candidates = []
    for depth in range(crowded):
        replaced = {
            SEPARATOR.join(
                levels
                if levels[depth] == MULTI
                else [*levels[:depth], SINGLE, *levels[depth + 1 :]]
            )
            for levels in lengths[crowded]
        }
        candidates.append((len(replaced), -depth, replaced))
    least = min(candidates, key=lambda one: one[:2])[2]
    rest = {
        SEPARATOR.join(levels)
        for length in lengths
        if length != crowded
        for levels in lengths[length]
    }
    return rest | least


def _cut(topic_filter: str) -> str:
    """Return the filter with its last level that is no `#` turned into one."""
    levels = topic_filter.split(SEPARATOR)
    if levels[-1] == MULTI:
        levels.pop()
    return SEPARATOR.join([*levels[:-1], MULTI])
