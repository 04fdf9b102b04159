"""The query application, as its clients see it: it runs while a client uses it.

A *use* is a connection to its Unix socket, `<data_dir>/query.sock`. Both sides say objects of JSON,
one a line. A client that wants a use says `{"use": true}`. The keeper starts Spark for it, and says
when it can be asked (`{"ready": <port of Spark Connect>, "pid": <of its Java>}`) and why it has
ended (`{"ended": <reason>, "cause": …, "alone": <nobody else had a use>}`). A client that has a use
may end Spark (`{"end": <reason>}`): of a query that does not stop, nothing else is left to do.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mqlake.errors import OperationalError
from mqlake.processes.control_socket import connect
from mqlake.processes.status import read_state

NAME: Final = "query"
"""Name of the process."""
SOCKET_FILE: Final = "query.sock"
_CONNECT_SECONDS: Final = 2.0
_STEP_SECONDS: Final = 0.1
"""Pause between looks whether a use is still wanted, and the keeper is back."""
_LAST_WORD_SECONDS: Final = 2.0
"""That the keeper may take to say why Spark has ended; it sees that within milliseconds."""

Cause = Literal["memory", "asked", "other"]
"""Why Spark has ended: its heap was full, a use has asked for it, or anything else."""


class NotReady(OperationalError):  # noqa: N818 - it names what is in the way
    """The query application is not ready yet, or cannot start; it may be asked again."""


class Unwanted(Exception):  # noqa: N818 - it is no error
    """The use was no longer wanted."""


@dataclass(frozen=True, slots=True)
class End:
    """End of Spark during a use."""

    reason: str
    cause: Cause
    was_alone: bool
    """There was no other use: the question itself has ended it."""


class Use:
    """A use of the query application; Spark runs at least until it is closed.

    Attributes:
        port: Port of Spark Connect on this machine.
        java_pid: Process of Spark: another one for each start.
        has_ended_it: This use has ended it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.port = 0
        self.java_pid = 0
        self.has_ended_it = False
        self._connection = connection
        self._received = b""

    def end(self, reason: str) -> None:
        """Have Spark ended, for everybody: a query does not stop."""
        self.has_ended_it = True
        try:
            self._say({"end": reason})
        except OSError:
            return  # its keeper is gone, and Spark with it

    def ended(self) -> End | None:
        """Return why Spark has ended; None when that is not said within two seconds."""
        try:
            line = self._line(_LAST_WORD_SECONDS)
        except OSError:
            return End("the query application has ended", "other", False)
        return None if line is None else End(line["ended"], line["cause"], line["alone"])

    def close(self) -> None:
        self._connection.close()

    def await_ready(self, deadline: float, is_unwanted: Callable[[], bool]) -> None:
        """Return when Spark can be asked.

        Raises:
            OSError: The keeper is gone.
            NotReady: Spark cannot be started, or not by then.
            Unwanted: It is not wanted any more.
        """
        self._say({"use": True})
        while not self.port:
            if is_unwanted():
                raise Unwanted
            if time.monotonic() > deadline:
                raise NotReady("Spark is starting for queries: try again in some seconds")
            line = self._line(_STEP_SECONDS)
            if line is not None and "ended" in line:
                raise NotReady(f"the query application does not start: {line['ended']}")
            if line is not None:
                self.port, self.java_pid = line["ready"], line["pid"]

    def _say(self, what: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(what).encode() + b"\n")

    def _line(self, seconds: float) -> dict[str, Any] | None:
        """Return the keeper's next word; None when it says nothing for so long.

        Raises:
            ConnectionError: It is gone.
        """
        if b"\n" not in self._received:
            self._connection.settimeout(seconds)
            try:
                part = self._connection.recv(4096)
            except TimeoutError:
                return None
            if not part:
                raise ConnectionResetError("the keeper is gone")
            self._received += part
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        found: dict[str, Any] = json.loads(line)
        return found


class QueryApplication:
    """The query application of a data directory.

    Args:
        data_dir: Data directory of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._path = data_dir / SOCKET_FILE

    @contextmanager
    def use(self, seconds: float, is_unwanted: Callable[[], bool] = lambda: False) -> Iterator[Use]:
        """Use it for the length of a `with` block; it is started if it does not run.

        Args:
            seconds: Longest that it may take to be ready.
            is_unwanted: Asked now and then; True ends the waiting.

        Raises:
            NotReady: It is not ready by then, or does not start.
            OperationalError: There is none.
            Unwanted: It is not wanted any more.
        """
        use = self._begin(time.monotonic() + seconds, is_unwanted)
        try:
            yield use
        finally:
            use.close()

    def _begin(self, deadline: float, is_unwanted: Callable[[], bool]) -> Use:
        while True:
            try:
                use = Use(connect(self._path, _CONNECT_SECONDS))
            except OSError as exc:
                self._check_is_expected(exc)
            else:
                try:
                    use.await_ready(deadline, is_unwanted)
                except OSError:
                    use.close()  # its keeper was killed: the next one is waited for
                except BaseException:
                    use.close()
                    raise
                else:
                    return use
            if is_unwanted():
                raise Unwanted
            if time.monotonic() > deadline:
                raise NotReady("the query application is being started again: ask again soon")
            time.sleep(_STEP_SECONDS)

    def _check_is_expected(self, error: OSError) -> None:
        """Find out whether a supervisor starts the keeper again.

        Raises:
            OperationalError: No process does.
        """
        if not any(process.name == NAME for process in read_state(self._data_dir).processes):
            raise OperationalError(
                f"no query application answers at {self._path} ({error.strerror or error}): "
                "start it with: mqlake query"
            ) from error
