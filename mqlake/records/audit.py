"""A record of `mqlake.events` that becomes a row of `audit_log`: a change and its author."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from mqlake.records.versions import RECORD_VERSION

AUDIT_EVENT: Final = "audit"
"""Its `event`; no rule can ask for it, and it is no row of `events`."""

MAX_TEXT: Final = 2_000
"""Characters of texts that a caller tells of himself."""
MAX_STATE: Final = 64 * 1024
"""Characters of a state as JSON; of a larger one only its size is kept."""


@dataclass(slots=True, frozen=True)
class AuditRecord:
    """One change, or an attempt; the fields are columns of the table."""

    ts: int
    """When it was answered, UTC epoch in milliseconds."""
    tenant: str
    """That was asked for; the default one of an operation that asks for none."""
    tenants: tuple[str, ...]
    """Tenants of its subject; (): all tenants, or none."""
    caller: str
    role: str | None
    credential: str
    address: str
    agent: str
    request_id: str
    operation: str
    target: str
    status: int | None
    gateway: str | None = None
    detail: str | None = None
    asked: Any = None
    """JSON, as `before` and `after`; without secrets."""
    before: Any = None
    after: Any = None


def encode_audit(record: AuditRecord) -> bytes:
    members: dict[str, Any] = {"v": RECORD_VERSION, "event": AUDIT_EVENT, **asdict(record)}
    for name in ("agent", "target", "detail"):
        if members[name] is not None:
            members[name] = members[name][:MAX_TEXT]
    for name in ("asked", "before", "after"):
        size = len(json.dumps(members[name]))
        if size > MAX_STATE:
            members[name] = {"left_out": f"{size} characters of JSON"}
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")  # half a surrogate pair is no text for anybody else
