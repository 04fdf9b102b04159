"""Sources from which commands take a password: an option, a file, the terminal."""

import sys

import click

from mqlake.errors import OperationalError


def read_password() -> str:
    """Ask for a new password; without a terminal it is the first line of standard input.

    Raises:
        OperationalError: That line is no text.
    """
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return password
    try:
        line = sys.stdin.buffer.readline().decode()
    except UnicodeDecodeError as exc:
        raise OperationalError("the password on standard input is not UTF-8 text") from exc
    return line.removesuffix("\n").removesuffix("\r")
