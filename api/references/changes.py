"""Asks the lake, which writes all tables, for changes of reference tables.

Rows are handed over in a file, which is on the disk before the request that names it is in the log:
so an accepted upload is not lost, whichever process dies.
"""

import os
import secrets
from pathlib import Path

from api.log.appending import LogAppender
from api.log.repository import InTheWay, NotThere, RecordKind, Repository
from api.references.materialised import MaterialisedReferences, Reference
from api.references.reading import Upload
from mqlake.clock import Clock
from mqlake.durable import sync
from mqlake.errors import OperationalError
from mqlake.records.messages import RULES
from mqlake.records.references import (
    UPLOADS,
    ReferenceKey,
    ReferenceRequest,
    encode_reference_request,
    reference_key,
)
from rules.references import MAX_REFERENCES


class ReferenceChanges(Repository[ReferenceKey, ReferenceRequest, MaterialisedReferences]):
    """Writes requests, one after the other; each method returns the request's number.

    Args:
        data_dir: Data directory of the system; uploads are a folder in it.
        log: Log that takes the records.
        view: As of all.
        clock: As of all.
    """

    kind = RecordKind(
        RULES,
        reference_key,
        encode_reference_request,
        lambda key: f"reference table {key.reference!r}",
    )

    def __init__(
        self, data_dir: Path, log: LogAppender, view: MaterialisedReferences, clock: Clock
    ) -> None:
        super().__init__(log, view, clock)
        self._folder = data_dir / UPLOADS

    def put(self, tenant: str, reference: str, upload: Upload, description: str) -> int:
        """Give a table other rows; make it if there is none.

        Raises:
            InTheWay: There are as many as there may be.
            OperationalError: The rows cannot be kept.
            LogDiskFull: The log is full: nothing is kept, as the rows would be on its disk.
            LogError: The log does not answer; the other methods raise it too.
        """
        self._log.check_room()
        name, size = self._keep(upload)
        with self._lock:
            known = self._view.get(tenant, reference)
            is_new = known is None or not known.exists
            if is_new and len(self._view.all(tenant)) >= MAX_REFERENCES:
                (self._folder / name).unlink(missing_ok=True)
                raise InTheWay(f"there are {MAX_REFERENCES} reference tables, which is the limit")
            request = ReferenceRequest(
                tenant,
                reference,
                _next(known),
                "put",
                self._clock.now_ms(),
                upload=name,
                columns=upload.columns,
                key=upload.key,
                rows=len(upload.rows),
                bytes=size,
                description=description,
            )
            return self._ask(request)

    def roll_back(self, tenant: str, reference: str, version: int) -> int:
        """Give a table the rows of an earlier version.

        Raises:
            NotThere: There is no such table.
        """
        with self._lock:
            number = _next(self._existing(tenant, reference))
            now_ms = self._clock.now_ms()
            return self._ask(
                ReferenceRequest(tenant, reference, number, "rollback", now_ms, version=version)
            )

    def delete(self, tenant: str, reference: str) -> int:
        """Delete a table with all its versions.

        Raises:
            NotThere: There is no such table.
        """
        with self._lock:
            number = _next(self._existing(tenant, reference))
            now_ms = self._clock.now_ms()
            return self._ask(ReferenceRequest(tenant, reference, number, "delete", now_ms))

    def forget(self, tenant: str) -> None:
        """Forget the numbers of requests, too, of a tenant whose tables are deleted."""
        with self._lock:
            self._delete(self._view.left_of(tenant), "reference tables")

    def _existing(self, tenant: str, reference: str) -> Reference:
        known = self._view.get(tenant, reference)
        if known is None or not known.exists:
            raise NotThere(f"there is no reference table {reference!r}")
        return known

    def _ask(self, request: ReferenceRequest) -> int:
        self.write([(ReferenceKey("request", request.tenant, request.reference), request)])
        return request.number

    def _keep(self, upload: Upload) -> tuple[str, int]:
        """Write the rows of an upload to the disk; return the file's name and size."""
        name = f"{secrets.token_hex(16)}.jsonl"
        path = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for line in upload.lines():
                    file.write(line)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            sync(self._folder)
        except OSError as exc:
            path.unlink(missing_ok=True)
            raise OperationalError(f"the upload cannot be kept: {exc}") from exc
        return name, size


def _next(known: Reference | None) -> int:
    return 1 if known is None else known.number + 1
