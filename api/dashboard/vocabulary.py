"""Constants of the API that the dashboard knows too, said once, in Python.

`python -m api.dashboard.vocabulary` writes the module of JavaScript that has them.
"""

import json
from pathlib import Path
from typing import Any, Final

from api.access import views as access
from api.alarms import changes as alarms
from api.clients import control
from api.jobs import jobs, pace
from api.live import topics
from api.replay import order as replay
from api.web import pages
from mqlake.records.access import ROLES
from mqlake.records.members import MAX_UINT32
from mqlake.records.sessions import NEVER_EXPIRES
from rules import model as rules
from rules import references
from rules.schemas import model as schemas

FILE: Final = Path(__file__).parent / "static" / "core" / "vocabulary.js"
CONSTANTS: Final[dict[str, Any]] = {
    "ROLES": ROLES,
    "UNFINISHED": jobs.UNFINISHED,
    "MAX_LIMIT": pages.MAX_LIMIT,
    "ACCOUNT_NAME": access.ACCOUNT_NAME,
    "MIN_PASSWORD": access.MIN_PASSWORD_CHARACTERS,
    "MAX_PASSWORD": access.MAX_PASSWORD_CHARACTERS,
    "MAX_KEY_DESCRIPTION": access.MAX_KEY_DESCRIPTION_CHARACTERS,
    "MAX_NOTE": alarms.MAX_NOTE_CHARACTERS,
    "MAX_RULE_NAME": rules.MAX_NAME_CHARACTERS,
    "MAX_RULE_DESCRIPTION": rules.MAX_DESCRIPTION_CHARACTERS,
    "MAX_SCHEMA_DESCRIPTION": schemas.MAX_DESCRIPTION_CHARACTERS,
    "MAX_REFERENCE_DESCRIPTION": references.MAX_DESCRIPTION_CHARACTERS,
    "MAX_TOPICS": topics.MAX_TOPICS,
    "MAX_KEPT_BYTES": topics.MAX_KEPT_BYTES,
    "DRAIN_PER_SECOND": control.DRAIN_PER_SECOND,
    "MAX_DRAIN_PER_SECOND": control.MAX_DRAIN_PER_SECOND,
    "REPLAY_RATE": pace.DEFAULT_RATE,
    "REPLAY_CLIENT_RATE": replay.CLIENT_RATE,
    "MAX_UINT32": MAX_UINT32,
    "NEVER_EXPIRES": NEVER_EXPIRES,
}


def javascript_source() -> str:
    """Return the source of the module."""
    lines = [f"export const {name} = {json.dumps(value)};" for name, value in CONSTANTS.items()]
    head = "/** Constants of the API; api/dashboard/vocabulary.py has written them. */"
    return "\n".join((head, "", *lines, ""))


if __name__ == "__main__":
    FILE.write_text(javascript_source(), encoding="utf-8")
