"""The router's main, and its wiring: the query that routes, that of rules, and their changes."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import SystemClock
from mqlake.errors import LogError
from mqlake.log.admin import LogAdmin
from mqlake.log.growth_watch import GrowthWatch
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer
from mqlake.processes.heart import Heart
from mqlake.records.messages import (
    DEAD_LETTERS,
    EVENTS,
    GATEWAYS,
    INBOUND,
    METRICS,
    OUTPUTS,
    ROUTES,
    RULES,
)
from streaming import queries
from streaming.application.application import (
    LOCK_TIMEOUT_SECONDS,
    Engine,
    Look,
    Stop,
    run,
    run_engine,
)
from streaming.application.figures import read_done, read_positions
from streaming.application.metrics import add_queries
from streaming.application.poison import PoisonGuard
from streaming.application.supervision import QueryJob, QuerySupervisor
from streaming.engine.priority import give_way_for_a_while
from streaming.engine.slots import QueryMode, router_mode, rules_mode, slots_advice
from streaming.engine.spark import ROUTER_POOL, RULES_POOL, start_spark, use_pool
from streaming.jobs import router, rules
from streaming.jvm.bridge import JvmError
from streaming.log.checkpoints import (
    Offsets,
    checkpoint,
    checkpoints,
    committed,
    furthest,
    last_batch,
    later,
    settled,
    with_added,
)
from streaming.log.log_topics import partition_counts
from streaming.log.positions import Positions
from streaming.log.sources import client_config
from streaming.reading.growth import Cut, LogGrowth
from streaming.reading.lost_end import pass_over_lost_end
from streaming.reading.unread import Unread
from streaming.router.succession import NAME, Flow, Seat, Succession
from streaming.rules.controller import RuleController
from streaming.rules.evaluation import count_from_now, count_nothing, follow_rules
from streaming.rules.log import KafkaRuleLog
from streaming.rules.program import Programs
from streaming.rules.run_marks import failure, is_ended, left_unread
from streaming.rules.signatures import Signatures, rules_client_config
from streaming.rules.taken import TakenOutputs
from streaming.settings.router import RouterSettings

_logger = logging.getLogger(__name__)

JAVA: Final = ("-Xms256m", "-Xmn128m")
"""Objects of a message die young, so the pauses of the collector are short; and not more memory is
taken at the start than is used."""
LOG_TOPICS: Final = (INBOUND, ROUTES, EVENTS, RULES, OUTPUTS, DEAD_LETTERS, METRICS, GATEWAYS)
_GIVES_WAY: Final = 5
"""Niceness that is added while one begins beside another: its start takes more than the routing."""
_GIVES_WAY_SECONDS: Final = 45.0
"""Then a machine has no room for one that gives way."""
_WARM_SECONDS: Final = 10.0
"""For which both route: Java compiles by then the code that each message goes through."""
QUERIES: Final = {queries.ROUTER: (INBOUND,), queries.RULES: rules.SOURCES}
"""The queries of the router, with the log topics that each reads."""


def main(settings: RouterSettings, *, beside: bool = False) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    Args:
        settings: Settings of the process.
        beside: Another router may run: this one begins beside it, and follows it when it ends.

    Raises:
        OperationalError: The machine or the settings do not allow it to run.
    """
    heart = Heart(NAME, settings.heartbeat_file)
    if beside and heart.file is not None:
        heart.file = heart.file.with_stem(f"{heart.file.stem}-next")
    return run(settings, heart, partial(_start, settings, heart, beside))


def _start(settings: RouterSettings, heart: Heart, beside: bool, stop: Stop) -> int:
    succession = Succession(settings.data_dir)
    if beside:
        come_first = give_way_for_a_while(_GIVES_WAY, _GIVES_WAY_SECONDS)
    else:
        come_first = _do_nothing
        succession.take(LOCK_TIMEOUT_SECONDS)
    seat = Seat(settings.data_dir)
    clock = SystemClock()
    guard = PoisonGuard(settings.data_dir.absolute(), seat.folder, clock)
    guard.find(seat.ended)
    start = partial(
        start_spark,
        settings,
        NAME,
        seat.folder,
        settings.heap_mb,
        java=JAVA,
        has_tables=False,
        inherited_fds=(succession.lock.descriptor, seat.lock.descriptor),
    )

    def work(engine: Engine) -> int:
        if settings.master.startswith("local["):
            ahead = partial(_begin_with_rules, engine.spark, settings)
            threading.Thread(target=ahead, name="rules-ahead", daemon=True).start()
        return _Router(engine, settings, succession, seat, come_first).run()

    return run_engine(settings, start, guard, heart, stop, clock, work)


def _do_nothing() -> None:
    """Come first: it does already."""


class _Router:
    """The router while Spark runs.

    Args:
        engine: Spark.
        settings: Settings of the process.
        succession: Says whether this is the router, or is beside it.
        seat: Its folder.
        come_first: Has this process give way to others no more.
    """

    def __init__(
        self,
        engine: Engine,
        settings: RouterSettings,
        succession: Succession,
        seat: Seat,
        come_first: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._succession = succession
        self._seat = seat
        self._come_first = come_first
        self._flows_since: float | None = None
        self._is_routing = False
        self._metrics: MetricsServer | None = None
        self._partitions = engine.await_log(LOG_TOPICS)
        servers, clock = settings.log.servers, engine.clock
        self._log = LogAdmin(servers)
        watch = GrowthWatch(servers)
        self._growth = LogGrowth(watch)
        self._rules_log = KafkaRuleLog(
            servers, self._sources, is_controllers=True, signatures=Signatures.of(settings)
        )
        self._cut = Cut(watch, self._log.ends, self._rules_log.append, clock)
        self._positions = {
            name: self._positions_of(name, log_topics) for name, log_topics in QUERIES.items()
        }
        self._unread = Unread(self._log.begins, self._rules_log.append, clock)
        self._controller = RuleController(
            self._rules_log,
            Programs(engine.spark),
            settings,
            clock,
            partial(settled, checkpoint(settings.data_dir, queries.RULES)),
            partial(is_ended, settings.data_dir),
            TakenOutputs(self._log.ends, checkpoint(settings.data_dir, queries.OUTPUTS)),
        )
        self._flow = Flow(self._mark)
        self._counted_before: Flow | None = None
        self._mode = self._rules_mode = router_mode(settings, self._growth.used)
        self._queries = QuerySupervisor(
            clock,
            (
                QueryJob(queries.ROUTER, self._start_router, ROUTER_POOL, mode=lambda: self._mode),
                QueryJob(
                    queries.RULES,
                    self._start_rules,
                    RULES_POOL,
                    when=lambda: self._controller.first is not None,
                    mode=lambda: self._rules_mode,
                ),
            ),
            partial(use_pool, engine.spark),
        )

    def _positions_of(self, name: str, log_topics: tuple[str, ...]) -> Positions:
        folder = checkpoint(self._settings.data_dir, name)
        return Positions(folder, log_topics, self._log.begins, self._log.ends, self._engine.clock)

    def run(self) -> int:
        """Route until a signal to stop; return the exit code."""
        engine = self._engine
        if self._succession.is_router:
            pass_over_lost_end(
                checkpoints(self._settings.data_dir),
                queries.OF_THE_ROUTER,
                self._rules_log.append,
                engine.clock,
            )
        else:
            count_nothing(engine.spark)
            self._look_on()
        engine.stop.starting = False
        self._queries.check()
        self._measured = engine.figures(
            lambda: self._queries.watched(checkpoints(self._settings.data_dir))
        )
        if self._succession.is_router:
            self._take_over()
        code = engine.watch(self._queries, self._measured, self._look)
        if code == 0:
            self._queries.stop()
            if self._succession.is_router:
                self._note()
        if self._metrics is not None:
            self._metrics.close()
        return code

    # Beside another router

    def _look_on(self) -> None:
        """Find out which rules the router has in force, before the query of rules is started."""
        while True:
            with suppress(LogError):
                ends = {topic: tuple(self._log.ends(topic).values()) for topic in rules.SOURCES}
                if self._controller.look_on(ends):
                    return

    def _mark(self) -> Mapping[str, tuple[int, ...]]:
        """Append the barrier of a change that has long been decided: no reader waits at it."""
        return self._rules_log.append_barriers(self._controller.begun or 0)

    def _flows(self) -> bool:
        return self._are_past(self._flow, [name for name in QUERIES if self._runs(name)])

    def _are_past(self, flow: Flow, running: list[str]) -> bool:
        """Return whether queries have come past the marks of a flow."""
        if not all(map(self._queries.is_processing, running)):
            return False
        looked_at = read_positions(self._engine.spark)
        reached = {
            name: furthest(looked_at.get(name, {}), self._last_batch(name) or {})
            for name in running
        }
        return flow.is_there(reached, {name: self._read(name) for name in running})

    def _runs(self, name: str) -> bool:
        return name == queries.ROUTER or self._controller.first is not None

    def _take_over(self) -> None:
        """Take over from now on the work of the router alone."""
        engine = self._engine
        for positions in self._positions.values():
            positions.take_over()
        heart = engine.heart
        if heart.file is not None and heart.file != self._settings.heartbeat_file:
            heart.file.unlink(missing_ok=True)
            heart.file = self._settings.heartbeat_file
        engine.begin("rules", self._controller.run)
        engine.begin("unread", self._unread.run, self._query_positions)
        self._metrics = MetricsServer(self._settings.metrics, heart, self._add_figures)

    def _count(self) -> None:
        """Have rules counted once they are past all that the router before can have counted."""
        if self._counted_before is None:
            return
        running = [name for name in (queries.RULES,) if self._runs(name)]
        with suppress(JvmError):
            if self._are_past(self._counted_before, running):
                count_from_now(self._engine.spark)
                self._counted_before = None

    def _add_figures(self, families: Families) -> None:
        add_queries(families, self._measured, self._engine.clock)

    # About once a second

    def _look(self, trouble: str) -> Look:
        if not self._succession.is_router:
            if self._succession.try_take():
                _logger.info("this is the router now")
                self._come_first()
                self._take_over()
                self._counted_before = Flow(self._mark)
            else:
                return self._look_beside(trouble)
        self._count()
        engine, controller = self._engine, self._controller
        skipped = engine.guard.look(engine.spark)
        engine.guard.pause(skipped, controller.pause_version)
        data_dir = self._settings.data_dir
        for one in controller.runs or ():
            if not one.span.is_ended and (why := failure(data_dir, one.name)):
                controller.pause(one, why)
            if one.span.is_ended and (unread := left_unread(data_dir, one.name)):
                controller.note_unread((one.tenant, one.rule), unread)
        self._note()
        self._grow()
        self._is_routing = not trouble and (
            self._is_routing or self._queries.is_processing(queries.ROUTER)
        )
        mode = self._mode
        well = "routing" if mode.real_time else f"routing in micro-batches: {mode.reason}"
        detail = trouble or (well if self._is_routing else "starting the queries")
        detail += self._growth.told()
        if skipped:
            detail += f"; passes over {len(skipped)} messages that ended it: bin/mqlake poison list"
        figures = {"refused_activations": controller.refused}
        return Look(self._is_routing, detail, figures, waits=self._growth.is_under_way)

    def _look_beside(self, trouble: str) -> Look:
        self._engine.guard.look(self._engine.spark)
        flows = False
        with suppress(JvmError):
            flows = not trouble and self._flows()
        now = self._engine.clock.monotonic()
        if not flows:
            self._flows_since = None
            return Look(False, trouble or "is catching up with the router", {}, waits=True)
        self._flows_since = self._flows_since or now
        if now - self._flows_since < _WARM_SECONDS:
            return Look(False, "flows beside the router, and warms up", {}, waits=True)
        self._come_first()
        return Look(True, "flows beside the router", {}, waits=True)

    def _grow(self) -> None:
        """Have queries read new partitions once they may, and make the cut when it is due."""
        running = {name: partial(self._noted, name) for name in QUERIES if self._runs(name)}
        for name in self._growth.due(running):
            self._queries.restart(name)
        try:
            self._cut.look()
        except LogError as error:
            _logger.warning("growth waits", extra={"fields": {"reason": str(error)}})

    def _noted(self, query: str) -> Offsets:
        return self._positions[query].noted

    def _note(self) -> None:
        with suppress(JvmError):  # Java is just ending: the next look at it says so
            done = read_done(self._engine.spark)
            for name, positions in self._positions.items():
                positions.note(done.get(name, {}), self._last_batch(name))

    def _last_batch(self, query: str) -> Offsets | None:
        return last_batch(self._seat.checkpoint(query))

    def _query_positions(self) -> dict[str, Offsets]:
        return {
            name: found
            for name in QUERIES
            if self._runs(name)
            and (found := committed(checkpoint(self._settings.data_dir, name))) is not None
        }

    # The queries

    def _start_router(self) -> StreamingQuery:
        positions = self._positions[queries.ROUTER]
        done = positions.look()
        first = self._unread.look(queries.ROUTER, done) or done
        if first is not None:
            positions.begin(first)
        partitions = self._growth.begin(queries.ROUTER, first)
        self._mode = self._mode_of_router(partitions)
        return router.start(
            self._engine.spark,
            self._settings,
            self._seat.checkpoint(queries.ROUTER),
            first,
            partitions=partitions,
            shards=self._growth.shards,
            real_time=self._mode.real_time,
        )

    def _mode_of_router(self, partitions: int) -> QueryMode:
        settings = self._settings
        mode = router_mode(settings, partitions)
        if not mode.real_time and settings.trigger == "real-time":
            advice = slots_advice(settings, partitions)
            _logger.warning(
                "the router runs in micro-batches",
                extra={"fields": {"reason": mode.reason, "advice": advice}},
            )
        return mode

    def _start_rules(self) -> StreamingQuery:
        controller, positions = self._controller, self._positions[queries.RULES]
        begun = controller.begun
        assert begun is not None, "the query is started when the rules are known"
        # Nothing before the first version is wanted, so nothing of that is read, or missed.
        done = positions.look() or {}
        needed = later(with_added(controller.first or {}, done), done)
        first = self._unread.look(queries.RULES, needed) or needed
        positions.begin(first)
        self._growth.begin(queries.RULES, first)
        read = self._read(queries.RULES)
        self._rules_mode = rules_mode(
            self._settings,
            router_mode(self._settings, read[INBOUND]),
            read[INBOUND],
            sum(count for log_topic, count in read.items() if log_topic != INBOUND),
        )
        return rules.start(
            self._engine.spark,
            self._settings,
            self._seat.checkpoint(queries.RULES),
            first,
            begun,
            partitions=read,
            outputs=self._partitions[OUTPUTS],
            real_time=self._rules_mode.real_time,
        )

    def _read(self, query: str) -> dict[str, int]:
        """Return how many partitions of its log topics a query reads that has begun."""
        return self._of_partitions(QUERIES[query], self._growth.reads(query))

    def _sources(self) -> dict[str, int]:
        """Return how many partitions of the log topics that rules read there are to be read."""
        return self._of_partitions(rules.SOURCES, self._growth.used)

    def _of_partitions(self, log_topics: Iterable[str], of_messages: int) -> dict[str, int]:
        return {topic: (self._partitions | {INBOUND: of_messages})[topic] for topic in log_topics}


def _begin_with_rules(spark: SparkSession, settings: RouterSettings) -> None:
    """Let rules be compiled while the rest starts: hundreds of them take seconds."""
    # The log may not be there yet, or Spark is being stopped: then they are compiled later.
    with suppress(LogError, JvmError):
        if RULES in partition_counts(spark, client_config(settings), (RULES,)):
            follow_rules(spark, rules_client_config(settings))
