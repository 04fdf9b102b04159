"""One broker of a log of several on this machine, for tests of the death of one of them.

python -m launcher.testing.broker FOLDER NUMBER CLUSTER_ID HOST:PORT:CONTROLLER_PORT…

The places are those of all brokers, in the order of their numbers, which begin with 1. The process
becomes the broker. `bin/mqlake up` has one: several on one machine share its disk and its power.
"""

import os
import sys
from pathlib import Path

from launcher.log.kafka import Brokers


def main(arguments: list[str]) -> None:
    """Make the broker's files and become it.

    Raises:
        OperationalError: Its storage cannot be formatted, or is of something else.
    """
    folder, number, cluster_id, *words = arguments
    places = [
        (host, int(port), int(controller))
        for host, port, controller in (word.split(":") for word in words)
    ]
    server = Brokers.at(Path(folder), cluster_id, places).servers[int(number) - 1]
    server.prepare()
    os.chdir(server.directory)
    command = server.command()
    os.execve(command[0], command, server.environment())  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
