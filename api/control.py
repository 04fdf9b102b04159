"""What the API asks of a gateway: a record in the log that the gateway reads with its deliveries.

Nothing comes back; the gateway's log says what it did, its next word in `mqlake.gateways` what it
is.
"""

import json
from typing import Any

from api.log import LogAppender
from mqlake.records import CONTROL_KEY_PREFIX, delivery_topic


def ask_gateway(
    log: LogAppender, bootstrap_servers: str, gateway: str, action: str, **value: Any
) -> None:
    """Append a control record and wait until the log has it.

    Raises:
        LogError: It does not answer in time, or refuses.
    """
    log.append(
        bootstrap_servers,
        delivery_topic(gateway),
        CONTROL_KEY_PREFIX + action.encode(),
        json.dumps(value).encode(),
        what=f"control record for {gateway}",
    )
