"""The tests of MQTT 5.0 that paho-mqtt ships in its source distribution, against a real system."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.testing.systems import LocalSystem
from tests.integration.downloads import source_distribution

pytestmark = pytest.mark.system

RUNNER = Path(__file__).with_name("clients") / "paho_suite.py"

EACH_TIME = (
    "Test.test_offline_message_queueing",
    "Test.test_retained_message",
    "Test.test_session_expiry",
    "Test.test_shared_subscriptions",
    "Test.test_will_delay",
    "TestBrokerRebootsTopicAliiQoS0.test_qos0_client_reconnects_after_broker_reboots",
    "TestBrokerRebootsTopicAliiQoS1.test_qos1_client_reconnects_after_broker_reboots",
    "TestDropOutMessagesWorkAround.test_qos1_drop_messages_client_reconnects_after_broker_reboots",
)
IN_TURN = (
    "Test.test_basic",
    "Test.test_client_topic_alias",
    "Test.test_connect_fail",
    "Test.test_maximum_packet_size",
    "Test.test_message_expiry",
    "Test.test_overlapping_subscriptions",
    "Test.test_payload_format",
    "Test.test_request_response",
    "Test.test_server_topic_alias",
    "Test.test_subscribe_failure",
    "Test.test_subscribe_options",
    "Test.test_subscription_identifiers",
    "Test.test_unsubscribe",
    "Test.test_user_properties",
    "Test.test_will_message",
    "Test.test_zero_length_clientid",
)


@dataclass(frozen=True, slots=True)
class Suite:
    """The suite in a process of its own: its threads and warnings do not reach other tests."""

    process: "subprocess.Popen[str]"
    log: Path

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text(encoding="utf-8")[-3000:]
        return json.loads(answer)


@pytest.fixture(scope="module")
def suite(system: LocalSystem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    log = tmp_path_factory.mktemp("paho") / "output.log"
    source = source_distribution("paho-mqtt") / "tests" / "test_mqttv5.py"
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            [sys.executable, str(RUNNER), str(source), str(system.data_dir), "gateway-1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        ) as process,
    ):
        yield Suite(process, log)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
    system.await_healthy()


def test_the_suite_has_no_other_tests(suite: Suite) -> None:
    assert sorted(suite.ask("list")) == sorted((*EACH_TIME, *IN_TURN))


@pytest.mark.parametrize("name", EACH_TIME)
def test_paho(suite: Suite, name: str) -> None:
    run(suite, name)


@pytest.mark.campaign("gateway/test_conformance_5.py and tests/dialogues hold the same")
@pytest.mark.parametrize("name", IN_TURN)
def test_the_rest_of_paho(suite: Suite, name: str) -> None:
    run(suite, name)


def run(suite: Suite, name: str) -> None:
    answer = suite.ask(name)
    assert answer["outcome"] == "passed", answer["detail"]
