"""Delete what waits in the log for a gateway that is away, as retention does; for tests.

python -m launcher.testing.expire DATA_DIR GATEWAY
"""

import sys
from pathlib import Path

from mqlake.log.admin import LogAdmin
from mqlake.processes.status import read_state
from mqlake.records.messages import delivery_topic


def main(arguments: list[str]) -> None:
    """Delete all records of its delivery topic.

    Raises:
        OperationalError: No system runs there.
        LogError: The log does not answer in time or refuses.
    """
    data_dir, gateway = Path(arguments[0]), arguments[1]
    admin = LogAdmin(read_state(data_dir).bootstrap_servers)
    log_topic = delivery_topic(gateway)
    admin.delete_before(log_topic, admin.ends(log_topic))


if __name__ == "__main__":
    main(sys.argv[1:])
