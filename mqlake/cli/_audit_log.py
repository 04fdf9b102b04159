"""Tells the table `audit_log` of what commands change without a request of the API."""

import getpass
import time
from pathlib import Path
from typing import Any

import click

from api.log import LogAppender
from mqlake.audit_records import AuditRecord, encode_audit
from mqlake.errors import LogError, OperationalError
from mqlake.records import EVENTS
from mqlake.status import read_state


def tell(data_dir: Path, operation: str, tenant: str, asked: Any) -> None:
    """Append a row: who of this machine has run which command; say when that is not possible.

    Args:
        data_dir: Of the system, whose log takes it.
        operation: The command, without `bin/mqlake`.
        tenant: Of what was changed.
        asked: Its arguments, as JSON has them.
    """
    record = AuditRecord(
        ts=time.time_ns() // 1_000_000,
        tenant=tenant,
        caller=f"shell:{_user()}",
        role=None,
        credential="shell",
        address="",
        agent="mqlake",
        request_id="",
        operation=operation,
        target="",
        status=None,
        asked=asked,
    )
    try:
        servers = read_state(data_dir).bootstrap_servers
        key = f"{tenant}/".encode()
        LogAppender().append(servers, EVENTS, key, encode_audit(record), what="audit record")
    except (OperationalError, LogError) as exc:
        click.echo(f"not in the audit log: {exc}", err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number that no user of the machine has
        return "unknown"
