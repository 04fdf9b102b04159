"""Ask the supervisor of a running system to start a part again: `bin/mqlake restart`.

A request is a file with the name of the part, `<data_dir>/run/restart/<part>`. The supervisor takes
it away when it begins, and leaves `<part>.failed` with the reason when nothing came of it.
"""

from pathlib import Path
from typing import Final

from mqlake.processes.status import replace_file

_FAILED: Final = ".failed"


class Requests:
    """The requests of one system.

    Args:
        folder: Folder of the files; made with the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, part: str) -> None:
        """Ask for a part.

        Raises:
            OSError: It cannot be written.
        """
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"{part}{_FAILED}").unlink(missing_ok=True)
        replace_file(self._folder / part, "")

    def is_waiting(self, part: str) -> bool:
        """Tell whether a request has not been taken yet."""
        return (self._folder / part).exists()

    def failure(self, part: str) -> str:
        """Return why nothing came of the last request; empty while that is not so."""
        try:
            return (self._folder / f"{part}{_FAILED}").read_text(encoding="utf-8")
        except OSError:
            return ""

    def take(self) -> list[str]:
        """Return the parts that are asked for, each once."""
        if not self._folder.is_dir():
            return []
        found = [
            path
            for path in sorted(self._folder.iterdir())
            if not path.name.startswith(".") and path.suffix != _FAILED
        ]
        for path in found:
            path.unlink(missing_ok=True)
        return [path.name for path in found]

    def fail(self, part: str, reason: str) -> None:
        """Tell the caller that nothing came of it.

        Raises:
            OSError: It cannot be written.
        """
        replace_file(self._folder / f"{part}{_FAILED}", reason)
