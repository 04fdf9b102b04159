"""`mqlake up`: check that a system can run here, plan it, and hand it to the supervisor."""

import contextlib
import fcntl
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from launcher.log.cluster import check_cluster
from launcher.log.kafka import KafkaServer
from launcher.log.recovery import recover_log
from launcher.metrics import SUPERVISOR, SupervisorMetrics, metrics_url, state_of
from launcher.paths import OTHERS, DataDirectory
from launcher.planning import preflight
from launcher.planning.parts import FEDERATION, SystemPlan
from launcher.planning.planning import Options, plan_system
from launcher.progress import PipeProgress, StartProgress, choose_progress, replay
from launcher.supervision.requests import Requests
from launcher.supervision.supervisor import STOP_SIGNALS, Interrupted, Supervisor
from launcher.supervision.usage import members_of_sessions
from mqlake.errors import MqlakeError, OperationalError
from mqlake.logs import set_up_logging
from mqlake.metrics.server import MetricsServer
from mqlake.processes.heart import Heart
from mqlake.processes.status import (
    SystemState,
    boot_id,
    load_state,
    replace_file,
    start_ticks,
    url_host,
)

_logger = logging.getLogger(__name__)

_LEFTOVER_TIMEOUT_SECONDS: Final = 10.0
INTERRUPTED_EXIT_CODE: Final = 130


def run_here(options: Options, progress: StartProgress) -> int:
    """Run a system until it gets a signal to stop; return the exit code.

    Raises:
        MqlakeError: It cannot start; nothing was harmed and no process is left.
    """
    os.umask(OTHERS)  # for all processes of the system
    data = DataDirectory(options.data_dir.absolute())
    preflight.check_directory(data)
    with _hold(data):
        previous = load_state(data.root)
        plan = plan_system(options, data, previous)
        _end_leftovers(previous)
        for directory in (data.run, data.logs):
            directory.mkdir(exist_ok=True)
        if plan.balancing is not None:
            plan.balancing.write_files(data.root)
        else:
            (data.balancer / "control.sock").unlink(missing_ok=True)
        if plan.federation is None:
            data.heartbeat(FEDERATION).unlink(missing_ok=True)
        set_up_logging(
            plan.settings.log_level,
            data.logs / "supervisor.log",
            plan.settings.log_format,
            SUPERVISOR,
        )
        if plan.kafka is None:
            check_cluster(data, plan.servers)
        else:
            _prepare_log(plan, plan.kafka, previous, progress)
        try:
            _supervise(plan, progress)
        except Interrupted:
            return INTERRUPTED_EXIT_CODE
        except MqlakeError:
            _logger.exception("the system did not start")
            raise
    return 0


def _prepare_log(
    plan: SystemPlan, kafka: KafkaServer, previous: SystemState | None, progress: StartProgress
) -> None:
    if not kafka.log_dir.exists():
        progress.part("log", "formatting the storage")
        progress.tick()
    kafka.prepare()
    if previous is None or previous.boot_id != boot_id():
        # Written data is lost only with the machine's memory, however processes end.
        recover_log(kafka, plan.log_program(kafka), plan.data.checkpoints, progress)


def run_detached(options: Options) -> int:
    """Run a system in a process of its own; return when it is ready.

    Raises:
        MqlakeError: It did not start.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os._exit(_be_daemon(options, writing))
    os.close(writing)

    def pass_on(number: int, _frame: object) -> None:
        os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    progress = choose_progress()
    try:
        with os.fdopen(reading, encoding="utf-8") as lines:
            replay(lines, progress)
    finally:
        progress.close()
    return 0


def _be_daemon(options: Options, writing: int) -> int:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # Other files of the caller (a lock, a pipe that is read to its end) are not ours to keep.
    os.closerange(3, writing)
    os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
    progress = PipeProgress(os.fdopen(writing, "w", encoding="utf-8"))
    try:
        code = run_here(options, progress)
    except MqlakeError as exc:
        progress.failed(str(exc))
        return 1
    except BaseException as exc:
        _logger.exception("the supervisor failed")
        progress.failed(f"the supervisor failed, {exc!r}: see {options.data_dir}/logs")
        return 1
    if code != 0:
        progress.failed("interrupted")
    return code


@contextmanager
def _hold(data: DataDirectory) -> Iterator[None]:
    """Hold the data directory; the lock goes with the process, however it ends."""
    try:
        data.make()
        file = data.lock.open("a+", encoding="ascii")
    except OSError as exc:
        raise OperationalError(
            f"the data directory {data.root} cannot be written ({exc.strerror}): change its owner "
            "or choose another with --data-dir"
        ) from exc
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise OperationalError(
                f"a system runs on {data.root} already (pid {holder}){_where(data)}: stop it with: "
                f"bin/mqlake down --data-dir {data.root}, or choose another --data-dir"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _where(data: DataDirectory) -> str:
    """Return in words where the system of a data directory is; nothing before it has said so."""
    try:
        state = load_state(data.root)
    except OperationalError:
        return ""
    if state is None or not state.is_alive:
        return ""
    return f" at {' '.join((*_entrances(state), state.api_url))}"


def _entrances(state: SystemState) -> list[str]:
    """Return the URLs at which clients connect."""
    return [*state.entrances[:1]] or [one.url for one in state.gateways]


def _next_steps(state: SystemState, data: DataDirectory) -> str:
    """Return next steps for a new user, in lines."""
    where = f" --data-dir {data.root}"
    return (
        f"try it:     bin/mqlake demo{where}\n"
        f"dashboard:  {state.api_url}, its token is in {data.api_token}\n"
        f"stop it:    bin/mqlake down{where}"
    )


def _supervise(plan: SystemPlan, progress: StartProgress) -> None:
    state = _first_state(plan)
    last, heart = [state], Heart(SUPERVISOR, None)

    def write_state(new: SystemState) -> None:
        last[0] = new
        heart.note(state_of(new))
        replace_file(plan.data.state, new.to_json())

    supervisor = Supervisor(
        plan.parts(),
        plan.topics_program(),
        state,
        progress,
        ready_timeout_seconds=plan.settings.ready_timeout_seconds,
        write_state=write_state,
        requests=Requests(plan.data.restarts),
        hang_seconds=plan.settings.hang_seconds,
    )
    shown = SupervisorMetrics(lambda: last[0], plan.data.root)
    with _signals_blocked():  # its threads are to leave them to the supervisor
        served = MetricsServer(plan.metrics[SUPERVISOR], heart, shown.read)
    try:
        ready = " ".join(("ready", *_entrances(state), state.api_url))
        supervisor.run(f"{ready}\n{_next_steps(state, plan.data)}")
    finally:
        served.close()


def _first_state(plan: SystemPlan) -> SystemState:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    scheme = "http" if plan.api_certificate is None else "https"
    return SystemState(
        pid=os.getpid(),
        start_ticks=ticks,
        boot_id=boot_id(),
        started_at=time.time(),
        written_at=time.time(),
        phase="starting",
        bootstrap_servers=plan.servers,
        controller_port=None if plan.kafka is None else plan.kafka.controller_port,
        api_url=f"{scheme}://{url_host(plan.api_host)}:{plan.api_port}",
        connect_port=plan.connect_port,
        gateways=plan.gateways,
        metrics={name: metrics_url(one.host, one.port) for name, one in plan.metrics.items()},
        entrances=() if plan.balancing is None else plan.balancing.entrances,
        durability=plan.settings.durability,
        api_certificate="" if plan.api_certificate is None else str(plan.api_certificate),
        log_security_file=str(plan.servers.security_file or ""),
    )


@contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_leftovers(state: SystemState | None) -> None:
    """End processes that a killed supervisor may have left; a pid used again is left alone."""
    if state is None or state.boot_id != boot_id():
        return
    sessions = {
        process.pid
        for process in state.processes
        # The leader may be gone and its children alive; their session then still bears its pid.
        if process.pid not in {None, state.pid}
        and start_ticks(process.pid or 0) in {None, process.start_ticks}
    }
    deadline = time.monotonic() + _LEFTOVER_TIMEOUT_SECONDS
    while left := members_of_sessions({session for session in sessions if session is not None}):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            pids = ", ".join(map(str, left))
            raise OperationalError(f"processes of the last run do not end: kill them ({pids})")
        time.sleep(0.02)
