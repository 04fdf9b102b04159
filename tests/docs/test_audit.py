"""What `docs/audit.md` says is what is audited, by names that the fault tests have."""

import re
from pathlib import Path

from api.relations.audits import AUDITS, COLUMNS
from resilience.checkers import CHECKERS

TEXT = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")


def test_every_audit_is_described_and_no_other() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| .+ \|$", TEXT, re.MULTILINE)
    assert rows == [(audit.name, audit.promise) for audit in AUDITS]


def test_audits_have_the_names_of_checkers() -> None:
    assert {audit.name for audit in AUDITS} <= {checker.name for checker in CHECKERS}


def test_columns_of_the_view_are_named() -> None:
    assert all(f"`{column}`" in TEXT for column in COLUMNS)
