"""Start the parts, keep them running, stop them in order; one thread, woken by signals and time."""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from launcher.child import Child, ChildProgram, adopt_orphans
from launcher.planning.parts import STOP_ORDER, STOPPED_EARLY, WITH_JAVA, Part, PartHealth
from launcher.progress import StartProgress
from launcher.supervision.hanging import JAVA_TIMES, HangEnd, HangWatch, pace_of_machine
from launcher.supervision.requests import Requests
from launcher.supervision.running import Running
from launcher.supervision.usage import Usage, own_usage, percent, usage_of_sessions
from mqlake.errors import OperationalError
from mqlake.processes.status import REFRESH_SECONDS, ProcessReport, SystemState

_logger = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STARTING_STEP_SECONDS: Final = 0.1
_STEP_SECONDS: Final = 1.0
LOG_PROBE_SECONDS: Final = 3.0
"""While the log is well; each probe is a connection that the log has to accept."""
START_ATTEMPTS: Final = 3
"""A part that ends so often before the system is ready makes the start fail."""


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A signal to stop came before the system was ready."""


class Supervisor:
    """Owns every process of one system.

    Args:
        parts: In the order of their start.
        topics: Ends well once the log has its topics; parts that need them start after it.
        state: The system's addresses, to which the processes are added.
        write_state: Puts a state where other programs find it.
        requests: To start parts again.
        hang_seconds: A process that gives no sign of life for so long is ended; 0: never.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        topics: ChildProgram,
        state: SystemState,
        progress: StartProgress,
        *,
        ready_timeout_seconds: float,
        write_state: Callable[[SystemState], None],
        requests: Requests,
        hang_seconds: float,
    ) -> None:
        self._running = [Running(part) for part in parts]
        self._topics_program = topics
        self._topics: Child | None = None
        self._has_topics = False
        self._state = state
        self._progress = progress
        self._ready_timeout = ready_timeout_seconds
        self._write_state = write_state
        self._requests = requests
        self._hang_seconds = hang_seconds
        self._may_write = True
        """The last state could be written; heartbeats are on the same disk."""
        self._asked: dict[str, None] = {}
        """Parts that are to be started again, in order."""
        self._written: tuple[object, ...] = ()
        self._written_at = 0.0
        self._measured_at = time.monotonic()
        self._own = own_usage()
        self._own_cpu_percent = 0.0

    def run(self, ready_line: str) -> None:
        """Run the system until a signal to stop; none of its processes is left afterwards.

        Raises:
            OperationalError: It did not get ready, or a part cannot run at all.
            Interrupted: A signal to stop came before it was ready.
        """
        adopt_orphans()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
        try:
            self._start()
            self._progress.ready(ready_line)
            _logger.info("ready")
            self._keep_running()
        finally:
            self._stop()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # Starting

    def _start(self) -> None:
        deadline = time.monotonic() + self._ready_timeout
        self._topics = Child(self._topics_program)
        self._requests.take()  # of a system that is gone
        while True:
            self._check_topics()
            self._step()
            self._show()
            awaited = [running for running in self._running if running.part.awaited]
            if self._has_topics and all(running.health.healthy for running in awaited):
                self._state = replace(self._state, phase="running")
                self._publish(force=True)
                return
            self._check_start(deadline)
            if self._wait(_STARTING_STEP_SECONDS):
                raise Interrupted

    def _check_topics(self) -> None:
        if self._topics is None:
            return
        reason = self._topics.exit_reason()
        if reason == "exit code 0":
            self._topics = None
            self._has_topics = True
        elif reason is not None:
            raise OperationalError(
                f"the log topics could not be made, {reason}: see {self._state_logs()}"
            )

    def _check_start(self, deadline: float) -> None:
        for running in self._running:
            if running.restarts.count + (running.child is None) >= START_ATTEMPTS:
                raise OperationalError(
                    f"{running.part.name} does not start, {running.last_exit}; "
                    f"see {running.part.program.log}"
                )
        if time.monotonic() > deadline:
            waiting = [one for one in self._running if one.part.awaited and not one.health.healthy]
            raise OperationalError(
                f"not ready after {self._ready_timeout:.0f} s, "
                + ", ".join(f"{running.part.name}: {running.health.detail}" for running in waiting)
                + f"; see {self._state_logs()}"
            )

    def _state_logs(self) -> object:
        return self._topics_program.output.parent

    def _show(self) -> None:
        for running in self._running:
            self._progress.part(
                running.part.name, running.health.detail, done=running.health.healthy
            )
        self._progress.tick()

    # Running

    def _keep_running(self) -> None:
        while True:
            self._take_requests()
            self._step()
            due = [running.restarts.due_at for running in self._running]
            pause = min((at - time.monotonic() for at in due if at is not None), default=1.0)
            if any(running.is_changing for running in self._running):
                pause = _STARTING_STEP_SECONDS
            if self._wait(max(0.0, min(_STEP_SECONDS, pause))):
                _logger.info("signal to stop")
                return

    def _wait(self, seconds: float) -> bool:
        """Sleep until a child ends or that long; return whether to stop."""
        received = signal.sigtimedwait((*STOP_SIGNALS, signal.SIGCHLD), seconds)
        return received is not None and received.si_signo in STOP_SIGNALS

    def _step(self) -> None:
        now = time.monotonic()
        for running in self._running:
            self._care_for(running, now)
        if now - self._measured_at >= REFRESH_SECONDS:
            self._measure(now)
        self._publish()

    def _care_for(self, running: Running, now: float) -> None:
        running.clear_away(now)
        if running.next is not None:
            self._care_for_next(running, running.next, now)
        if running.child is not None:
            patience = running.part.program.stop_timeout_seconds
            if running.asked_at is not None and now - running.asked_at > patience:
                running.child.kill_group()
            reason = running.child.exit_reason()
            if reason is not None:
                self._reap(running, running.hanging.reason if running.hanging else reason)
        elif running.restarts.due_at is None:
            waits_for = self._waits_for(running.part)
            if waits_for:
                running.health = PartHealth(False, f"waiting for {waits_for}")
            else:
                self._spawn(running)
        elif running.restarts.is_due(now=now):
            running.restarts.restarted()
            self._spawn(running)
        if running.child is not None:
            self._probe(running, now)
            self._look_for_hanging(running, running.child, now)

    def _waits_for(self, part: Part) -> str:
        """Return the part that has to be there before a part starts; empty when it may."""
        if part.needs_log_topics and not self._has_topics:
            return "the log"
        before = next((one for one in self._running if one.part.name == part.after), None)
        if before is not None and not before.was_healthy:
            return f"{before.part.name} to be well"
        return ""

    def _spawn(self, running: Running) -> None:
        try:
            running.child = Child(running.part.program)
        except OSError as exc:  # no process or no file to be had: that passes, so try again
            self._plan_restart(running, f"could not be started: {exc}")
            return
        running.begun(PartHealth(False, "starting"))
        _logger.info(
            "started", extra={"fields": {"part": running.part.name, "pid": running.child.pid}}
        )
        # Before anything else: should this process be killed, its successor must know the pid.
        self._publish(force=True)

    def _reap(self, running: Running, reason: str) -> None:
        """Clear away an ended process and plan the next start."""
        child = running.child
        assert child is not None
        # First, so that no second Spark writes where the first one's children still do.
        child.kill_group()
        running.child = None
        if running.next is not None:
            running.last_exit = reason
            running.restarts.restarted()
            self._put_next(running)  # it takes the place by itself
            self._tell_end(running, reason)
        elif running.asked_at is not None:
            running.asked_at = None
            running.last_exit = reason
            self._spawn(running)
        else:
            self._plan_restart(running, reason)

    def _plan_restart(self, running: Running, reason: str) -> None:
        running.last_exit = reason
        delay = running.restarts.ended(now=time.monotonic(), healthy_since=running.healthy_since)
        running.healthy_since = None
        running.health = PartHealth(False, f"ended, {reason}; starts again in {delay:g} s")
        self._tell_end(running, reason)

    def _tell_end(self, running: Running, reason: str) -> None:
        _logger.warning("ended", extra={"fields": {"part": running.part.name, "reason": reason}})
        if self._state.phase == "running":
            self._progress.note(f"{running.part.name} ended, {reason}; it starts again")

    def _probe(self, running: Running, now: float) -> None:
        assert running.child is not None
        rested = now - running.probed_at >= LOG_PROBE_SECONDS
        if running.part.kind == "log" and running.health.healthy and not rested:
            return
        running.probed_at = now
        running.probed(running.part.probe(running.child.pid), now)

    def _look_for_hanging(self, running: Running, child: Child, now: float) -> None:
        """End a process that runs and gives no sign of life."""
        if running.hanging is not None:
            if running.hanging.is_due(now) and running.child is not None:
                self._reap(running, running.hanging.reason)
            return
        if running.watch is None:
            times = JAVA_TIMES if running.part.kind in WITH_JAVA else 1.0
            running.watch = HangWatch(self._hang_seconds * times, now, pace_of_machine)
        is_changing = running.asked_at is not None
        beat = None if is_changing else running.health.beat
        if running.watch.hangs(beat, now, may_write=self._may_write):
            reason = f"killed, it gave no sign of life: its stacks are in {child.program.output}"
            fields = {"part": running.part.name, "said": running.health.detail}
            _logger.error("it hangs", extra={"fields": fields})
            running.hanging = HangEnd.begin(child.pid, reason, now)

    # Restarts on request

    def _take_requests(self) -> None:
        self._asked.update(dict.fromkeys(self._requests.take()))
        for name in list(self._asked):
            running = next((one for one in self._running if one.part.name == name), None)
            if running is not None and running.is_changing:
                continue  # once that is done
            del self._asked[name]
            if running is None or running.child is None:
                self._fail(name, f"there is no process {name}")
            else:
                _logger.info("asked to start again", extra={"fields": {"part": name}})
                self._start_again(running, running.child)

    def _start_again(self, running: Running, child: Child) -> None:
        if running.part.beside is None:
            running.asked_at = time.monotonic()
            child.terminate()
            return
        try:
            running.next = Child(running.part.beside.program)
        except OSError as exc:
            self._fail(running.part.name, f"could not be started: {exc}")
            return
        running.next_since = time.monotonic()
        running.next_health = PartHealth(False, "starting")
        self._publish(force=True)

    def _care_for_next(self, running: Running, following: Child, now: float) -> None:
        """Let a process take the place of the present one once all flows through it."""
        assert running.part.beside is not None
        reason = following.exit_reason()
        if reason is None and now - running.next_since > self._ready_timeout:
            reason = f"not ready after {self._ready_timeout:.0f} s: {running.next_health.detail}"
        if reason is not None:
            following.kill_group()
            running.next = None
            self._fail(running.part.name, reason)
            return
        running.next_health = running.part.beside.probe(following.pid)
        if running.next_health.healthy and running.child is not None:
            running.leaving = running.child
            self._put_next(running)
            running.leaving.terminate()

    def _put_next(self, running: Running) -> None:
        running.put_next(time.monotonic())
        _logger.info("another one has its place", extra={"fields": {"part": running.part.name}})
        self._publish(force=True)

    def _fail(self, name: str, reason: str) -> None:
        fields = {"part": name, "reason": reason}
        _logger.error("not started again", extra={"fields": fields})
        try:
            self._requests.fail(name, reason)
        except OSError:
            _logger.exception("the caller could not be notified")

    # Telling others

    def _measure(self, now: float) -> None:
        elapsed = now - self._measured_at
        usages = usage_of_sessions(
            {child.pid for running in self._running for child in running.children}
        )
        for running in self._running:
            usage = usages.get(running.child.pid) if running.child is not None else None
            before, running.usage = running.usage, usage or Usage()
            running.cpu_percent = percent(before, running.usage, elapsed)
        before, self._own = self._own, own_usage()
        self._own_cpu_percent = percent(before, self._own, elapsed)
        self._measured_at = now

    def _publish(self, *, force: bool = False) -> None:
        """Write the state when it says something new, and every few seconds."""
        now = time.monotonic()
        news: tuple[object, ...] = (
            self._state.phase,
            *(
                (child.pid, r.health.healthy, r.health.detail, r.next_health.detail)
                for r in self._running
                for child in r.children
            ),
            *((r.health.healthy, r.health.detail) for r in self._running if not r.children),
        )
        if not force and news == self._written and now - self._written_at < REFRESH_SECONDS:
            return
        self._written = news
        self._written_at = now
        self._state = replace(
            self._state,
            written_at=time.time(),
            processes=(
                self._own_report(),
                *(report for r in self._running for report in r.reports(now)),
            ),
        )
        try:
            self._write_state(self._state)
        except OSError:  # a full disk, say; readers see the state grow old
            self._may_write = False
            _logger.exception("the state could not be written")
        else:
            self._may_write = True

    def _own_report(self) -> ProcessReport:
        return ProcessReport(
            name="supervisor",
            pid=self._state.pid,
            healthy=True,
            detail=self._state.phase,
            uptime_seconds=round(time.time() - self._state.started_at, 1),
            rss_bytes=self._own.rss_bytes,
            cpu_percent=self._own_cpu_percent,
            cpu_seconds=round(self._own.cpu_seconds, 2),
            start_ticks=self._state.start_ticks,
        )

    # Stopping

    def _stop(self) -> None:
        self._progress.note("stopping")
        self._state = replace(self._state, phase="stopping")
        self._publish(force=True)
        if self._topics is not None:
            self._topics.kill_group()
        for running in self._running:
            for child in (running.next, running.leaving):
                if child is not None:
                    child.kill_group()
            running.next = running.leaving = None
        for running in self._of(STOPPED_EARLY):
            self._tell_to_stop(running)
        hurry = False
        for kinds in STOP_ORDER:
            hurry = self._stop_group(self._of(kinds), hurry=hurry)
        _logger.info("stopped")

    def _of(self, kinds: tuple[str, ...]) -> list[Running]:
        return [r for r in self._running if r.part.kind in kinds and r.child is not None]

    def _tell_to_stop(self, running: Running) -> None:
        if running.stopping_since is None and running.child is not None:
            running.child.terminate()
            running.health = PartHealth(False, "stopping")
            running.stopping_since = time.monotonic()

    def _stop_group(self, group: list[Running], *, hurry: bool) -> bool:
        """Stop these parts side by side; return whether a second signal asked to hurry."""
        for running in group:
            self._tell_to_stop(running)
        self._publish()
        timeout = max((r.part.program.stop_timeout_seconds for r in group), default=0.0)
        deadline = time.monotonic() + timeout
        while group and not hurry and time.monotonic() < deadline:
            group = [r for r in group if not self._has_stopped(r)]
            hurry = bool(group) and self._wait(_STARTING_STEP_SECONDS)
        for running in group:
            if not self._has_stopped(running):
                _logger.warning("killed", extra={"fields": {"part": running.part.name}})
                assert running.child is not None
                running.child.kill_group()
                running.child = None
        return hurry

    def _has_stopped(self, running: Running) -> bool:
        if running.child is None or running.child.exit_reason() is None:
            return running.child is None
        assert running.stopping_since is not None
        running.child.kill_group()
        running.child = None
        running.health = PartHealth(False, "stopped")
        taken = f"{time.monotonic() - running.stopping_since:.1f}"
        fields = {"part": running.part.name, "seconds": taken}
        _logger.info("part stopped", extra={"fields": fields})
        return True
