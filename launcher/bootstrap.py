"""Set up `.runtime`, then become the program asked for, run by the virtual environment's Python.

    python3 -I launcher/bootstrap.py LOCK PROGRAM [ARGUMENT…]

`bin/mqlake` and `bin/test` call it with the python3 that the machine has, so this file must be
understood by one that is too old (3.6 at least), to say so; it imports the rest of the package only
after that check.
"""

import importlib.util
import os
import sys

MINIMUM_PYTHON = (3, 11)


def main(arguments: "list[str]") -> int:
    """Return an exit code; only when the set-up failed, else the program has taken over."""
    if sys.version_info < MINIMUM_PYTHON:
        return refuse(
            f"python3 is {sys.version_info[0]}.{sys.version_info[1]}, expected 3.11 or newer: "
            "install one"
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return refuse("python3 has no venv: install it (Debian: apt install python3-venv)")
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..")))
    from launcher.installation import Installation
    from mqlake.errors import MqlakeError

    lock, program, *rest = arguments
    try:
        installation = Installation.of_this_checkout()
        java_home = installation.ensure(lock)
    except MqlakeError as exc:
        return refuse(str(exc))
    except KeyboardInterrupt:
        return refuse("set-up interrupted; the next start takes it up again", 130)
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    path = str(installation.venv / "bin" / program)
    return os.execv(path, [path, *rest])  # noqa: S606 - no shell is wanted


def refuse(sentence: str, code: int = 1) -> int:
    """Print why the set-up ends here."""
    sys.stderr.write(f"mqlake: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
