"""The group of all commands: one module each in the folders beside, imported only when it is used.

So `mqlake gateway` never imports pyspark, and `mqlake --help` imports no command at all: it shows
the first line of each module's docstring. A command is a module that defines `command`.
"""

import ast
import importlib
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from mqlake.errors import MqlakeError

_FOLDER = Path(__file__).parent


class LazyGroup(click.Group):
    """Finds a command by its file name; a hyphen of the command is an underscore there."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = _modules().get(cmd_name)
        if path is None or _summary(path) is None:
            return None
        module = importlib.import_module(f"cli.{path.parent.name}.{path.stem}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            similar = get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = f"Did you mean {similar[0]!r}? " if similar else ""
            ctx.fail(f"No such command {args[0]!r}. {meant}`bin/mqlake --help` lists all.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_summaries().items()))


def _modules() -> dict[str, Path]:
    """Return the modules that may be a command's, by the command's name."""
    return {path.stem.replace("_", "-"): path for path in _FOLDER.glob("*/*.py")}


def _summaries() -> dict[str, str]:
    """Return the first line of each command's module, by the command's name."""
    found = {name: _summary(path) for name, path in _modules().items()}
    return {name: summary for name, summary in found.items() if summary is not None}


def _summary(path: Path) -> str | None:
    """Return the first line of a command's module; None for a module that is no command."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not any(isinstance(node, ast.FunctionDef) and node.name == "command" for node in tree.body):
        return None
    return (ast.get_docstring(tree) or "").partition("\n")[0]


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
def mqlake() -> None:
    """MQTT platform whose engine is Spark.

    Start with `bin/mqlake up`, then `bin/mqlake demo`.
    """


def main() -> int:
    """Run the command line; a failure of ours or of the machine is one sentence and exit code 1."""
    try:
        mqlake(prog_name="mqlake")
    except (MqlakeError, OSError) as exc:
        sys.stderr.write(f"mqlake: {exc}\n")
        return 1
    return 0
