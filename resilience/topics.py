"""Topic filters, as the specification has them [MQTT5-4.7] [MQTT5-4.8.2]."""

from typing import Final

SHARE: Final = "$share/"


def split_share(topic_filter: str) -> tuple[str, str]:
    """Return the name of the share group, empty for none, and the filter behind it."""
    if not topic_filter.startswith(SHARE):
        return "", topic_filter
    name, _, rest = topic_filter[len(SHARE) :].partition("/")
    return name, rest


def below(prefix: str, topic_filter: str) -> str:
    """Return a filter, shared or not, or a topic name, below a prefix."""
    name, rest = split_share(topic_filter)
    return f"{SHARE}{name}/{prefix}/{rest}" if name else f"{prefix}/{topic_filter}"


def matches(topic_filter: str, topic: str) -> bool:
    """Tell whether a filter without `$share` matches a topic name."""
    if topic_filter == topic:
        return True
    if "+" not in topic_filter and "#" not in topic_filter:
        return False
    if topic.startswith("$") and not topic_filter.startswith("$"):
        return False
    levels = topic.split("/")
    asked = topic_filter.split("/")
    for place, level in enumerate(asked):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(asked) == len(levels)
