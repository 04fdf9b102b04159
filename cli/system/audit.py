"""Check the records in the tables against the guarantees."""

import io
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client import CollectorRegistry, write_to_textfile

from api.relations.audits import AUDITS, COLUMNS, audit_select
from cli.shared import options as _options
from cli.shared.tables import print_table, printable
from mqlake.api_client import ApiClient
from mqlake.errors import OperationalError
from mqlake.metrics.families import Families

DEFAULT_DAYS: Final = 7
_ANSWER_SECONDS: Final = 30.0
"""Beyond the time of the query itself."""


@click.command()
@_options.data_dir
@click.option(
    "--since", type=click.DateTime(), default=None, help="UTC.  [default: 7 days before now]"
)
@click.option("--tenant", default="default", show_default=True, help="Tenant of the messages.")
@click.option("--timeout", type=click.FloatRange(min=1), default=300.0, help="Timeout in seconds.")
@click.option(
    "--every",
    type=click.FloatRange(min=1),
    default=None,
    help="Repeat the audit at this interval, in seconds.",
)
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Metrics file for the textfile collector of Prometheus' node exporter.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one array per audit.")
def command(
    data_dir: Path,
    since: datetime | None,
    tenant: str,
    timeout: float,
    every: float | None,
    textfile: Path | None,
    as_json: bool,
) -> None:
    """Check the records in the tables against the guarantees.

    For each guarantee it shows the number of cases, of violations and of undecided cases, and the
    first violation. docs/audit.md lists the data of each audit. The exit code is 1 if a guarantee
    is violated.
    """
    while True:
        start = since or datetime.now(UTC).replace(tzinfo=None) - timedelta(days=DEFAULT_DAYS)
        found = _audit(ApiClient(data_dir), start, tenant, timeout)
        if textfile is not None:
            write_metrics(textfile, tenant, found)
        if as_json:
            click.echo(json.dumps(found))
        else:
            _print(found, start)
        if every is None:
            break
        time.sleep(every)
    broken = [row["audit"] for row in found if row["broken"]]
    if broken:
        raise OperationalError(f"promises broken: {', '.join(broken)}")


def _audit(client: ApiClient, since: datetime, tenant: str, timeout: float) -> list[dict[str, Any]]:
    """Return a row for each audit, in their order, those without cases too."""
    query = " ".join(audit_select(lambda name: name, since).split())
    body = {"query": query, "format": "json", "timeout_seconds": timeout}
    seconds = timeout + _ANSWER_SECONDS
    with client.stream("/sql", body, timeout_seconds=seconds, tenant=tenant) as answer:
        rows = json.load(io.TextIOWrapper(answer, encoding="utf-8"))["rows"]
    by_name = {row[1]: dict(zip(COLUMNS, row, strict=True)) for row in rows}
    found = []
    for audit in AUDITS:
        row = by_name.get(audit.name, {})
        witness = row.get("witness")
        found.append(
            {
                "audit": audit.name,
                "promise": audit.promise,
                "checked": row.get("checked", 0),
                "broken": row.get("broken", 0),
                "unknown": row.get("unknown", 0),
                "first_at": row.get("first_at"),
                "witness": json.loads(witness) if witness else None,
            }
        )
    return found


def _print(found: list[dict[str, Any]], since: datetime) -> None:
    click.echo(f"since {since:%Y-%m-%d %H:%M:%S} UTC")
    figures = ("checked", "broken", "unknown")
    print_table(
        ("audit", *figures, "promise"),
        ((row["audit"], *(str(row[name]) for name in figures), row["promise"]) for row in found),
    )
    for row in found:
        if row["broken"]:
            click.echo(f"{row['audit']}: {printable(json.dumps(row['witness']))}")


def write_metrics(path: Path, tenant: str, found: list[dict[str, Any]]) -> None:
    """Write the findings as metrics; the file is replaced at once."""
    families = Families()
    for row in found:
        families.add("mqlake_audit_checked", row["checked"], tenant, row["audit"])
        families.add("mqlake_audit_broken", row["broken"], tenant, row["audit"])
        families.add("mqlake_audit_unknown", row["unknown"], tenant, row["audit"])
    families.add("mqlake_audit_ended_timestamp_seconds", time.time(), tenant)
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    write_to_textfile(str(path), registry)


class _Collected:
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Any:
        return self._families
