"""The programs that put the load on, compiled from C at their first use."""

import shutil
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError

_FOLDER: Final = Path(__file__).parent
_SHARED: Final = "common.h"
COMPILERS: Final = ("cc", "gcc", "clang")
_COMPILE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class LoadPrograms:
    """Commands without their options."""

    loader: tuple[str, ...]
    """Messages: `loader.c`."""
    connector: tuple[str, ...]
    """Connections: `connector.c`."""


def build_programs(folder: Path) -> LoadPrograms:
    """Return the load programs, compiled into the folder if that has not been done yet.

    Raises:
        OperationalError: There is no C compiler, or it cannot compile them.
    """
    return LoadPrograms((str(_build("loader", folder)),), (str(_build("connector", folder)),))


def _build(name: str, folder: Path) -> Path:
    source = _FOLDER / f"{name}.c"
    content = source.read_bytes() + (_FOLDER / _SHARED).read_bytes()
    program = folder / f"{name}-{sha256(content).hexdigest()[:12]}"
    if program.exists():
        return program
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise _cannot("there is no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_suffix(".new")
    built = subprocess.run(
        [compiler, "-O2", "-o", str(unfinished), str(source)],
        capture_output=True,
        text=True,
        timeout=_COMPILE_SECONDS,
        check=False,
    )
    if built.returncode != 0:
        raise _cannot(f"{compiler} says {built.stderr.strip().partition(chr(10))[0]!r}")
    unfinished.replace(program)
    return program


def _cannot(why: str) -> OperationalError:
    return OperationalError(
        f"the programs that put the load on cannot be compiled: {why}; install a C compiler and "
        "the headers of its library (Debian: apt install gcc libc6-dev)"
    )
