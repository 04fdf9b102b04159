"""`mqlake up`: check that a system can run here, plan it, and hand it to the supervisor."""

import contextlib
import fcntl
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from api.settings import ApiSettings
from ingest.federation.settings import FederationSettings
from ingest.gateway.settings import GatewaySettings
from launcher import preflight
from launcher.balancing import BALANCER, plan_balancing, proxied_listeners
from launcher.java import find_java_home
from launcher.kafka import KafkaServer
from launcher.listeners import listeners_of, reachable_addresses, wanted_ports
from launcher.log_cluster import check_cluster
from launcher.log_recovery import recover_log
from launcher.metrics import SUPERVISOR, SupervisorMetrics, metrics_url
from launcher.parts import API, FEDERATION, LAKE, QUERY, ROUTER, RULES, SystemPlan
from launcher.paths import OTHERS, RUNTIME, DataDirectory
from launcher.ports import claim, free_ports
from launcher.progress import PipeProgress, StartProgress, choose_progress, replay
from launcher.requests import Requests
from launcher.settings import LocalSettings
from launcher.supervisor import STOP_SIGNALS, Interrupted, Supervisor
from launcher.usage import members_of_sessions
from mqlake.errors import MqlakeError, OperationalError
from mqlake.logs import set_up_logging
from mqlake.metrics.server import MetricsServer, new_registry
from mqlake.settings import LogSettings, MetricsSettings, load
from mqlake.status import (
    GatewayAddress,
    SystemState,
    boot_id,
    load_state,
    replace_file,
    start_ticks,
    url_host,
)
from mqlake.tls import server_context
from rules.runner.settings import RulesSettings
from streaming.settings.lake import LakeSettings
from streaming.settings.query import QuerySettings
from streaming.settings.router import RouterSettings

_logger = logging.getLogger(__name__)

_LEFTOVER_TIMEOUT_SECONDS: Final = 10.0
INTERRUPTED_EXIT_CODE: Final = 130


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked `mqlake up` for; None leaves it to the settings files."""

    data_dir: Path
    config_dir: Path
    gateways: int = 1
    mqtt_port: int | None = None
    api_port: int | None = None
    websocket_port: int | None = None
    balanced: bool = False
    federation: Path | None = None
    """Settings of the federator."""
    log_servers: str | None = None


def run_here(options: Options, progress: StartProgress) -> int:
    """Run a system until it is told to stop; return the exit code.

    Raises:
        MqlakeError: It cannot start; nothing was harmed and no process is left.
    """
    os.umask(OTHERS)  # for all processes of the system
    data = DataDirectory(options.data_dir.absolute())
    preflight.check_directory(data)
    with _hold(data):
        previous = load_state(data.root)
        plan = _plan(options, data, previous)
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
        # Only with the machine's memory goes what processes wrote, however they end.
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
    # Other files of the caller (a lock, a pipe somebody reads to its end) are not ours to keep.
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
    """Return what a new user may do now, in lines."""
    where = f" --data-dir {data.root}"
    return (
        f"try it:     bin/mqlake demo{where}\n"
        f"dashboard:  {state.api_url}, its token is in {data.api_token}\n"
        f"stop it:    bin/mqlake down{where}"
    )


def _plan(options: Options, data: DataDirectory, previous: SystemState | None) -> SystemPlan:
    """Check everything that can be known beforehand and choose the ports."""
    named = {} if options.log_servers is None else {"log_servers": options.log_servers}
    settings = load(LocalSettings, _file(options, "local"), **named)
    gateway = load(GatewaySettings, _file(options, "gateway"))
    api = load(ApiSettings, _file(options, "api"))
    router = load(RouterSettings, _file(options, "router"))
    lake = load(LakeSettings, _file(options, "lake"))
    query = load(QuerySettings, _file(options, "query"), connect_token="unused")  # noqa: S106
    rules = load(RulesSettings, _file(options, "rules"))
    api_certificate = _check_certificate(api, data)
    find_java_home(RUNTIME)
    preflight.check_contents(data, embedded=not settings.log_servers)
    available = preflight.read_available_memory()
    preflight.check_memory(available, settings.min_available_memory_mb, options.gateways)
    preflight.check_disk(data.root, settings.min_free_disk_mb)

    mqtt_port = gateway.port if options.mqtt_port is None else options.mqtt_port
    websocket_port = (
        settings.websocket_port if options.websocket_port is None else options.websocket_port
    )
    names = [f"gateway-{number + 1}" for number in range(options.gateways)]
    balancing = None
    federation = None
    if options.federation is not None:
        federation = load(FederationSettings, options.federation, log=LogSettings())
    host, first_port, own_websocket_port = gateway.host, mqtt_port, websocket_port
    if options.balanced:
        balancing = plan_balancing(
            _file(options, "balancer"), settings, gateway, mqtt_port, websocket_port
        )
        host, first_port, own_websocket_port = "127.0.0.1", mqtt_port + 1, 0
    listeners = {
        name: listeners_of(gateway, number, own_websocket_port) for number, name in enumerate(names)
    }
    api_port = api.port if options.api_port is None else options.api_port
    wanted = [
        preflight.WantedPort(host, first_port + number, f"MQTT ({name})", "--mqtt-port")
        for number, name in enumerate(names)
    ]
    if balancing is not None:
        wanted += balancing.wanted_ports()
    wanted += [port for name in names for port in wanted_ports(name, listeners[name])]
    wanted.append(preflight.WantedPort(api.host, api_port, "the API", "--api-port"))
    if settings.log_port is not None and not settings.log_servers:
        wanted.append(
            preflight.WantedPort("127.0.0.1", settings.log_port, "the log", "setting log_port")
        )
    set_connect_port = "connect_port" in query.model_fields_set
    if set_connect_port:
        wanted.append(
            preflight.WantedPort(
                "127.0.0.1", query.connect_port, "Spark Connect", "setting connect_port"
            )
        )
    metrics = {
        SUPERVISOR: settings.metrics,
        ROUTER: router.metrics,
        LAKE: lake.metrics,
        RULES: rules.metrics,
        API: api.metrics,
        QUERY: query.metrics,
        **{name: _counted_up(gateway.metrics, number) for number, name in enumerate(names)},
    }
    if balancing is not None:
        metrics[BALANCER] = balancing.settings.metrics
    if federation is not None:
        metrics[FEDERATION] = federation.metrics
        listen = federation.listen
        if listen.port:
            wanted.append(
                preflight.WantedPort(
                    listen.host, listen.port, "neighbours' federators", "setting listen.port"
                )
            )
    wanted += [
        preflight.WantedPort(one.host, one.port, f"metrics ({name})", "setting metrics.port")
        for name, one in metrics.items()
        if one.port
    ]
    preflight.check_ports(wanted)
    taken = {want.port for want in wanted}
    earlier = _internal_ports(previous)
    earlier_metrics = _metrics_ports(previous)
    kafka = None
    if not settings.log_servers:
        log_port = settings.log_port or _earlier_or_free(earlier[0], taken)
        controller_port = _earlier_or_free(earlier[1], taken)
        kafka = KafkaServer(
            data.kafka,
            data.logs,
            log_port,
            controller_port,
            heap_mebibytes=settings.log_heap_mb,
            security_file=data.log_security,
        )
    connect_port = query.connect_port if set_connect_port else _earlier_or_free(earlier[2], taken)
    metrics = {
        name: one
        if one.port
        else _with_port(one, _earlier_or_free(earlier_metrics.get(name), taken))
        for name, one in metrics.items()
    }
    if balancing is not None:
        for name in names:
            ports = (_earlier_or_free(None, taken), _earlier_or_free(None, taken))
            listeners[name] = (*listeners[name], *proxied_listeners(ports))
    gateways = tuple(
        GatewayAddress(name, host, first_port + number, reachable_addresses(listeners[name]))
        for number, name in enumerate(names)
    )
    return SystemPlan(
        data,
        settings,
        kafka,
        gateway.min_free_disk_bytes,
        connect_port,
        gateways,
        listeners,
        api.host,
        api_port,
        options.config_dir,
        metrics,
        balancing,
        options.federation,
        api_certificate,
    )


def _check_certificate(api: ApiSettings, data: DataDirectory) -> Path | None:
    """Return where the API, which runs in the data directory, finds its certificate.

    Raises:
        OperationalError: It cannot be used.
    """
    if api.certificate is None or api.key is None:
        return None
    password = api.key_password.get_secret_value() if api.key_password else ""
    certificate = data.root / api.certificate
    server_context(certificate, data.root / api.key, password, api.minimum_tls_version)
    return certificate


def _supervise(plan: SystemPlan, progress: StartProgress) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    scheme = "http" if plan.api_certificate is None else "https"
    api_url = f"{scheme}://{url_host(plan.api_host)}:{plan.api_port}"
    state = SystemState(
        pid=os.getpid(),
        start_ticks=ticks,
        boot_id=boot_id(),
        started_at=time.time(),
        written_at=time.time(),
        phase="starting",
        bootstrap_servers=plan.servers,
        controller_port=None if plan.kafka is None else plan.kafka.controller_port,
        api_url=api_url,
        connect_port=plan.connect_port,
        gateways=plan.gateways,
        metrics={name: metrics_url(one.host, one.port) for name, one in plan.metrics.items()},
        entrances=() if plan.balancing is None else plan.balancing.entrances,
        durability=plan.settings.durability,
        api_certificate="" if plan.api_certificate is None else str(plan.api_certificate),
        log_security_file=str(plan.servers.security_file or ""),
    )
    last = [state]

    def write_state(new: SystemState) -> None:
        last[0] = new
        replace_file(plan.data.state, new.to_json())

    supervisor = Supervisor(
        plan.parts(),
        plan.topics_program(),
        state,
        progress,
        ready_timeout_seconds=plan.settings.ready_timeout_seconds,
        write_state=write_state,
        requests=Requests(plan.data.restarts),
    )
    shown = SupervisorMetrics(lambda: last[0], plan.data.root)
    with _signals_blocked():  # its threads are to leave them to the supervisor
        served = MetricsServer(
            plan.metrics[SUPERVISOR], new_registry(SUPERVISOR, shown.is_healthy, shown.read)
        )
    try:
        ready = " ".join(("ready", *_entrances(state), api_url))
        supervisor.run(f"{ready}\n{_next_steps(state, plan.data)}")
    finally:
        served.close()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_leftovers(state: SystemState | None) -> None:
    """End what a killed supervisor may have left; a pid that is used again is left alone."""
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


def _earlier_or_free(earlier: int | None, taken: set[int]) -> int:
    """Return the port of the last run if nobody has taken it, so that users find it again."""
    if earlier and earlier not in taken and claim(earlier):
        port = earlier
    else:
        while (port := free_ports(1)[0]) in taken:
            pass
    taken.add(port)
    return port


def _internal_ports(state: SystemState | None) -> tuple[int | None, int | None, int | None]:
    """Return the ports of the embedded log, its controller and Spark Connect that a state names."""
    if state is None:
        return None, None, None
    if state.controller_port is None:
        return None, None, state.connect_port
    log_port = int(state.bootstrap_servers.rpartition(":")[2])
    return log_port, state.controller_port, state.connect_port


def _metrics_ports(state: SystemState | None) -> dict[str, int]:
    """Return by process the ports of metrics that a state names."""
    urls = {} if state is None else state.metrics
    return {name: urlsplit(url).port or 0 for name, url in urls.items()}


def _counted_up(metrics: MetricsSettings, number: int) -> MetricsSettings:
    """Return the settings of a further gateway."""
    return _with_port(metrics, metrics.port + number) if metrics.port else metrics


def _with_port(metrics: MetricsSettings, port: int) -> MetricsSettings:
    return metrics.model_copy(update={"port": port})


def _file(options: Options, process: str) -> Path | None:
    path = options.config_dir / f"{process}.toml"
    return path if path.is_file() else None
