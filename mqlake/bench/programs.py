"""The programs that put the load on: in C, or in Python where there is no C compiler."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_SHARED: Final = "common.h"
COMPILERS: Final = ("cc", "gcc", "clang")
_COMPILE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Programs:
    """Commands without their options."""

    language: str
    loader: tuple[str, ...]
    """Messages: `loader.c`."""
    connector: tuple[str, ...]
    """Connections: `connector.c`."""


FALLBACK: Final = Programs(
    "Python",
    loader=(sys.executable, "-m", "mqlake.bench.fallback_loader"),
    connector=(sys.executable, "-m", "mqlake.bench.fallback_connector"),
)


def build_programs(folder: Path) -> Programs:
    """Return the load programs, compiled into the folder if that has not been done yet.

    Without a compiler they are the Python ones, which are much slower.
    """
    loader = _build("loader", folder)
    connector = _build("connector", folder)
    if loader is None or connector is None:
        return FALLBACK
    return Programs("C", (str(loader),), (str(connector),))


def _build(name: str, folder: Path) -> Path | None:
    source = _FOLDER / f"{name}.c"
    content = source.read_bytes() + (_FOLDER / _SHARED).read_bytes()
    program = folder / f"{name}-{sha256(content).hexdigest()[:12]}"
    if program.exists():
        return program
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        return None
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
        # A compiler without its C library's headers is as good as none.
        return None
    unfinished.replace(program)
    return program
