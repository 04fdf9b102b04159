"""Tells the table `audit_log` of changes that commands make without a request of the API."""

import getpass
import time
from pathlib import Path
from typing import Any

import click

from api.log.appending import LogAppender
from mqlake.errors import LogError, OperationalError
from mqlake.processes.status import read_state
from mqlake.records.audit import AuditRecord, encode_audit
from mqlake.records.messages import EVENTS
from mqlake.records.tenants import DEFAULT_TENANT


def tell(data_dir: Path, operation: str, tenant: str | None, asked: Any) -> None:
    """Append a row to the log of a system; arguments as of `tell_log`."""
    try:
        servers = read_state(data_dir).bootstrap_servers
    except OperationalError as exc:
        _not_told(exc)
    else:
        tell_log(servers, operation, tenant, asked)


def tell_log(servers: str, operation: str, tenant: str | None, asked: Any) -> None:
    """Append a row: a command and its user on this machine; say when that is not possible.

    Args:
        servers: Log that takes the record.
        operation: The command, without `bin/mqlake`.
        tenant: Owner of the thing changed; None: all tenants.
        asked: Its arguments, as JSON has them.
    """
    record = AuditRecord(
        ts=time.time_ns() // 1_000_000,
        tenant=tenant or DEFAULT_TENANT,
        tenants=() if tenant is None else (tenant,),
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
        key = f"{DEFAULT_TENANT}/".encode()
        value = encode_audit(record)
        LogAppender(servers).append(EVENTS, key, value, what="audit record")
    except LogError as exc:
        _not_told(exc)


def _not_told(reason: Exception) -> None:
    click.echo(f"not in the audit log: {reason}", err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number that no user of the machine has
        return "unknown"
