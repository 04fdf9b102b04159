"""Files in which operators write rules: TOML, with one table each, that no other user may write."""

import os
import tomllib
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from mqlake.errors import MqlakeError

_WRITABLE: Final = 0o022

Model = TypeVar("Model", bound=BaseModel)


def read_operator_file(path: Path, what: str, error: type[MqlakeError]) -> str:
    """Return the text of a file.

    Args:
        path: The file.
        what: What it holds, for the error: `rights`.
        error: To be raised: it cannot be read, or others may write it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read().decode()
    except UnicodeDecodeError as exc:
        raise error(f"{what} file {path} is not UTF-8 text") from exc
    except OSError as exc:
        raise error(f"{what} file {path}: {exc.strerror}") from exc
    if mode & _WRITABLE:
        raise error(
            f"others may write the {what} file {path} (mode {mode:04o}): run chmod go-w {path}"
        )
    return text


def parse_operator_file(
    text: str, model: type[Model], error: type[MqlakeError], table: str
) -> Model:
    """Return the model that a text holds.

    Args:
        text: TOML.
        model: Model of the whole file.
        error: Class of the error for a bad text or entry; it names the entry, counted from 1.
        table: Name of the list of entries, in the plural: `rules`.
    """
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as exc:
        raise error(str(exc)) from exc
    except ValidationError as exc:
        raise error(_explain(exc, table)) from exc


def _explain(error: ValidationError, table: str) -> str:
    problem = error.errors()[0]
    place = list(problem["loc"])
    text = problem["msg"].removeprefix("Value error, ")
    if place[:1] == [table] and len(place) > 1:
        place[:2] = [f"{table.removesuffix('s')} {int(place[1]) + 1}"]
    words = ": ".join(filter(None, [".".join(map(str, place)).replace(".", ": ", 1), text]))
    if not isinstance(problem["input"], dict):
        words += f", got {problem['input']!r}"
    return words
