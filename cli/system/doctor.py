"""Check a running system and report problems."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cli.shared import options as _options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.doctor.contract import Finding

_COLOURS: Final = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@_options.data_dir
@click.option("--username", default=None, help="User name for connections to the gateways.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="File with the password of that user.",
)
@_options.as_json
def command(
    data_dir: Path, username: str | None, password_file: Path | None, as_json: bool
) -> None:
    """Check a running system and report problems.

    Connects to everything as a client would, and publishes a message below mqlake/doctor/ through
    each gateway; changes nothing. The exit code is 0 if there is no error.
    """
    from launcher.doctor.contract import Level
    from launcher.doctor.examination import examine, new_patient, worst

    password = None
    if password_file is not None:
        password = password_file.read_text(encoding="utf-8").strip()
    patient, findings = new_patient(data_dir, username, password)
    if as_json:
        findings += examine(patient)
        level = worst(findings)
        found = {"level": level, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(found, indent=2))
    else:
        _print(findings)
        for finding in examine(patient):
            findings.append(finding)
            _print([finding])
        level = worst(findings)
        click.echo(_summary(findings))
    sys.exit(1 if level is Level.ERROR else 0)


def _print(findings: "Iterable[Finding]") -> None:
    for finding in findings:
        level = click.style(f"{finding.level:<7}", fg=_COLOURS[finding.level])
        click.echo(f"{level}  {finding.check:<11}  {finding.detail}")
        if finding.advice:
            click.echo(f"{'':<22}{click.style('→', dim=True)} {finding.advice}")


def _summary(findings: "list[Finding]") -> str:
    counts = {
        name: sum(finding.level == name for finding in findings) for name in ("error", "warning")
    }
    if not any(counts.values()):
        return "all is well"
    return ", ".join(f"{count} {name}s" for name, count in counts.items() if count)
