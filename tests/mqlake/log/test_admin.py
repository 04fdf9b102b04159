"""Questions to a cluster that is not whole, or of which a broker does not answer."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from mqlake.errors import LogError
from mqlake.log import admin
from mqlake.log.durability import Durability

NAMED = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"


def has(monkeypatch: pytest.MonkeyPatch, counts: Iterator[int]) -> None:
    """Let a cluster have so many brokers, one figure for each time it is asked."""
    monkeypatch.setattr(
        admin.AdminRequests, "metadata", lambda *_: SimpleNamespace(brokers=range(next(counts)))
    )
    monkeypatch.setattr(admin, "RETRY_SECONDS", 0.001)


def test_brokers_that_are_named_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 2, 2, 3])
    has(monkeypatch, counts)
    admin.AdminRequests(NAMED, 60.0).check_brokers(Durability.D2)
    assert list(counts) == []


def test_brokers_that_nobody_named_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for servers in ("127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"):
        has(monkeypatch, iter([2]))
        with pytest.raises(LogError, match=f"D2 takes 3 brokers: {servers} has 2"):
            admin.AdminRequests(servers, 60.0).check_brokers(Durability.D2)


def test_brokers_that_do_not_come_are_missed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, iter([2] * 1_000))
    with pytest.raises(LogError, match=r"D2 takes 3 brokers: .* has 2"):
        admin.AdminRequests(NAMED, 0.02).check_brokers(Durability.D2)


class _Client:
    """A consumer that answers with 3 partitions when as many have asked as are expected."""

    def __init__(self, asked: threading.Barrier) -> None:
        self.asked = asked

    def list_topics(self, log_topic: str, timeout: float) -> SimpleNamespace:
        self.asked.wait(timeout)
        return SimpleNamespace(topics={log_topic: SimpleNamespace(partitions=range(3))})


class _StaleClient:
    def __init__(self, code: int) -> None:
        self.code = code

    def list_topics(self, *_: object, timeout: float) -> SimpleNamespace:
        raise KafkaException(KafkaError(self.code))


def test_questions_at_the_same_time_have_a_client_each(monkeypatch: pytest.MonkeyPatch) -> None:
    both, one = threading.Barrier(2), threading.Barrier(1)
    clients = [_Client(both), _Client(both)]
    made = [*clients]
    monkeypatch.setattr(admin, "Consumer", lambda _: clients.pop())
    asking = admin.AdminRequests(NAMED, 60.0)
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(asking.partitions, ("t", "t"))] == [3, 3]
    for client in made:
        client.asked = one
    assert asking.partitions("t") == 3  # by one of these: there are no others


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE])
def test_a_client_that_got_no_answer_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    clients: list[Any] = [_Client(threading.Barrier(1)), _StaleClient(code)]
    monkeypatch.setattr(admin, "Consumer", lambda _: clients.pop())
    assert admin.AdminRequests(NAMED, 60.0).partitions("t") == 3


def keeps(monkeypatch: pytest.MonkeyPatch, *unclean: str | None) -> None:
    """Let a log topic have three copies, and these settings, one for each time it is asked."""
    answers = iter(unclean)

    def configs(_admin: object, log_topics: list[str]) -> dict[str, dict[str, str]]:
        found = {"min.insync.replicas": "2", "flush.messages": "1"}
        if (value := next(answers)) is not None:
            found["unclean.leader.election.enable"] = value
        return dict.fromkeys(log_topics, found)

    copies = SimpleNamespace(partitions={0: SimpleNamespace(replicas=[1, 2, 3])})
    monkeypatch.setattr(admin.AdminRequests, "configs", configs)
    monkeypatch.setattr(
        admin.AdminRequests, "metadata", lambda *_: SimpleNamespace(topics={"t": copies})
    )
    monkeypatch.setattr(admin, "RETRY_SECONDS", 0.001)


@pytest.mark.promise
@pytest.mark.parametrize("wanted", [Durability.D2, Durability.D3])
def test_a_log_topic_whose_leader_may_lack_records_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: Durability
) -> None:
    keeps(monkeypatch, "true")
    with pytest.raises(
        LogError,
        match=rf"{wanted} is asked for, t has D1: .* set unclean\.leader\.election\.enable=false",
    ):
        admin.AdminRequests(NAMED, 60.0).check_keeping(["t"], wanted)
    for value in ("false", None):  # None: a log that has no such elections
        keeps(monkeypatch, value)
        admin.AdminRequests(NAMED, 60.0).check_keeping(["t"], wanted)


def test_brokers_hear_later_that_leaders_are_to_have_all(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps(monkeypatch, "true", "true", "false")
    admin.AdminRequests(NAMED, 60.0).until_clean(["t"])
    keeps(monkeypatch, *["true"] * 1_000)
    with pytest.raises(LogError, match="whose leaders are to have all records do not"):
        admin.AdminRequests(NAMED, 0.02).until_clean(["t"])


def has_topic(
    monkeypatch: pytest.MonkeyPatch, partitions: int, config: dict[str, str | None]
) -> None:
    monkeypatch.setattr(admin.AdminRequests, "partitions", lambda *_: partitions)
    monkeypatch.setattr(admin.AdminRequests, "configs", lambda _, names: {names[0]: config})


def test_the_limit_of_a_log_topic_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    has_topic(monkeypatch, 1, {"max.message.bytes": "20000"})
    assert admin.record_limit("b:9092", "t", 1.0) == 20_000


@pytest.mark.parametrize(
    ("partitions", "config", "problem"),
    [
        (0, {"max.message.bytes": "20000"}, "log topic t does not exist"),
        (1, {}, "records of t may be: the answer does not say"),
        (1, {"max.message.bytes": None}, "records of t may be: the answer does not say"),
    ],
)
def test_a_cluster_that_does_not_tell_a_limit_is_an_error(
    monkeypatch: pytest.MonkeyPatch, partitions: int, config: dict[str, str | None], problem: str
) -> None:
    has_topic(monkeypatch, partitions, config)
    with pytest.raises(LogError, match=problem):
        admin.record_limit("b:9092", "t", 1.0)


def test_all_clients_have_the_login_that_a_cluster_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    for client in ("AdminClient", "Consumer"):
        monkeypatch.setattr(admin, client, made.append)
    asking = admin.AdminRequests("b:9092", 1.0, {"security.protocol": "ssl"})
    for ask in (lambda: asking.partitions("t"), lambda: asking.configs(["t"])):
        with pytest.raises(AttributeError):  # what is made is no client
            ask()
    assert [one["security.protocol"] for one in made] == ["ssl", "ssl"]
