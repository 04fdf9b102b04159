"""Traces of messages, for callers."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from api.access.callers import Caller
from api.clients.cache import SessionCache
from api.clients.presence import Gateways
from api.rules.materialised import MaterialisedRules
from api.spark.connect import SparkConnect
from api.tracing.scan import Scan
from api.tracing.tables import TraceTables
from api.tracing.tracer import MessageTracer
from api.tracing.views import Trace


@dataclass(frozen=True, slots=True)
class Traces:
    """Makes traces.

    Attributes:
        open_scan: Begins to read the log.
        connect: Opens sessions of Spark.
        cache: Knows the sessions that outlive their connections.
        view: Knows the rules.
        gateways: Knows those that are there.
    """

    open_scan: Callable[[], Scan]
    connect: SparkConnect
    cache: SessionCache
    view: MaterialisedRules
    gateways: Gateways

    def trace(
        self, message_id: str, client_id: str | None, limit: int, tenant: str, caller: Caller
    ) -> Trace | None:
        """Return the trace of a message; None: there is none that the caller is shown.

        Raises:
            OperationalError: No system runs, or the tables cannot be asked.
            LogError: The log does not answer.
        """
        with closing(self.open_scan()) as scan:
            tracer = MessageTracer(
                scan,
                TraceTables(self.connect, tenant),
                self.cache,
                self.view,
                [one.name for one in self.gateways.all()],
                tenant,
                caller,
            )
            return tracer.trace(message_id, client_id, limit)
