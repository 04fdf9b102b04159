"""Reads a file of rights."""

from pathlib import Path

from mqlake.errors import MqlakeError
from mqlake.rights.compiled import Rights
from mqlake.rights.model import RightsFile
from mqlake.security.operator_files import parse_operator_file, read_operator_file


class RightsError(MqlakeError):
    """A file of rights that cannot be used."""


def read_rights(path: Path) -> Rights:
    """Return the rules of a file.

    Raises:
        RightsError: It cannot be read, others may write it, or a rule is none; says which.
    """
    text = read_operator_file(path, "rights", RightsError)
    try:
        return Rights(parse_rights(text))
    except RightsError as exc:
        raise RightsError(f"rights file {path}: {exc}") from exc


def parse_rights(text: str) -> RightsFile:
    """Return the rights in the text of a file.

    Raises:
        RightsError: It is no TOML, or a rule is none; says which, counted from 1.
    """
    return parse_operator_file(text, RightsFile, RightsError, "rules")
