"""What integration tests need from registries beside their Python packages; kept in `.runtime`.

Each part is made when the first test asks for it, from pins with hashes: packages from
`conf/npm/package-lock.json`, a source distribution from `conf/requirements-dev.lock`. A stamp,
written last, holds the hash of the pins it was made from.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.installation import DEV_LOCK, select_packages
from launcher.paths import CONFIG, RUNTIME

TIMEOUT_SECONDS = 300


def node_modules() -> Path:
    """Return the folder of the packages for Node.js: an MQTT client and the linters.

    Raises:
        pytest.fail.Exception: There is no Node.js, or npm failed; with what it printed.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("node and npm are missing: apt install nodejs npm", pytrace=False)
    pins = [CONFIG / "npm" / name for name in ("package.json", "package-lock.json")]

    def make(folder: Path) -> None:
        for pin in pins:
            shutil.copy(pin, folder)
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)

    return _made("npm", b"".join(pin.read_bytes() for pin in pins), make) / "node_modules"


def source_distribution(package: str) -> Path:
    """Return the unpacked source distribution of the version of a package that is installed.

    Raises:
        pytest.fail.Exception: pip failed; with what it printed.
    """
    pin = select_packages((CONFIG / DEV_LOCK).read_text(encoding="utf-8"), (package,))

    def make(folder: Path) -> None:
        (folder / "pin.txt").write_text(pin, encoding="utf-8")
        _run(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--no-input",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
            "--require-hashes",
            "--requirement",
            "pin.txt",
            cwd=folder,
        )
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        archive.unlink()

    (unpacked,) = (path for path in _made(package, pin.encode(), make).iterdir() if path.is_dir())
    return unpacked


def _made(name: str, pins: bytes, make: Callable[[Path], None]) -> Path:
    """Return `.runtime/tests/<name>`, made anew when its pins are not those of its stamp."""
    folder = RUNTIME / "tests" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    stamp = folder.with_name(f"{name}.stamp")
    digest = hashlib.sha256(pins).hexdigest()
    with folder.with_name("lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text(encoding="ascii") == digest):
            stamp.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            stamp.write_text(digest, encoding="ascii")
    return folder


def _run(*command: str, cwd: Path) -> None:
    result = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if result.returncode != 0:
        pytest.fail(f"{' '.join(command)}: {result.stdout[-2000:]}", pytrace=False)
