"""Reads a file of rights."""

import os
import tomllib
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from mqlake.errors import MqlakeError
from mqlake.rights.compiled import Rights
from mqlake.rights.model import RightsFile

_WRITABLE: Final = 0o022


class RightsError(MqlakeError):
    """A file of rights that cannot be used."""


def read_rights(path: Path) -> Rights:
    """Return the rules of a file.

    Raises:
        RightsError: It cannot be read, others may write it, or a rule is none; says which.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read().decode()
    except UnicodeDecodeError as exc:
        raise RightsError(f"rights file {path} is not UTF-8 text") from exc
    except OSError as exc:
        raise RightsError(f"rights file {path}: {exc.strerror}") from exc
    if mode & _WRITABLE:
        raise RightsError(
            f"others may write the rights file {path} (mode {mode:04o}): run chmod go-w {path}"
        )
    try:
        return Rights(parse_rights(text))
    except RightsError as exc:
        raise RightsError(f"rights file {path}: {exc}") from exc


def parse_rights(text: str) -> RightsFile:
    """Return what the text of a file says.

    Raises:
        RightsError: It is no TOML, or a rule is none; says which, counted from 1.
    """
    try:
        return RightsFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as exc:
        raise RightsError(str(exc)) from exc
    except ValidationError as exc:
        raise RightsError(_explain(exc)) from exc


def _explain(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = list(problem["loc"])
    text = problem["msg"].removeprefix("Value error, ")
    if place[:1] == ["rules"] and len(place) > 1:
        place[:2] = [f"rule {int(place[1]) + 1}"]
    words = ": ".join(filter(None, [".".join(map(str, place)).replace(".", ": ", 1), text]))
    if not isinstance(problem["input"], dict):
        words += f", got {problem['input']!r}"
    return words
