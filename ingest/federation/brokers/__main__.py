"""`python -m ingest.federation.brokers`: the federator of a broker, without the command line."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ingest.federation.brokers.app import make
from ingest.federation.process import run
from ingest.federation.settings import FederationSettings
from mqlake.errors import SettingsError
from mqlake.settings import load


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a federator until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="mqlake-federator", description=__doc__)
    parser.add_argument("--config", type=Path, help="settings file (TOML, docs/federation.md)")
    path: Path | None = parser.parse_args(arguments).config
    try:
        settings = load(FederationSettings, path)
        if settings.log is not None:
            raise SettingsError("log is set: `mqlake federation` federates by a log")
    except SettingsError as exc:
        sys.stderr.write(f"mqlake-federator: {exc}\n")
        return 1
    return run(settings, path, partial(make, settings))


if __name__ == "__main__":
    sys.exit(main())
