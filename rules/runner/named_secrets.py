"""Secrets of the action `http`, by name: a rule says `${$secret.NAME}`, never the secret.

A user who may write rules could send a secret anywhere, so each says which servers it is for, and
whose rules may name it.
"""

from pathlib import Path
from typing import Final

from rules.actions.contract import ActionError, Failure
from rules.runner.settings import SecretSettings, find_for

MAX_SECRET_BYTES: Final = 16_384


class Secrets:
    """The secrets in the settings of this process; those in files are read when they are used.

    Args:
        settings: All there are.
        tenant: Whose rules name them.
    """

    def __init__(self, settings: dict[str, SecretSettings], tenant: str) -> None:
        self._settings = settings
        self._tenant = tenant

    def check(self, name: str, server: str) -> None:
        """Accept a secret for a server.

        Args:
            name: As in the settings.
            server: `scheme://host[:port]`.

        Raises:
            ActionError: There is no such secret for this tenant, or it is not for this server.
        """
        found = self._find(name)
        if server not in found.servers:
            raise ActionError(f"secret {name} is not for {server}, see its servers in the settings")

    def read(self, name: str) -> str:
        """Return a secret that has been checked.

        Raises:
            ActionError: Its file cannot be read now.
        """
        found = self._find(name)
        if found.file is None:
            return found.value.get_secret_value()
        return _read(name, found.file)

    def _find(self, name: str) -> SecretSettings:
        found = find_for(self._tenant, name, self._settings)
        if found is None:
            raise ActionError(
                f"there is no secret {name} for rules of the tenant {self._tenant}; secrets are in "
                "the settings of the process that runs actions"
            )
        return found[1]


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
