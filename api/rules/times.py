"""Times as results of jobs show them."""

from datetime import UTC, datetime
from typing import Final

HOUR_MS: Final = 3_600_000


def shown_time(ms: int) -> str:
    """Return milliseconds since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat().replace("+00:00", "Z")
