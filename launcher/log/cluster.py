"""A log that is not the embedded one: the data directory remembers which it counts on."""

from typing import Final

from launcher.paths import DataDirectory
from mqlake.durable import write_durably
from mqlake.errors import OperationalError
from mqlake.log.security import client_config

ANSWER_SECONDS: Final = 30.0


def check_cluster(data: DataDirectory, bootstrap_servers: str) -> None:
    """Note the log's cluster in a new data directory; refuse another one from then on.

    Checkpoints and tables are of offsets of one log. With those of another, unread messages
    would be taken for read.

    Raises:
        OperationalError: The log does not answer, or is another one.
    """
    found = cluster_id(bootstrap_servers)
    try:
        known = data.log_cluster.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        write_durably(data.log_cluster, f"{found}\n".encode())
        return
    if known != found:
        raise OperationalError(
            f"the log at {bootstrap_servers} is cluster {found}, and {data.root} counts on cluster "
            f"{known}: name its servers in log_servers, or start with another --data-dir"
        )


def cluster_id(bootstrap_servers: str) -> str:
    """Return the identity of a cluster.

    Raises:
        OperationalError: It does not answer, or has none.
    """
    # Only processes that use such a log load the client.
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({**client_config(bootstrap_servers), "log_level": 2})
    try:
        found: str | None = admin.list_topics(timeout=ANSWER_SECONDS).cluster_id
    except KafkaException as exc:
        raise OperationalError(
            f"the log at {bootstrap_servers} does not answer, {exc.args[0].str()}: start it, or "
            "change log_servers (--log-servers)"
        ) from exc
    if not found:
        raise OperationalError(
            f"the log at {bootstrap_servers} names no cluster: expected Kafka 0.10.1 or newer"
        )
    return found
