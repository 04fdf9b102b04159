"""How long the history is kept: policies in `<data-dir>/retention.json`.

The API writes the file, as a person may; maintenance in the lake reads it each time.
Of a table's policies the first that fits a row counts; without one it is kept for ever.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mqlake.durable import write_durably
from mqlake.errors import InvalidTopic, SettingsError
from mqlake.tables.catalogue import DEAD_LETTERS, DROPS, EVENTS, MESSAGES
from mqlake.topics.names import split_shared, validate_topic_filter

RETENTION_FILE: Final = "retention.json"
VERSION: Final = 1
MOST_POLICIES: Final = 100
EVERY: Final = "*"
"""In the place of a tenant: all of them."""
EVERYTHING: Final = "#"
TABLES_WITH_TOPIC: Final = {
    MESSAGES.name: True,
    EVENTS.name: False,
    DROPS.name: True,
    DEAD_LETTERS.name: True,
}
"""Tables that policies are for, and whether their rows have a topic."""


@dataclass(frozen=True, slots=True)
class KeepingPolicy:
    table: str = MESSAGES.name
    tenant: str = EVERY
    topic_filter: str = EVERYTHING
    """An MQTT topic filter; of `$` topics `#` means all too."""
    keep_days: float = 0.0
    """At least so long; at most a day longer, and until the next VACUUM on disk."""

    def check(self) -> None:
        """Refuse a value that is no policy.

        Raises:
            SettingsError: The message names the key.
        """
        if self.table not in TABLES_WITH_TOPIC:
            raise SettingsError(f"table: expected {', '.join(TABLES_WITH_TOPIC)}, got {self.table}")
        if self.tenant != EVERY and not re.fullmatch(r"[^/\x00-\x1f]{1,255}", self.tenant):
            raise SettingsError(f"tenant: expected a name or {EVERY}, got {self.tenant!r}")
        try:
            validate_topic_filter(self.topic_filter)
        except InvalidTopic as exc:
            raise SettingsError(f"topic_filter: {exc}") from exc
        if split_shared(self.topic_filter).share_name:
            raise SettingsError("topic_filter: expected a filter without $share")
        if not TABLES_WITH_TOPIC[self.table] and self.topic_filter != EVERYTHING:
            raise SettingsError(f"topic_filter: rows of {self.table} have no topic, expected #")
        if not 0 < self.keep_days <= 36_500:
            raise SettingsError(f"keep_days: expected more than 0, got {self.keep_days}")


def read_policies(data_dir: Path) -> tuple[KeepingPolicy, ...]:
    """Return the policies; none when there is no file.

    Raises:
        SettingsError: The file is damaged; nothing is deleted then.
    """
    path = data_dir / RETENTION_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as exc:
        raise SettingsError(f"{path} cannot be read: {exc}") from exc
    try:
        if found["version"] != VERSION:
            raise SettingsError(f"{path} is of another version, expected {VERSION}")
        policies = tuple(_policy(one) for one in found["policies"])
    except (KeyError, TypeError) as exc:
        raise SettingsError(f"{path} is of another form: {exc}") from exc
    check_policies(policies)
    return policies


def write_policies(data_dir: Path, policies: Sequence[KeepingPolicy]) -> None:
    """Replace the policies.

    Raises:
        SettingsError: One is none.
    """
    check_policies(policies)
    text = json.dumps({"version": VERSION, "policies": [asdict(one) for one in policies]}, indent=2)
    write_durably(data_dir / RETENTION_FILE, f"{text}\n".encode())


def check_policies(policies: Sequence[KeepingPolicy]) -> None:
    """Refuse a list that has something else than policies in it.

    Raises:
        SettingsError: The message says which.
    """
    if len(policies) > MOST_POLICIES:
        raise SettingsError(f"{len(policies)} policies, at most {MOST_POLICIES} may be")
    for number, policy in enumerate(policies):
        try:
            policy.check()
        except SettingsError as exc:
            raise SettingsError(f"policies.{number}.{exc}") from exc


def _policy(fields: dict[str, Any]) -> KeepingPolicy:
    return KeepingPolicy(**{**fields, "keep_days": float(fields["keep_days"])})
