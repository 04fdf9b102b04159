"""Executes a plan against a target, and has everything written down.

Each client has two tasks: one does its steps, one keeps it connected while it wants to be. Faults
strike beside them. At the end all is brought back, and the run waits until nothing comes any more:
`drain` in the history stands for that.
"""

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from resilience import faults
from resilience.drivers.frames import ConnectOptions
from resilience.errors import ConnectRefused, ResilienceError, ScenarioError
from resilience.history import Writer
from resilience.plan import ClientPlan, RunPlan, Strike
from resilience.target import Hold, Target

CONNECT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = (0.05, 0.3)
"""A client that was turned away tries again after a time between these."""

POLL_SECONDS: Final = 0.25
"""How often the drain looks whether it is quiet."""


class PlanRunner:
    """One run of a plan.

    Args:
        driver: For clients whose plan names none.
        rng: Retries and choices of nodes come from it.
        owes: Tells whether something that is due has not come yet.
    """

    def __init__(
        self,
        plan: RunPlan,
        target: Target,
        history: Writer,
        rng: random.Random,
        driver: str = "raw",
        owes: Callable[[], bool] = lambda: False,
    ) -> None:
        self.plan = plan
        self.target = target
        self.history = history
        self.rng = rng
        self.changed = asyncio.Condition()
        self.problems: list[str] = []
        self._owes = owes
        self.actors = {
            client.name: _Actor(self, client, client.driver or driver) for client in plan.clients
        }
        self._busy: dict[str, asyncio.Lock] = {}

    async def go(self) -> None:
        """Run it to its end; deviations from the plan are in `problems`."""
        keepers = [asyncio.create_task(actor.keep()) for actor in self.actors.values()]
        strikes = [asyncio.create_task(self._strike(strike)) for strike in self.plan.strikes]
        steps = [asyncio.create_task(actor.play()) for actor in self.actors.values()]
        played = asyncio.gather(*steps)
        try:
            # A client that cannot go on for a reason of its own ends the run.
            waiting: list[asyncio.Future[Any]] = [played, *keepers]
            await asyncio.wait(
                waiting, timeout=self.plan.limit_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            late = [task for task in steps if not task.done()]
            for task in late:
                task.cancel()
            if late:
                names = [
                    name for name, task in zip(self.actors, steps, strict=True) if task in late
                ]
                self.problems.append(
                    f"not done after {self.plan.limit_seconds:g} s: {', '.join(names)}"
                )
            await self._end_strikes(strikes)
            await self._drain()
            if all(step.do != "rights" for client in self.plan.clients for step in client.steps):
                self.problems += [
                    f"{actor.refused} messages of {name} were refused"
                    for name, actor in self.actors.items()
                    if actor.refused and name not in self.plan.may_refuse
                ]
            for actor in self.actors.values():
                await actor.leave()
        finally:
            for task in (*keepers, *strikes, *steps):
                task.cancel()
            results = await asyncio.gather(*keepers, *strikes, *steps, return_exceptions=True)
            # The exception that ended it is among these.
            await asyncio.gather(played, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    self.problems.append(f"{type(result).__name__}: {result}")

    async def _end_strikes(self, strikes: list[asyncio.Task[None]]) -> None:
        """Let faults that have begun come to their end; those whose moment never came are over."""
        for strike, task in zip(self.plan.strikes, strikes, strict=True):
            if strike.client and not task.done() and not self._has_come(strike):
                self.problems.append(f"the moment of {strike} never came")
                task.cancel()
        if strikes:
            await asyncio.wait(strikes, timeout=120)

    def _has_come(self, strike: Strike) -> bool:
        return self.actors[strike.client].completed >= strike.count

    async def _strike(self, strike: Strike) -> None:
        if strike.client:
            if strike.client not in self.actors:
                raise ScenarioError(f"{strike}: no client {strike.client!r}")
            await self.until(lambda: self._has_come(strike))
        else:
            await asyncio.sleep(strike.at)
        # A part has one fault at a time: each expects to find it as the one before has left it.
        async with self._busy.setdefault(strike.part, asyncio.Lock()):
            fields = {"fault": strike.fault, "part": strike.part}
            self.history.write("faults", "fault", "invoke", **fields, args=dict(strike.args))
            try:
                await faults.strike(self.target, strike.fault, strike.part, dict(strike.args))
            except ResilienceError as exc:
                self.history.write("faults", "fault", "fail", **fields, reason=str(exc))
                raise
            self.history.write("faults", "fault", "ok", **fields)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _drain(self) -> None:
        """Wait until all are connected, all is answered, and nothing has come for a while.

        Something that is late comes within `late_seconds` of that, else it is lost.
        """
        loop = asyncio.get_running_loop()
        plan = self.plan
        self.history.write("run", "drain", "invoke", quiet=plan.quiet_seconds)
        end = loop.time() + plan.drain_seconds + plan.late_seconds
        count, since, begin = self.history.count, loop.time(), loop.time()
        while loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
            if count != self.history.count or not all(a.is_settled for a in self.actors.values()):
                count, since = self.history.count, loop.time()
                begin = since
            if loop.time() - since < plan.quiet_seconds:
                continue
            if loop.time() - begin >= plan.quiet_seconds + plan.late_seconds or not self._owes():
                break
            since = loop.time()
        away = [name for name, actor in self.actors.items() if not actor.is_there]
        if away:
            self.problems.append(f"not back at the end: {', '.join(away)}")
        self.history.write("run", "drain", "ok")


class _Actor:
    """One client at work."""

    def __init__(self, run: PlanRunner, plan: ClientPlan, driver: str) -> None:
        self.plan = plan
        self.completed = 0
        self.subscribed = 0
        self.refused = 0
        self.done = False
        self._run = run
        self._rng = random.Random(run.rng.random())  # noqa: S311 - repeatable, not secret
        self._wanted: ConnectOptions | None = None
        self._up = asyncio.Event()
        self._wake = asyncio.Event()
        self._filters: dict[str, tuple[int, dict[str, Any]]] = {}
        self._published = 0
        self._back_at = 0.0
        nodes = run.target.nodes
        self._nodes = itertools.cycle(self._rng.sample(nodes, len(nodes)))
        self.client = run.target.client(
            plan.name, driver, run.history, on_lost=self._lost, hold=self._hold()
        )

    def _hold(self) -> Hold | None:
        if not self.plan.hold_seconds:
            return None
        loop = asyncio.get_running_loop()
        return lambda settle: void(loop.call_later(self.plan.hold_seconds, settle))

    @property
    def is_there(self) -> bool:
        return self._wanted is None or self._up.is_set()

    @property
    def is_settled(self) -> bool:
        return self.is_there and (self._wanted is None or not self.client.unfinished)

    def _lost(self) -> None:
        if self._wanted is not None:
            self._back_at = asyncio.get_running_loop().time() + self.plan.away_seconds
            if self._run.plan.unbroken:
                self._run.problems.append(f"a connection of {self.plan.name} broke")
        self._up.clear()
        self._wake.set()
        if not self.plan.reconnect:
            self.client.give_up()

    # Staying connected.

    async def keep(self) -> None:
        """Connect whenever the client wants to be and is not."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._wanted is not None and not self._up.is_set():
                away = self._back_at - asyncio.get_running_loop().time()
                if away > 0:
                    await asyncio.sleep(away)
                elif not await self._connect(self._wanted):
                    await asyncio.sleep(self._rng.uniform(*RETRY_SECONDS))

    async def _connect(self, options: ConnectOptions) -> bool:
        if not self.client.is_connected:
            if self.plan.node == "*":
                options = replace(options, node=next(self._nodes))
            try:
                present = await self.client.connect(options, CONNECT_SECONDS)
            except (OSError, ConnectRefused):
                return False
            if not self.plan.reconnect:
                self._wanted = None
            if not present:
                for topic_filter, (qos, more) in list(self._filters.items()):
                    if await self.client.subscribe(topic_filter, qos, **more) != "ok":
                        self.client.abort("not subscribed again")
                        return False
        if self.client.is_connected:
            self._up.set()
        return self._up.is_set()

    async def leave(self) -> None:
        self._wanted = None
        if self.client.is_connected:
            await self.client.disconnect()
        self.client.give_up()

    # Steps.

    async def play(self) -> None:
        for step in self.plan.steps:
            await getattr(self, f"_do_{step.do}")(**step.args)
        self.done = True
        await self._run.tell()

    async def _do_connect(self, **changes: Any) -> None:
        plan = self.plan
        options = ConnectOptions(
            client_id=plan.client_id or plan.name,
            node=plan.node if plan.node not in ("", "*") else self._run.target.nodes[0],
            version=plan.version,
            clean=plan.clean,
            expiry=plan.expiry,
            keep_alive=plan.keep_alive,
            receive_maximum=plan.receive_maximum,
            will=plan.will,
            tenant=plan.tenant,
            username=self._run.target.username(plan.tenant, plan.client_id or plan.name),
        )
        if changes.get("will") is False:
            changes["will"] = None
        options = replace(options, **changes)
        if options.clean:
            self._filters.clear()
        self._wanted = options
        self._wake.set()
        await self._up.wait()

    async def _do_disconnect(self) -> None:
        self._wanted = None
        await self.client.disconnect()
        self._up.clear()

    async def _do_abort(self) -> None:
        self._wanted = None
        self.client.abort("by plan")
        self._up.clear()

    async def _do_subscribe(self, *, qos: int, **args: Any) -> None:
        topic_filter = args.pop("filter")
        while True:
            if self.plan.reconnect:
                await self._up.wait()
            type_ = await self.client.subscribe(topic_filter, qos, **args)
            if type_ == "ok":
                self._filters[topic_filter] = (qos, args)
                self.subscribed += 1
                await self._run.tell()
            if type_ == "ok" or self.client.is_connected or not self.plan.reconnect:
                return

    async def _do_unsubscribe(self, **args: Any) -> None:
        self._filters.pop(args["filter"], None)
        if self.plan.reconnect:
            await self._up.wait()
        await self.client.unsubscribe(args["filter"])

    async def _do_publish(
        self,
        *,
        topic: str,
        topics: int = 1,
        count: int = 1,
        window: int = 1,
        rate: float = 0.0,
        **message: Any,
    ) -> None:
        """Publish `count` messages, `window` at a time, `rate` a second if that is not 0."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        pending: deque[asyncio.Future[str]] = deque()
        for index in range(count):
            if rate and (wait := start + index / rate - loop.time()) > 0:
                await asyncio.sleep(wait)
            if self.plan.reconnect:
                await self._up.wait()
            elif not self.client.is_connected:
                return
            self._published += 1
            name = f"{self.plan.name}/{self._published}"
            where = topic if topics == 1 else f"{topic}/{index % topics}"
            future = self.client.publish(name, where, **message)
            if future.done():
                await self._completed()
            else:
                pending.append(future)
            while len(pending) >= min(window, self.client.receive_maximum):
                await self._answered(await pending.popleft())
        while pending:
            await self._answered(await pending.popleft())

    async def _answered(self, type_: str) -> None:
        self.refused += type_ == "fail"
        await self._completed()

    async def _completed(self) -> None:
        self.completed += 1
        await self._run.tell()

    async def _do_wait(
        self,
        *,
        seconds: float = 0.0,
        client: str = "",
        count: int = 0,
        subscribed: int = 0,
        done: bool = False,
    ) -> None:
        if client:
            other = self._run.actors.get(client)
            if other is None:
                raise ScenarioError(f"{self.plan.name} waits for {client!r}, which is not there")
            await self._run.until(
                lambda: (
                    other.done
                    or (not done and other.completed >= count and other.subscribed >= subscribed)
                )
            )
        if seconds:
            await asyncio.sleep(seconds)

    async def _do_rights(self, **args: Any) -> None:
        history = self._run.history
        history.write(self.plan.name, "rights", "invoke", **args)
        await self._run.target.set_right(
            args["client_id"], args["action"], args["filter"], allowed=args["allowed"]
        )
        history.write(self.plan.name, "rights", "ok", **args)

    async def _do_tenant(self, *, tenant: str, is_open: bool) -> None:
        history = self._run.history
        history.write(self.plan.name, "tenant", "invoke", tenant=tenant, is_open=is_open)
        await self._run.target.set_tenant(tenant, is_open=is_open)
        history.write(self.plan.name, "tenant", "ok", tenant=tenant, is_open=is_open)


def void(_value: object) -> None:
    """Drop a value."""


async def execute(run: PlanRunner) -> list[str]:
    """Run a plan against a target that is started; return deviations from the plan."""
    with contextlib.suppress(asyncio.CancelledError):
        await run.go()
        return run.problems
    return ["cancelled"]
