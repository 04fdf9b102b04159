"""Topic names and topic filters: their validity, their levels, and the meaning of `$share`.

The clauses are section 4.7 and 4.8.2 of MQTT 5.0 and section 4.7 of MQTT 3.1.1. Matching is in
`mqlake.topics.matching`.
"""

import re
from typing import Final, NamedTuple

from mqlake.errors import InvalidTopic

SEPARATOR: Final = "/"
MAX_TOPIC_BYTES: Final = 65_535
DEFAULT_MAX_LEVELS: Final = 128
"""Levels of a topic that gateways and the API take unless they are set otherwise; the standard has
no limit, so one would be 65,536."""
SHARE_PREFIX: Final = "$share/"
SYSTEM_LEVEL: Final = "$SYS"
"""First level of topics on which a gateway tells of itself."""
_CONTROL: Final = re.compile("[\x01-\x1f\x7f-\x9f]")


class SharedFilter(NamedTuple):
    """A subscription's filter taken apart: `$share/<share_name>/<topic_filter>` or a plain one."""

    share_name: str
    """Empty for a subscription that is not shared."""

    topic_filter: str


def validate_topic_name(topic_name: str) -> None:
    """Accept a topic name that a message may be published to.

    Raises:
        InvalidTopic: Empty, too long, or with a wildcard or U+0000.
            [MQTT5-4.7.0-1] [MQTT5-4.7.3-1] [MQTT5-4.7.3-2] [MQTT5-4.7.3-3]
            [MQTT311-4.7.1-1] [MQTT311-4.7.3-1] [MQTT311-4.7.3-2] [MQTT311-4.7.3-3]
    """
    if not topic_name:
        raise InvalidTopic("topic name is empty, expected a character", clause="MQTT5-4.7.3-1")
    if "+" in topic_name or "#" in topic_name:
        raise InvalidTopic(
            "topic name holds a wildcard, expected one topic: + and # are for topic filters",
            clause="MQTT5-4.7.0-1",
        )
    _check_text(topic_name, "topic name")


def validate_topic_filter(topic_filter: str) -> None:
    """Accept a topic filter, shared ones included.

    A shared one holds no control character, as a receiver may demand [MQTT5-1.5.4]: records name
    share groups by it, one on each line (`mqlake.records.messages.Source`).

    Raises:
        InvalidTopic: Empty, too long, with U+0000, a wildcard beside other characters of its level,
            `#` before the last level, or a `$share` without a usable name and filter.
            [MQTT5-4.7.1-1] [MQTT5-4.7.1-2] [MQTT5-4.7.3-1] [MQTT5-4.8.2-1] [MQTT5-4.8.2-2]
            [MQTT311-4.7.1-2] [MQTT311-4.7.1-3]
    """
    _check_text(topic_filter, "topic filter")
    plain = topic_filter
    if topic_filter.startswith(SHARE_PREFIX) or topic_filter == "$share":
        share_name, separator, plain = topic_filter[len(SHARE_PREFIX) :].partition(SEPARATOR)
        if not share_name:
            raise InvalidTopic("shared subscription without a share name", clause="MQTT5-4.8.2-1")
        if "+" in share_name or "#" in share_name:
            raise InvalidTopic("share name holds a wildcard", clause="MQTT5-4.8.2-2")
        if not separator or not plain:
            raise InvalidTopic("shared subscription without a filter", clause="MQTT5-4.8.2-2")
        control = _CONTROL.search(topic_filter)
        if control is not None:
            raise InvalidTopic(
                f"shared subscription holds the control character U+{ord(control[0]):04X}",
                clause="MQTT5-1.5.4",
            )
    if not plain:
        raise InvalidTopic("topic filter is empty, expected a character", clause="MQTT5-4.7.3-1")
    if "#" in plain:
        before = plain[:-1]
        if not plain.endswith("#") or "#" in before or (before and before[-1] != SEPARATOR):
            raise InvalidTopic(
                "'#' is not a last level of its own, as in a/b/#", clause="MQTT5-4.7.1-1"
            )
    if "+" in plain:
        for level in plain.split(SEPARATOR):
            if "+" in level and level != "+":
                raise InvalidTopic(
                    "'+' shares its level, expected it alone, as in a/+/b", clause="MQTT5-4.7.1-2"
                )


def has_more_levels(topic: str, most: int) -> bool:
    """Tell whether a topic name or a plain topic filter has more than `most` levels."""
    return len(topic) >= most and topic.count(SEPARATOR) >= most


def validate_levels(topic_name: str, most: int) -> None:
    """Accept a topic name of a message that no client has brought.

    Who makes messages, or lets in those of others, gives subscribers no topic that a client could
    not have published to: rules, replays, the API and the federation.

    Args:
        topic_name: A valid one.
        most: Levels, `max_topic_levels` of the process.

    Raises:
        InvalidTopic: It has more; the standard has no limit, and so no clause.
    """
    if has_more_levels(topic_name, most):
        raise InvalidTopic(
            f"topic name has {topic_name.count(SEPARATOR) + 1} levels, expected at most {most}",
            clause="",
        )


def split_shared(topic_filter: str) -> SharedFilter:
    """Take a valid topic filter apart into its share name (or "") and the filter proper."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return SharedFilter("", topic_filter)
    share_name, _, plain = topic_filter[len(SHARE_PREFIX) :].partition(SEPARATOR)
    return SharedFilter(share_name, plain)


def is_system(topic: str) -> bool:
    """Tell whether a topic name or a plain topic filter lies in the gateways' own tree."""
    return topic == SYSTEM_LEVEL or topic.startswith(SYSTEM_LEVEL + SEPARATOR)


def _check_text(text: str, what: str) -> None:
    # A character is at most 4 bytes, so short texts need no encoding to be known short enough.
    if len(text) * 4 > MAX_TOPIC_BYTES and len(text.encode()) > MAX_TOPIC_BYTES:
        raise InvalidTopic(f"{what} is longer than {MAX_TOPIC_BYTES} bytes", clause="MQTT5-4.7.3-3")
    if "\0" in text:
        raise InvalidTopic(f"{what} holds U+0000", clause="MQTT5-4.7.3-2")
