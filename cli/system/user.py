"""Add, remove and list the users of a credentials file."""

from pathlib import Path

import click

from cli.shared import options as _options
from cli.shared.audit_log import tell
from cli.shared.passwords import read_password
from mqlake.processes.status import load_state
from mqlake.security.argon2_verifiers import (
    DEFAULT_WORK,
    MAX_MEMORY_KIB,
    MAX_PASSES,
    MIN_MEMORY_KIB,
    CheckWork,
    make_argon2_verifier,
)
from mqlake.security.credentials import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    PasswordVerifier,
    make_verifier,
    read_credentials,
    remove_user,
    set_user,
)

_file = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Credentials file, as the gateways' setting credentials_file.",
)


@click.group()
def command() -> None:
    """Add, remove and list the users of a credentials file.

    The file contains verifiers, no passwords. A running gateway reloads it on SIGHUP.
    """


@command.command("add")
@click.argument("name")
@_file
@_options.data_dir
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=DEFAULT_ITERATIONS,
    help="SCRAM iterations: work to check and to guess a password, also for the client.",
)
@click.option(
    "--argon2id",
    is_flag=True,
    help="Use Argon2id, which is harder to guess; the user then cannot log in by SCRAM.",
)
@click.option(
    "--memory-kib",
    type=click.IntRange(MIN_MEMORY_KIB, MAX_MEMORY_KIB),
    default=DEFAULT_WORK.memory_kib,
    help="Memory of Argon2id.",
)
@click.option(
    "--passes",
    type=click.IntRange(1, MAX_PASSES),
    default=DEFAULT_WORK.passes,
    help="Passes of Argon2id over that memory.",
)
def add(
    name: str,
    path: Path,
    data_dir: Path,
    iterations: int,
    argon2id: bool,
    memory_kib: int,
    passes: int,
) -> None:
    """Add a user, or change a user's password.

    The command prompts for the password; without a terminal it reads the first line of standard
    input. It creates a missing file.
    """
    password = read_password()
    verifier: PasswordVerifier
    if argon2id:
        verifier = make_argon2_verifier(password, CheckWork(memory_kib, passes, DEFAULT_WORK.lanes))
    else:
        verifier = make_verifier(password, iterations=iterations)
    is_new = set_user(path, name, verifier)
    _tell(data_dir, "user add", name, path)
    click.echo(f"user {name} {'added' if is_new else 'changed'}", err=True)


@command.command("remove")
@click.argument("name")
@_file
@_options.data_dir
def remove(name: str, path: Path, data_dir: Path) -> None:
    """Remove a user."""
    remove_user(path, name)
    _tell(data_dir, "user remove", name, path)
    click.echo(f"user {name} removed", err=True)


def _tell(data_dir: Path, operation: str, name: str, path: Path) -> None:
    """Tell the audit log of the system that is there; without one, gateways that read the file."""
    if load_state(data_dir) is not None:
        tell(data_dir, operation, None, {"name": name, "file": str(path.absolute())})


@command.command("list")
@_file
def list_users(path: Path) -> None:
    """Print the user names, one per line."""
    for name in read_credentials(path):
        click.echo(name)
