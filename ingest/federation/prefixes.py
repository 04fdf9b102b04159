"""Other names for topics inside a federation than at the own broker.

A pair (`local`, `federated`) lets `local` + rest be known to other sites as `federated` + rest. The
longest prefix that fits counts; a topic that none fits keeps its name. No two pairs share a side,
so that the way back is the same way.
"""

from collections.abc import Sequence

from ingest.federation.filters import meet
from mqlake.errors import InvalidTopic, SettingsError
from mqlake.topics.names import SEPARATOR, SHARE_PREFIX, validate_topic_filter


class Prefixes:
    """Translates topic names and topic filters.

    Args:
        pairs: (local, federated), each a literal beginning of topic names.

    Raises:
        SettingsError: Two pairs share a side, or one is no whole levels without wildcards, which
            a share group may have.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        for side in ([local for local, _ in pairs], [federated for _, federated in pairs]):
            if len(set(side)) < len(side):
                raise SettingsError("setting prefixes: two of them begin alike")
            if any("+" in one or "#" in one or one.startswith("$") for one in side):
                raise SettingsError("setting prefixes: a prefix has no wildcard and no $")
            if any(one and not one.endswith(SEPARATOR) for one in side):
                raise SettingsError("setting prefixes: a prefix ends with /")
            for one in side:
                _check_in_group(one)
        self._out = sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)
        self._in = sorted(
            ((federated, local) for local, federated in pairs),
            key=lambda pair: len(pair[0]),
            reverse=True,
        )

    def to_federated(self, topic: str) -> str:
        """Return the name at other sites of a topic, or a filter with wildcards behind the prefix.

        A filter that is wider than a prefix keeps its name: it then means federated topics.
        """
        return _replace(topic, self._out)

    def to_local_filters(self, topic_filter: str) -> set[str]:
        """Return the filters of the own broker's topics that a filter of the federation means."""
        return _replace_filter(topic_filter, self._in)

    def to_federated_filters(self, topic_filter: str) -> set[str]:
        """Return the filters of the federation's topics that a filter of the own broker means."""
        return _replace_filter(topic_filter, self._out)

    def to_local(self, topic: str) -> str:
        """Return the name at the own broker of a topic of the federation."""
        return _replace(topic, self._in)


def _check_in_group(prefix: str) -> None:
    """Accept a prefix of the filters of share groups: these hold no control character."""
    try:
        validate_topic_filter(f"{SHARE_PREFIX}g/{prefix}#")
    except InvalidTopic as exc:
        raise SettingsError(f"setting prefixes: {prefix!r:.80}: {exc}") from exc


def _replace(topic: str, pairs: Sequence[tuple[str, str]]) -> str:
    for before, after in pairs:
        if topic.startswith(before):
            return after + topic[len(before) :]
    return topic


def _replace_filter(topic_filter: str, pairs: Sequence[tuple[str, str]]) -> set[str]:
    found = {topic_filter}
    for before, _ in pairs:
        common = meet(topic_filter, f"{before}#")
        if common is not None:
            found.add(_replace(common, pairs))
    return found
