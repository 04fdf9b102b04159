"""Rules: list, test, plan and apply files, run over history."""

import json
import time
from pathlib import Path
from typing import Any, Final

import click

from cli.shared import options as _options
from cli.shared.jobs import await_job
from cli.shared.rule_files import SUFFIXES, RuleFileChange, plan, read_existing, read_files, refuse
from cli.shared.tables import print_list, print_table, tell_complete
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError
from rules.documents import content_of, read_documents, write_document
from rules.model import RuleBody

DEFAULT_FOLDER: Final = Path("conf/rules")
CHANGES_EXIT_CODE: Final = 2
_POLL_SECONDS: Final = 0.3
_ENGINE_SECONDS: Final = 10.0
"""How long `apply` waits for the engine to answer for the last change."""
_SHOWN_CHARACTERS: Final = 60
_SIGNS: Final = {"create": "+", "change": "~", "delete": "-"}
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan", "~": "yellow"}

_paths = click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
_prune = click.option("--prune", is_flag=True, help="Delete rules that are in no file.")


@click.group()
def command() -> None:
    """Manage rules.

    A file contains rules as YAML, separated by `---`; `export` writes such files, `plan` shows what
    `apply` would change.
    """


@command.command("list")
@_options.system
@_options.as_json
def list_rules(system: System, as_json: bool) -> None:
    """List rules and their states in the engine."""
    rules = list(ApiClient(system).items("/rules"))
    titles = ("rule", "state", "version", "reads", "actions", "name", "why it does not run")
    print_list(rules, titles, _row, as_json=as_json)


@command.command("get")
@click.argument("rule_id")
@_options.system
@click.option("--version", type=click.IntRange(1), help="An earlier version.")
@_options.as_json
def get_rule(rule_id: str, system: System, version: int | None, as_json: bool) -> None:
    """Print a rule in the file format."""
    path = f"/rules/{rule_id}" if version is None else f"/rules/{rule_id}/versions/{version}"
    rule = ApiClient(system).get(path)
    click.echo(json.dumps(rule, indent=2) if as_json else _document(rule), nl=as_json)


@command.command("delete")
@click.argument("rule_ids", nargs=-1, required=True)
@_options.system
def delete_rules(rule_ids: tuple[str, ...], system: System) -> None:
    """Delete rules."""
    api = ApiClient(system)
    for rule_id in rule_ids:
        api.delete(f"/rules/{rule_id}")
        click.echo(f"deleted {rule_id}")


@command.command("test")
@click.argument("rule")
@_options.system
@click.option("--topic", help="Topic name.  [default: one that the rule matches]")
@click.option("--payload", default="", help="Payload; @FILE reads it from a file.")
@click.option(
    "--context", default="{}", help="Further columns of the message, or an event, as JSON."
)
@_options.as_json
def test_rule(
    rule: str, system: System, topic: str | None, payload: str, context: str, as_json: bool
) -> None:
    """Evaluate a rule on one test message.

    RULE is a file with one rule, the identifier of a rule, or SQL. The exit code is 0 if there is
    an output, 2 if there is none, 1 if the rule fails.
    """
    api = ApiClient(system)
    fields = _context(context)
    if topic is not None:
        fields["topic"] = topic
    if payload.startswith("@"):
        payload = Path(payload[1:]).read_text(encoding="utf-8")
    if payload:
        fields["payload"] = payload
    found = api.post("/rule_test", {"sql": _sql(api, rule), "context": fields})
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif found["error"] is not None:
        raise OperationalError(f"the rule fails: {found['error']}")
    else:
        for output in found["outputs"]:
            click.echo(json.dumps(output, ensure_ascii=False))
        if not found["matched"]:
            click.echo(f"no match: {found['reason']['detail']}")
    if not found["matched"]:
        raise SystemExit(1 if found["error"] is not None else CHANGES_EXIT_CODE)


@command.command("plan")
@_paths
@_options.system
@_prune
def plan_rules(paths: tuple[Path, ...], system: System, prune: bool) -> None:
    """Show what `apply` would change.

    PATHS are files and folders; default: conf/rules. The exit code is 0 if nothing would change, 2
    if something would, 1 if a file or the system is not usable.
    """
    changes = _plan(ApiClient(system), paths, prune=prune)
    for change in changes:
        _print_change(change)
    click.echo(_summary(changes))
    if changes:
        raise SystemExit(CHANGES_EXIT_CODE)


@command.command("apply")
@_paths
@_options.system
@_prune
def apply_rules(paths: tuple[Path, ...], system: System, prune: bool) -> None:
    """Create and change rules as in the files; equal ones stay as they are.

    PATHS are files and folders; default: conf/rules.
    """
    api = ApiClient(system)
    changes = _plan(api, paths, prune=prune)
    for change in changes:
        _apply(api, change)
    states = _await_states(api, changes)
    for change in changes:
        click.echo(f"{_SIGNS[change.kind]} {change.rule_id}: {states[change.rule_id]}")
    failed = [rule_id for rule_id, said in states.items() if said.startswith("failed")]
    if not changes:
        click.echo(_summary(changes))
    if failed:
        raise OperationalError(f"not running: {', '.join(failed)}")


@command.command("export")
@click.argument("rule_ids", nargs=-1)
@_options.system
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for one file per rule.  [default: print all]",
)
def export_rules(rule_ids: tuple[str, ...], system: System, folder: Path | None) -> None:
    """Write rules to files; without RULE_IDS all of them."""
    api = ApiClient(system)
    if rule_ids:
        rules = [api.get(f"/rules/{rule_id}") for rule_id in rule_ids]
    else:
        rules = list(api.items("/rules"))
    if folder is None:
        click.echo("---\n".join(map(_document, rules)), nl=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for rule in rules:
        path = folder / f"{rule['id']}.yaml"
        path.write_text(_document(rule), encoding="utf-8")
        click.echo(path)


@command.command("metrics")
@click.argument("rule_id")
@_options.system
@click.option("--reset", is_flag=True, help="Reset the counters.")
def show_metrics(rule_id: str, system: System, reset: bool) -> None:
    """Print the metrics of a rule as JSON."""
    api = ApiClient(system)
    path = f"/rules/{rule_id}/metrics"
    found = api.put(f"{path}/reset") if reset else api.get(path)
    click.echo(json.dumps(found, indent=2))


@command.command("dry-run")
@click.argument("rule_id")
@_options.system
@click.option("--from", "begin", help="Only messages received at or after: 2026-01-31T12:00:00Z.")
@click.option("--to", "end", help="Only messages received before.")
@click.option("--limit", type=click.IntRange(1), help="Only this many messages, the newest.")
@click.option("--table-version", type=click.IntRange(0), help="Version of the table.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Use the rule in this file.",
)
@click.option("--version", type=click.IntRange(1), help="An earlier version of the rule.")
@_options.as_json
def dry_run(
    rule_id: str,
    system: System,
    begin: str | None,
    end: str | None,
    limit: int | None,
    table_version: int | None,
    file: Path | None,
    version: int | None,
    as_json: bool,
) -> None:
    """Evaluate a rule on stored messages, without its actions."""
    api = ApiClient(system)
    asked: dict[str, Any] = {
        "from": begin,
        "to": end,
        "limit": limit,
        "table_version": table_version,
        "version": version,
    }
    if file is not None:
        asked["sql"] = _one(file).sql
    job = await_job(api, api.post(f"/rules/{rule_id}/dry_run", asked), quiet=as_json)
    if as_json:
        click.echo(json.dumps(job["result"], indent=2, ensure_ascii=False))
    else:
        print_result(job)


@command.command("backfill")
@click.argument("rule_id")
@_options.system
@click.option("--from", "begin", help="Only messages received at or after: 2026-01-31T12:00:00Z.")
@click.option("--rate", type=click.IntRange(1, 50_000), default=1000, help="Outputs per second.")
@click.option("--missed", is_flag=True, help="Only messages missed while the rule was stopped.")
@click.option("--resume", metavar="JOB", help="Resume a replay that was interrupted or cancelled.")
def backfill(
    rule_id: str, system: System, begin: str | None, rate: int, missed: bool, resume: str | None
) -> None:
    """Run the actions of a running rule for messages before it."""
    api = ApiClient(system)
    if resume is not None:
        started = api.post(f"/jobs/{resume}/resume", {})
    else:
        asked = {"from": begin, "rate": rate, "missed": missed}
        started = api.post(f"/rules/{rule_id}/backfill", asked)
    _await_backfill(api, started)


def _await_backfill(api: ApiClient, started: dict[str, Any]) -> None:
    click.echo(f"job {started['id']}", err=True)
    job = await_job(api, started, quiet=False)
    result = job["result"]
    names = ("matched", "passed", "no_result", "failed", "loops", "outputs")
    counts = ", ".join(f"{result[name]:,} {name}" for name in names)
    click.echo(f"{counts} in {job['seconds']:.1f} s")


@command.command("resume")
@click.argument("rule_id")
@_options.system
@click.option(
    "--from",
    "begin",
    type=click.Choice(("now", "pause")),
    default="now",
    help="Continue with new messages, or also with those since the pause.",
)
@click.option("--rate", type=click.IntRange(1, 50_000), default=1000, help="Outputs per second.")
def resume(rule_id: str, system: System, begin: str, rate: int) -> None:
    """Resume a paused rule, unchanged."""
    api = ApiClient(system)
    asked = {"from": begin, "rate": rate}
    found = api.post(f"/rules/{rule_id}/resume", asked, wait=_ENGINE_SECONDS)
    rule, job = found["rule"], found["job"]
    click.echo(f"{rule_id}: {rule['state']}, version {rule['version']}")
    if job is not None:
        _await_backfill(api, job)
    elif begin == "pause" and rule["state"] != "running":
        raise OperationalError(
            f"the rule does not run yet; once it does: bin/mqlake rules backfill {rule_id} --missed"
        )


@command.command("dead-letters")
@click.argument("rule_id", required=False)
@_options.system
@click.option("--open", "only_open", is_flag=True, help="Only those not evaluated again since.")
@click.option("--error", help="Only those whose error contains this.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, help="Only this many, the newest."
)
@_options.as_json
def list_dead_letters(
    rule_id: str | None,
    system: System,
    only_open: bool,
    error: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List dead letters of evaluations and actions, newest first.

    The last line on standard error says up to when the list is complete.
    """
    wanted = {"rule": rule_id, "error": error, "open": True if only_open else None}
    found = ApiClient(system).get("/dead_letters", limit=limit, **wanted)
    if as_json:
        click.echo(json.dumps(found["items"], indent=2, ensure_ascii=False))
    else:
        titles = ("given up at", "rule", "stage", "topic", "payload", "error")
        print_table(titles, map(_dead_letter, found["items"]))
    tell_complete(found["complete_until"])


@command.command("rerun")
@click.argument("rule_id")
@_options.system
@click.option("--from", "begin", help="Only those given up at or after: 2026-01-31T12:00:00Z.")
@click.option("--to", "end", help="Only those given up before.")
@click.option("--error", help="Only those whose error contains this.")
@click.option("--rate", type=click.IntRange(1, 50_000), default=1000, help="Outputs per second.")
def rerun(
    rule_id: str,
    system: System,
    begin: str | None,
    end: str | None,
    error: str | None,
    rate: int,
) -> None:
    """Evaluate failed messages of a rule again, with the current rule and schemas."""
    api = ApiClient(system)
    asked = {"from": begin, "to": end, "error": error, "rate": rate}
    job = await_job(api, api.post(f"/rules/{rule_id}/dead_letters/rerun", asked), quiet=False)
    result = job["result"]
    names = ("letters", "passed", "no_result", "failed", "not_matched", "loops", "outputs")
    counts = ", ".join(f"{result[name]:,} {name}" for name in names)
    click.echo(f"{counts} in {job['seconds']:.1f} s")
    for failed in result["errors"]:
        click.secho(f"{failed['topic']}: {failed['error']}", fg="red")


def _plan(api: ApiClient, paths: tuple[Path, ...], *, prune: bool) -> list[RuleFileChange]:
    if not paths and not DEFAULT_FOLDER.is_dir():
        raise OperationalError(f"there is no folder {DEFAULT_FOLDER}: name files or folders")
    wanted = read_files(paths or (DEFAULT_FOLDER,))
    changes = plan(wanted, read_existing(api.items("/rules")), prune=prune)
    for change in changes:
        if change.after is not None:
            # Only the system knows its schemas and reference tables.
            asked = change.after.model_dump(mode="json", include={"sql", "actions"})
            for problem in api.post("/rules/validate", asked)["errors"]:
                refuse(change.rule_id, wanted[change.rule_id].path, problem)
    return changes


def _apply(api: ApiClient, change: RuleFileChange) -> None:
    """Ask for it, and do not wait for the engine: it takes many changes at once."""
    path = f"/rules/{change.rule_id}"
    if change.after is None:
        api.delete(path)
        return
    body = change.after.model_dump(mode="json")
    if change.before is None:
        api.post("/rules", {**body, "id": change.rule_id}, wait=0)
    else:
        api.put(path, {**body, "version": change.before.version}, wait=0)


def _await_states(api: ApiClient, changes: list[RuleFileChange]) -> dict[str, str]:
    """Return the engine's states of the rules that were changed; `starting` where it has none."""
    changed = {change.rule_id for change in changes}
    deadline = time.monotonic() + _ENGINE_SECONDS
    while True:
        rules = list(api.items("/rules")) if changes else []
        states = dict.fromkeys(changed, "deleted")
        for rule in rules:
            if rule["id"] in changed:
                said = rule["state"]
                states[rule["id"]] = f"{said}: {rule['error']}" if rule["error"] else said
        if "starting" not in states.values() or time.monotonic() > deadline:
            return states
        time.sleep(_POLL_SECONDS)


def _print_change(change: RuleFileChange) -> None:
    kind = {"create": "to be created", "change": "to be changed", "delete": "to be deleted"}
    sign = _SIGNS[change.kind]
    click.secho(f"{sign} {change.rule_id} is {kind[change.kind]}", bold=True, fg=_COLOURS[sign])
    for line in change.diff():
        click.secho(f"    {line}", fg=_COLOURS.get(line[:1]))


def _summary(changes: list[RuleFileChange]) -> str:
    if not changes:
        return "no changes: the rules are as the files say"
    kinds: list[str] = [change.kind for change in changes]
    return ", ".join(
        f"{kinds.count(kind)} {word}"
        for kind, word in (("create", "to add"), ("change", "to change"), ("delete", "to delete"))
    )


def _row(rule: dict[str, Any]) -> tuple[str, ...]:
    return (
        rule["id"],
        rule["state"],
        str(rule["version"]),
        ", ".join(rule["from"]),
        ", ".join(action["function"] for action in rule["actions"]),
        rule["name"],
        rule["error"] or "",
    )


def _dead_letter(letter: dict[str, Any]) -> tuple[str, ...]:
    payload = letter["payload"]
    shown = f"base64 {letter['payload_base64']}" if payload is None else payload
    return (
        letter["given_up_at"],
        letter["rule_id"],
        "run again" if letter["rerun"] else letter["action"] or letter["stage"],
        letter["topic"],
        shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…",
        letter["error"],
    )


def _document(rule: dict[str, Any]) -> str:
    body = RuleBody(**{name: rule[name] for name in RuleBody.model_fields})
    return write_document(rule["id"], body)


def _sql(api: ApiClient, rule: str) -> str:
    """Return the SQL that an argument means: a file, an identifier or SQL itself."""
    if any(one.isspace() for one in rule):
        return rule
    path = Path(rule)
    if path.is_file():
        return _one(path).sql
    if path.suffix in SUFFIXES or len(path.parts) > 1:
        raise OperationalError(f"there is no file {rule}")
    sql: str = api.get(f"/rules/{rule}")["sql"]
    return sql


def _one(path: Path) -> RuleBody:
    documents = list(read_documents(path.read_text(encoding="utf-8"), str(path)))
    if len(documents) != 1:
        raise OperationalError(f"{path} has {len(documents)} rules, expected one")
    return content_of(documents[0])


def _context(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise OperationalError(f"--context is not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise OperationalError("--context is not a JSON object")
    return found


def print_result(job: dict[str, Any]) -> None:
    """Print the results of a dry run; `job` is as the API gives it when it has succeeded."""
    result = job["result"]
    names = ("matched", "passed", "no_result", "failed", "outputs")
    counts = ", ".join(f"{result[name]:,} {name}" for name in names)
    click.echo(f"{counts} in {job['seconds']:.1f} s (table version {result['table_version']})")
    if len(result["hours"]) > 1:
        columns = ("hour", "matched", "passed", "failed", "outputs")
        rows = [tuple(str(hour[name]) for name in columns) for hour in result["hours"]]
        print_table(columns, rows)
    for sample in result["samples"]:
        click.echo(_sample(sample))
    for sample in result["errors"]:
        click.secho(f"{sample['topic']} {sample['payload']}: {sample['error']}", fg="red")
    difference = result["difference"]
    if difference is not None:
        words = ", ".join(
            f"{difference[name]:,} {name}"
            for name in ("same", "changed", "added", "removed")
            if name in difference  # rows of a stateful rule are there or not
        )
        click.echo(f"compared with version {difference['version']}: {words}")


def _sample(sample: dict[str, Any]) -> str:
    """Show a message with its outputs; of a stateful rule a row, with its time."""
    if "output" in sample:
        return f"{sample['at']} {json.dumps(sample['output'], ensure_ascii=False)}"
    shown = ", ".join(json.dumps(one, ensure_ascii=False) for one in sample["outputs"])
    return f"{sample['topic']} {sample['payload']} -> {shown}"
