"""Match a topic name against many topic filters.

`TopicFilterTrie` is used wherever filters meet topics in Python; the router's Java twin
(`streaming/java`) passes the same generated cases. Cost of a match: O(levels x branching), at most
two children (the level itself and `+`) are entered at each level. Levels are compared as they are,
character by character. [MQTT5-4.7.3-4] [MQTT311-4.7.3-4]
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from mqlake.topics.names import SEPARATOR

Item = TypeVar("Item")


class _Level(Generic[Item]):
    __slots__ = ("children", "items")

    def __init__(self) -> None:
        self.children: dict[str, _Level[Item]] = {}
        self.items: dict[Item, None] | None = None  # a set that keeps insertion order


class TopicFilterTrie(Generic[Item]):
    """Topic filter -> items, looked up by topic name.

    An item is anything hashable; the same item may stand under several filters and is then yielded
    once per matching filter. Filters are plain (`$share/name/` already taken off) and valid.
    """

    def __init__(self) -> None:
        self._root: _Level[Item] = _Level()
        self._filters = 0

    def __len__(self) -> int:
        """Return the number of distinct filters that hold an item."""
        return self._filters

    def insert(self, topic_filter: str, item: Item) -> bool:
        """Put an item under a filter; return False when it already stood there."""
        level = self._root
        for name in topic_filter.split(SEPARATOR):
            child = level.children.get(name)
            if child is None:
                child = level.children[name] = _Level()
            level = child
        if level.items is None:
            level.items = {}
            self._filters += 1
        elif item in level.items:
            return False
        level.items[item] = None
        return True

    def remove(self, topic_filter: str, item: Item) -> bool:
        """Take an item from a filter and prune empty levels; return False when it was not there."""
        path: list[tuple[_Level[Item], str]] = []
        level = self._root
        for name in topic_filter.split(SEPARATOR):
            path.append((level, name))
            child = level.children.get(name)
            if child is None:
                return False
            level = child
        if level.items is None or item not in level.items:
            return False
        del level.items[item]
        if not level.items:
            level.items = None
            self._filters -= 1
            for parent, name in reversed(path):
                child = parent.children[name]
                if child.items is not None or child.children:
                    break
                del parent.children[name]
        return True

    def match(self, topic_name: str) -> list[Item]:
        """Return the items of every filter that matches a valid topic name.

        A leading `$` never meets a leading wildcard. [MQTT5-4.7.2-1] [MQTT311-4.7.2-1] `a/#`
        matches `a` too (4.7.1.2).
        """
        names = topic_name.split(SEPARATOR)
        found: list[Item] = []
        levels = [self._root]
        last = len(names) - 1
        for depth, name in enumerate(names):
            wildcards = depth > 0 or not topic_name.startswith("$")
            below: list[_Level[Item]] = []
            for level in levels:
                children = level.children
                if wildcards:
                    child = children.get("#")
                    if child is not None and child.items is not None:
                        found.extend(child.items)
                    child = children.get("+")
                    if child is not None:
                        below.append(child)
                # A topic name holds no wildcard, so this never finds the `+` child a second time.
                child = children.get(name)
                if child is not None:
                    below.append(child)
            if not below:
                return found
            levels = below
            if depth == last:
                for level in levels:
                    if level.items is not None:
                        found.extend(level.items)
                    child = level.children.get("#")
                    if child is not None and child.items is not None:
                        found.extend(child.items)
        return found

    def overlapping(self, topic_filter: str) -> list[Item]:
        """Return the items of every filter that matches a topic which a valid filter matches too.

        An item comes once for each of them.
        """
        found: list[Item] = []
        names = topic_filter.split(SEPARATOR)
        stack = [(self._root, 0)]  # (level, how many names led to it)
        while stack:
            level, depth = stack.pop()
            name = names[depth] if depth < len(names) else None
            if level.items is not None and name in {None, "#"}:
                found.extend(level.items)
            for known, child in level.children.items():
                if level is self._root and not _may_begin_alike(known, names[0]):
                    continue
                if name == "#":
                    stack.append((child, depth))
                elif known == "#":
                    found.extend(child.items or ())
                elif name is not None and (name in {"+", known} or known == "+"):
                    stack.append((child, depth + 1))
        return found

    def filters(self) -> Iterator[str]:
        """Yield each filter that holds an item, in no particular order."""
        stack: list[tuple[str, _Level[Item]]] = [
            (name, child) for name, child in self._root.children.items()
        ]
        while stack:
            prefix, level = stack.pop()
            if level.items is not None:
                yield prefix
            stack.extend(
                (f"{prefix}{SEPARATOR}{name}", child) for name, child in level.children.items()
            )


def _may_begin_alike(one: str, other: str) -> bool:
    """Tell whether a leading wildcard meets no leading `$` here."""
    return not (
        (one in {"+", "#"} and other.startswith("$"))
        or (other in {"+", "#"} and one.startswith("$"))
    )


def filter_matches(topic_filter: str, topic_name: str) -> bool:
    """Tell whether one plain filter matches one topic name: the rule, level by level.

    The plain statement of section 4.7 that the tries are tested against.
    """
    filter_levels = topic_filter.split(SEPARATOR)
    names = topic_name.split(SEPARATOR)
    if topic_name.startswith("$") and filter_levels[0] in {"+", "#"}:
        return False
    for depth, level in enumerate(filter_levels):
        if level == "#":
            return True
        if depth == len(names) or level not in {"+", names[depth]}:
            return False
    return len(filter_levels) == len(names)


def covers(topic_filter: str, other: str) -> bool:
    """Tell whether a plain, valid filter matches every topic that another one matches."""
    if other.endswith("#") and not topic_filter.endswith("#"):
        return False
    wanted = other.split(SEPARATOR)
    # Each topic has a level.
    given = ["#"] if topic_filter == "+/#" else topic_filter.split(SEPARATOR)
    if not _may_begin_alike(given[0], wanted[0]):
        return False
    for depth, level in enumerate(given):
        if level == "#":
            return True
        if depth == len(wanted):
            return False
        asked = wanted[depth]
        if asked == "#" or (level not in {"+", asked}):
            return False
    return len(given) == len(wanted)


def overlaps(one: str, other: str) -> bool:
    """Tell whether two plain, valid topic filters match a topic that is the same."""
    levels, others = one.split(SEPARATOR), other.split(SEPARATOR)
    if not _may_begin_alike(levels[0], others[0]):
        return False
    for depth in range(max(len(levels), len(others))):
        # `a/#` matches `a` too, so a filter that ends may meet a `#` behind its end.
        left = levels[depth] if depth < len(levels) else None
        right = others[depth] if depth < len(others) else None
        if "#" in {left, right}:
            return True
        if left is None or right is None:
            return False
        if left != right and "+" not in {left, right}:
            return False
    return True
