"""What a cluster says of a log topic; tests/rules/runner/test_cluster.py asks a real one."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource

from mqlake.errors import LogError
from mqlake.log import topic_limits
from mqlake.log.topic_limits import record_limit
from tests.cases import case

Answer = dict[str, Any] | BaseException | None


def answers(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    """Have the cluster give a configuration, an error or nothing."""

    class Client:
        def __init__(self, _options: dict[str, Any]) -> None:
            pass

        def describe_configs(
            self, resources: list[ConfigResource], **_: Any
        ) -> dict[ConfigResource, "Future[Any]"]:
            future: Future[Any] = Future()
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            elif answer is not None:
                future.set_result(answer)
            return {resources[0]: future}

    monkeypatch.setattr(topic_limits, "AdminClient", Client)


def test_the_limit_of_a_log_topic_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, {"max.message.bytes": SimpleNamespace(value="20000")})
    assert record_limit("b:9092", "t", 1.0) == 20_000


def test_a_cluster_that_does_not_tell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    given: dict[str, Answer] = {
        "refused": refused,
        "another broker's configuration": {},
        "no value": {"max.message.bytes": SimpleNamespace(value=None)},
        "no answer": None,
    }
    for name, answer in given.items():
        with case(name):
            answers(monkeypatch, answer)
            with pytest.raises(LogError, match="asking how large records of t may be"):
                record_limit("b:9092", "t", 0.01)
