"""The federator process of the product: beside a log, or beside a broker if that is installed."""

from functools import partial
from pathlib import Path

from ingest.federation.process import run
from ingest.federation.settings import FederationSettings


def main(settings: FederationSettings, path: Path | None = None) -> int:
    """Run a federator until SIGTERM or SIGINT; return the exit code.

    Args:
        settings: Settings of the process.
        path: File they are from; its neighbours are read again at SIGHUP.
    """
    # One of the two is used, and the one between brokers is a distribution of its own.
    if settings.log is None:
        from ingest.federation.brokers import app as brokers

        return run(settings, path, partial(brokers.make, settings))
    from ingest.federation.sites import app as sites

    return run(settings, path, partial(sites.make, settings, settings.log.servers))
