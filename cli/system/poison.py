"""Messages that crashed the engine: list, skip, evaluate again."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from cli.shared import options as _options
from cli.shared.audit_log import tell
from cli.shared.tables import print_table
from streaming.application.poison_file import Poison, PoisonPlace


@click.group()
def command() -> None:
    """Messages that crashed the engine.

    When the engine has crashed twice while it evaluated a rule on a message, the message is skipped
    for that rule: it becomes a dead letter, and the rule is paused until it is changed.
    """


@command.command("list")
@_options.data_dir
@_options.as_json
def list_places(data_dir: Path, as_json: bool) -> None:
    """List the rules and records at which the engine crashed."""
    entries = Poison(data_dir).entries()
    if as_json:
        click.echo(json.dumps([entry.to_json() for entry in entries], indent=2))
        return
    print_table(
        ("tenant", "rule", "record", "version", "ended", "last", "passed over"),
        (
            (
                entry.place.tenant,
                entry.place.rule,
                entry.place.record,
                str(entry.version or ""),
                str(entry.deaths),
                datetime.fromtimestamp(entry.at_ms / 1000, UTC).isoformat(timespec="seconds"),
                "yes" if entry.skipped else "no",
            )
            for entry in entries
        ),
    )


@command.command("skip")
@click.argument("rule_id")
@click.argument("record")
@_options.data_dir
@click.option("--tenant", default="default", help="Identifier of the rule.")
def skip(rule_id: str, record: str, data_dir: Path, tenant: str) -> None:
    """Skip RECORD for a rule: i:<partition>:<offset> of mqlake.inbound, e:… of mqlake.events.

    Takes effect within seconds, or when the engine starts again.
    """
    Poison(data_dir).skip(PoisonPlace.of(tenant, rule_id, record), time.time_ns() // 1_000_000)
    tell(data_dir, "poison skip", tenant, {"rule": rule_id, "record": record})
    click.echo(f"{tenant}/{rule_id} passes over {record}")


@command.command("forget")
@_options.data_dir
def forget(data_dir: Path) -> None:
    """Evaluate skipped records again if they are read again."""
    count = Poison(data_dir).forget()
    tell(data_dir, "poison forget", None, {"places": count})
    click.echo(f"{count} places forgotten")
