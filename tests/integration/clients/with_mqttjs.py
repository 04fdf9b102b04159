"""Exchanges with MQTT.js, by a script for Node.js."""

import json
import os
import subprocess
from pathlib import Path

from tests.integration.clients.exchange import ANSWER_SECONDS, Exchange, Message, Result
from tests.integration.downloads import node_modules

SCRIPT = Path(__file__).with_name("exchange.cjs")


def exchange_with_mqttjs(exchange: Exchange) -> Result:
    done = subprocess.run(
        ["node", str(SCRIPT), json.dumps(exchange.to_json())],
        env={**os.environ, "NODE_PATH": str(node_modules())},
        capture_output=True,
        text=True,
        timeout=2 * ANSWER_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    received = [
        Message(
            one["topic"],
            one["payload"],
            one["qos"],
            one["retain"],
            tuple((name, value) for name, value in one["user_properties"]),
        )
        for one in answer["received"]
    ]
    return Result(answer["connack"], received)
