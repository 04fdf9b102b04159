"""Secrets of the action `http`, by name: a rule says `${$secret.NAME}` and never what it is.

Whoever may write rules could send a secret anywhere, so each says which servers it is for.
"""

from pathlib import Path
from typing import Final

from rules.actions.contract import ActionError, Failure
from rules.runner.settings import SecretSettings

MAX_SECRET_BYTES: Final = 16_384


class Secrets:
    """The secrets in the settings of this process; those in files are read when they are used."""

    def __init__(self, settings: dict[str, SecretSettings]) -> None:
        self._settings = settings

    def check(self, name: str, server: str) -> None:
        """Accept a secret for a server.

        Args:
            name: As in the settings.
            server: `scheme://host[:port]`.

        Raises:
            ActionError: There is no such secret, or it is not for this server.
        """
        found = self._settings.get(name)
        if found is None:
            raise ActionError(
                f"there is no secret {name}; secrets are in the settings of the process that runs "
                "actions"
            )
        if server not in found.servers:
            raise ActionError(f"secret {name} is not for {server}, see its servers in the settings")

    def read(self, name: str) -> str:
        """Return a secret that has been checked.

        Raises:
            ActionError: Its file cannot be read now.
        """
        found = self._settings[name]
        if found.file is None:
            return found.value.get_secret_value()
        return _read(name, found.file)


def _read(name: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SECRET_BYTES + 1).decode().rstrip("\r\n")
    except OSError as exc:
        raise ActionError(
            f"secret {name} cannot be read: {exc.strerror}", Failure.UNAVAILABLE
        ) from exc
    except UnicodeDecodeError:
        raise ActionError(f"secret {name} is not UTF-8", Failure.UNAVAILABLE) from None
    if not text or len(text.encode()) > MAX_SECRET_BYTES:
        raise ActionError(
            f"secret {name} has {len(text)} characters, expected 1 to {MAX_SECRET_BYTES} bytes",
            Failure.UNAVAILABLE,
        )
    return text
