"""Rights of clients: the rules of a file, until others were applied for all gateways."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mqlake.rights.files import read_rights
from mqlake.rights.grants import NO_GRANTS, Grants

if TYPE_CHECKING:
    from pathlib import Path

    from mqlake.rights.compiled import ClientRights, Rights


class Authorizer:
    """Gives each client its rights.

    Args:
        rights_file: The rules; without one, and before any were applied, everybody may do
            everything.

    Attributes:
        version: Version of the rights that were applied; 0: none were, the file counts.

    Raises:
        RightsError: The file cannot be used.
    """

    def __init__(self, rights_file: Path | None) -> None:
        self._path = rights_file
        self._rights = None if rights_file is None else read_rights(rights_file)
        self.version = 0

    @property
    def has_rules(self) -> bool:
        """Tell whether clients may not do everything."""
        return self._rights is not None

    def of(
        self, tenant: str, client_id: str, username: str | None, grants: Grants = NO_GRANTS
    ) -> ClientRights | None:
        """Return the rights of a client; None: it may do everything.

        Args:
            tenant: Tenant of the client.
            client_id: Client identifier of the client.
            username: User that it has logged in as; None: none.
            grants: Rights that its login brings.
        """
        rights = self._rights
        return None if rights is None else rights.of(client_id, username, grants, tenant=tenant)

    def renew(self, rights: ClientRights) -> None:
        """Bring rights that were given up to the present rules."""
        assert self._rights is not None
        rights.take(self._rights)

    def apply(self, rights: Rights, version: int) -> None:
        """Go by these from now on, and by the file no more."""
        self._rights = rights
        self.version = version

    async def reload(self) -> int | None:
        """Read the file again; return how many rules there are, None without a file.

        Raises:
            RightsError: It cannot be used; the rules stay as they were.
        """
        if self._path is None:
            return None
        rights = await asyncio.to_thread(read_rights, self._path)
        if not self.version:
            self._rights = rights
        return rights.rules
