"""What the runner does beside the plan: it waits for what is late, and says what went wrong."""

import asyncio
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest

from resilience.double.loop import run
from resilience.double.target import DoubleTarget
from resilience.drivers.client import MqttClient
from resilience.drivers.frames import ConnectOptions, Frame
from resilience.history import Recorder
from resilience.plan import ClientPlan, RunPlan, Step, Strike
from resilience.runner import PlanRunner, execute

SUBSCRIBER = ClientPlan(
    "sub", (Step("connect"), Step("subscribe", {"filter": "t", "qos": 1})), clean=False
)
PUBLISHER = ClientPlan(
    "pub",
    (Step("connect"), Step("publish", {"topic": "t", "qos": 1, "count": 3, "rate": 1.0})),
    version=5,
)


def play(
    plan: RunPlan,
    owes: Callable[[], bool] = lambda: False,
    prepare: Callable[[DoubleTarget], None] = lambda _: None,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Run a plan against the double; return its problems and the history."""

    async def main() -> tuple[list[str], list[dict[str, Any]]]:
        rng = random.Random(1)
        target = DoubleTarget(rng)
        prepare(target)
        recorder = Recorder({}, asyncio.get_running_loop().time)
        problems = await execute(PlanRunner(plan, target, recorder, rng, owes=owes))
        return problems, recorder.operations

    return run(main())


def seconds(operations: list[dict[str, Any]], process: str, f: str, type_: str) -> list[float]:
    return [
        op["time"] / 1e6
        for op in operations
        if (op["process"], op["f"], op["type"]) == (process, f, type_)
    ]


def drained(plan: RunPlan, owes: Callable[[], bool]) -> float:
    """Return how many seconds the drain took."""
    problems, operations = play(plan, owes)
    assert problems == []
    (begin,) = seconds(operations, "run", "drain", "invoke")
    (end,) = seconds(operations, "run", "drain", "ok")
    return end - begin


def test_a_run_waits_for_what_is_late_and_not_for_ever() -> None:
    clients = (SUBSCRIBER, PUBLISHER)
    answers = iter([True, True, False])
    late = RunPlan(clients, quiet_seconds=2.0, late_seconds=30.0)
    assert 6 <= drained(late, lambda: next(answers)) < 8
    assert 32 <= drained(late, lambda: True) < 35
    assert 2 <= drained(RunPlan(clients, quiet_seconds=2.0), lambda: True) < 3


def test_a_client_stays_away_for_as_long_as_its_plan_says() -> None:
    client = ClientPlan("a", (Step("connect"), Step("wait", {"seconds": 2.0})), away_seconds=5.0)
    problems, operations = play(RunPlan((client,), (Strike("reset", "node-1", at=1.0),)))
    first, second = seconds(operations, "a", "connect", "invoke")
    (closed,) = seconds(operations, "a", "closed", "ok")
    assert problems == []
    assert first < closed
    assert 5 <= second - closed < 6


def test_a_connection_that_breaks_in_a_plan_without_breaks_is_a_problem() -> None:
    strikes = (Strike("reset", "node-1", at=1.0),)
    steps = (Step("connect"), Step("wait", {"seconds": 2.0}), Step("abort"), Step("connect"))
    clients = (ClientPlan("a", steps),)
    assert play(RunPlan(clients, unbroken=True))[0] == []
    assert play(RunPlan(clients, strikes))[0] == []
    assert play(RunPlan(clients, strikes, unbroken=True))[0] == ["a connection of a broke"]


def test_messages_that_were_refused_are_a_problem() -> None:
    def forbid(target: DoubleTarget) -> None:
        target.double.set_right("pub", "publish", "t", allowed=False)

    assert play(RunPlan((PUBLISHER,)))[0] == []
    assert play(RunPlan((PUBLISHER,)), prepare=forbid)[0] == ["3 messages of pub were refused"]
    assert play(RunPlan((PUBLISHER,), may_refuse=("pub",)), prepare=forbid)[0] == []


class Wire:
    """A broker of scripted answers; keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.receive: Callable[[Frame], None]
        self.ended: Callable[[str], None]

    async def __call__(
        self,
        options: ConnectOptions,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
    ) -> "Wire":
        self.receive, self.ended = on_frame, on_end
        return self

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)
        if frame.kind == "connect":
            self.receive(Frame("connack", fields={"session_present": len(self.sent) > 1}))

    def end(self) -> None: ...

    def abort(self) -> None: ...


def test_not_found_after_a_second_pubrel_says_that_the_exchange_is_over() -> None:
    async def publish(*, again: bool) -> str:
        wire = Wire()
        recorder = Recorder({}, asyncio.get_running_loop().time)
        client = MqttClient("a", recorder, wire, on_lost=lambda: None)
        await client.connect(ConnectOptions("a", clean=False), 1.0)
        done = client.publish("a/1", "t", qos=2)
        packet_id = wire.sent[-1].packet_id
        wire.receive(Frame("pubrec", packet_id))
        if again:
            wire.ended("gone")
            await client.connect(ConnectOptions("a", clean=False), 1.0)
        wire.receive(Frame("pubcomp", packet_id, code=0x92))
        return await done

    assert asyncio.run(publish(again=True)) == "ok"
    assert asyncio.run(publish(again=False)) == "fail"


def test_a_client_that_is_not_done_leaves_nothing_but_a_problem(
    caplog: pytest.LogCaptureFixture,
) -> None:
    patient = ClientPlan("pub", (Step("connect"), Step("wait", {"client": "sub", "count": 1})))
    endless = ClientPlan("sub", (Step("connect"), Step("wait", {"seconds": 1e6})))
    problems, _ = play(RunPlan((patient, endless), limit_seconds=5.0))
    gc.collect()
    assert problems == ["not done after 5 s: pub, sub"]
    assert caplog.messages == []
