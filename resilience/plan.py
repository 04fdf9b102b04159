"""Plan of a run, as data: clients with steps, faults with their moments.

A scenario's TOML becomes a plan, the random workload makes one, the runner executes it, against
the double as against a broker.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from resilience.drivers.frames import WillOptions
from resilience.errors import ScenarioError
from resilience.topics import below

STEPS: Final[dict[str, frozenset[str]]] = {
    "connect": frozenset({"node", "clean", "expiry", "will"}),
    "disconnect": frozenset(),
    "abort": frozenset(),
    "subscribe": frozenset({"filter", "qos", "no_local", "retain_handling"}),
    "unsubscribe": frozenset({"filter"}),
    "publish": frozenset(
        {"topic", "topics", "qos", "count", "window", "rate", "retain", "empty", "expiry", "size"}
    ),
    "wait": frozenset({"seconds", "client", "count", "subscribed", "done"}),
    "rights": frozenset({"client_id", "action", "filter", "allowed"}),
    "tenant": frozenset({"tenant", "is_open"}),
}
"""Steps of a client, and the settings of each."""

COUNTS: Final = ("count",)

STORE: Final = "@store"
"""In place of a part: the first one of a target that says where its files are."""

QUICK_QUIET_SECONDS: Final = 1.0
"""A quick run takes all for delivered after so long a quiet, unless something is missing."""


@dataclass(frozen=True, slots=True)
class Step:
    do: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client identity.

    Attributes:
        node: The part it connects to, `@1` for a target's first node; "*" takes another one for
            each connection.
        driver: "raw" or "paho"; empty for the one of the run.
        reconnect: Whether it comes back by itself when a connection breaks.
        hold_seconds: How long it keeps a QoS 1 message before it acknowledges it.
        away_seconds: How long it stays away after a connection has broken.
    """

    name: str
    steps: tuple[Step, ...]
    client_id: str = ""
    node: str = ""
    version: int = 4
    clean: bool = True
    expiry: int = 0
    keep_alive: int = 0
    receive_maximum: int = 65_535
    tenant: str = ""
    will: WillOptions | None = None
    driver: str = ""
    reconnect: bool = True
    hold_seconds: float = 0.0
    away_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault at its moment: seconds after the start, or a client's acknowledged message.

    `quick` are the arguments that a quick run has instead.
    """

    fault: str
    part: str
    at: float = 0.0
    client: str = ""
    count: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        moment = f"{self.client}#{self.count}" if self.client else f"{self.at:.2f} s"
        args = "".join(f" {key}={value}" for key, value in sorted(self.args.items()))
        return f"{self.fault} {self.part}{args} at {moment}"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run.

    Attributes:
        quiet_seconds: So long nothing may come until the run takes all for delivered.
        drain_seconds: It waits no longer than that for the quiet.
        late_seconds: When something is missing once it is quiet, the run waits for so much longer.
        limit_seconds: The clients' steps may take so long.
        unbroken: No connection may break: the clients are not to notice the faults.
        may_refuse: Clients whose messages may be refused.
    """

    clients: tuple[ClientPlan, ...]
    strikes: tuple[Strike, ...] = ()
    quiet_seconds: float = 2.0
    drain_seconds: float = 60.0
    late_seconds: float = 0.0
    limit_seconds: float = 600.0
    unbroken: bool = False
    may_refuse: tuple[str, ...] = ()

    def scaled(self, factor: float) -> "RunPlan":
        """Return the plan with all counts of messages multiplied, to at least 1."""
        if factor == 1:
            return self
        clients = tuple(
            replace(
                client,
                steps=tuple(Step(step.do, _scale(step.args, factor)) for step in client.steps),
            )
            for client in self.clients
        )
        strikes = tuple(
            replace(strike, count=max(1, round(strike.count * factor))) if strike.count else strike
            for strike in self.strikes
        )
        return replace(self, clients=clients, strikes=strikes)

    @property
    def _has_qos_0(self) -> bool:
        steps = (step for client in self.clients for step in client.steps)
        return any(step.do == "publish" and not step.args.get("qos", 0) for step in steps)

    def hurried(self, factor: float) -> "RunPlan":
        """Return the plan of a quick run: fewer messages, shorter faults, a shorter quiet.

        Messages missing when it is quiet are waited for as long as in any run. Of QoS 0 it is
        unknown which are missing: the quiet is as long as ever then.
        """
        scaled = self.scaled(factor)
        quiet = self.quiet_seconds
        if not self._has_qos_0:
            quiet = min(quiet, QUICK_QUIET_SECONDS)
        return replace(
            scaled,
            strikes=tuple(
                replace(strike, args={**strike.args, **strike.quick}) for strike in scaled.strikes
            ),
            quiet_seconds=quiet,
            late_seconds=self.late_seconds + self.quiet_seconds - quiet,
        )


def apart(plan: RunPlan, prefix: str) -> RunPlan:
    """Return the plan with client identifiers and topics of its own.

    A run that follows others on one system finds nothing that these have left.
    """
    return replace(
        plan,
        clients=tuple(
            replace(
                client,
                client_id=f"{prefix}-{client.client_id or client.name}",
                will=client.will and replace(client.will, topic=below(prefix, client.will.topic)),
                steps=tuple(replace(step, args=_apart(step.args, prefix)) for step in client.steps),
            )
            for client in plan.clients
        ),
    )


def _apart(args: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    changed = dict(args)
    for key in ("topic", "filter"):
        if key in changed:
            changed[key] = below(prefix, changed[key])
    if "client_id" in changed:
        changed["client_id"] = f"{prefix}-{changed['client_id']}"
    return changed


def fit(plan: RunPlan, nodes: Sequence[str], store: str = "") -> RunPlan:
    """Put names of nodes for `@1`, `@2` and so on; a target with fewer nodes has them again.

    `store` is the name of the part that `@store` stands for.
    """

    def name(place: str) -> str:
        if place == STORE:
            return store
        return nodes[(int(place[1:]) - 1) % len(nodes)] if place.startswith("@") else place

    return replace(
        plan,
        clients=tuple(replace(client, node=name(client.node)) for client in plan.clients),
        strikes=tuple(replace(strike, part=name(strike.part)) for strike in plan.strikes),
    )


def _scale(args: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {
        key: max(1, round(value * factor)) if key in COUNTS and value > 1 else value
        for key, value in args.items()
    }


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """Faults by chance: names, how many, within which time."""

    names: tuple[str, ...]
    count: int
    within_seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A plan with its story.

    Attributes:
        generate: A workload of `campaign.WORKLOADS`; the plan then has no clients.
        workload_seed: Draws that workload always by this seed; a shrunk schedule needs it.
        needs: Promises that a target must make, else the scenario does not apply to it.
        quick: The counts of messages are multiplied by that in a quick run (`RunPlan.hurried`).
        published: Figures of others, one mapping each: `broker`, the figures, `delay_ms` of
            a delivery.
        header: Further fields for the headers of the histories.
    """

    name: str
    title: str
    plan: RunPlan
    runs: int = 1
    quick: float = 0.1
    generate: str = ""
    workload_seed: int | None = None
    random_faults: RandomFaults | None = None
    needs: tuple[str, ...] = ()
    published: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    header: Mapping[str, Any] = field(default_factory=dict)


FOLDER: Final = Path(__file__).parent / "scenarios"


def names() -> list[str]:
    """Return the scenarios that come with the tool."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Scenario:
    """Read a scenario by its name, or by a path to a file of one's own.

    Raises:
        ScenarioError: There is none, or it says something that is not known.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")), path.stem)
    except FileNotFoundError:
        known = ", ".join(names())
        raise ScenarioError(f"no scenario {name!r}; there are {known}") from None
    except (tomllib.TOMLDecodeError, TypeError, ValueError) as exc:
        raise ScenarioError(f"{path}: {exc}") from exc


def parse(data: dict[str, Any], name: str) -> Scenario:
    """Make a scenario of a TOML document.

    Raises:
        ScenarioError: It says something that is not known.
    """
    about = dict(data.pop("scenario", {}))
    plan = dict(data.pop("plan", {}))
    clients = tuple(_client(dict(client)) for client in data.pop("client", ()))
    strikes = tuple(_strike(dict(fault)) for fault in data.pop("fault", ()))
    if "may_refuse" in plan:
        plan["may_refuse"] = tuple(plan["may_refuse"])
    random_faults = data.pop("random_faults", None)
    published = tuple(data.pop("published", ()))
    header = data.pop("header", {})
    if data:
        raise ScenarioError(f"{name}: {', '.join(sorted(data))} not known")
    if random_faults is not None:
        random_faults = RandomFaults(**{**random_faults, "names": tuple(random_faults["names"])})
    if "needs" in about:
        about["needs"] = tuple(about["needs"])
    return Scenario(
        name=name,
        plan=RunPlan(clients, strikes, **plan),
        random_faults=random_faults,
        published=published,
        header=header,
        **about,
    )


def _client(data: dict[str, Any]) -> ClientPlan:
    steps = tuple(_step(dict(step)) for step in data.pop("step", ()))
    will = data.pop("will", None)
    return ClientPlan(steps=steps, will=WillOptions(**will) if will else None, **data)


def _step(data: dict[str, Any]) -> Step:
    do = data.pop("do", "")
    if do not in STEPS:
        raise ScenarioError(f"no step {do!r}; there are {', '.join(STEPS)}")
    unknown = set(data) - STEPS[do]
    if unknown:
        raise ScenarioError(f"step {do} has no {', '.join(sorted(unknown))}")
    return Step(do, data)


def _strike(data: dict[str, Any]) -> Strike:
    known = {key: data.pop(key) for key in ("at", "client", "count", "quick") if key in data}
    return Strike(data.pop("name"), data.pop("part", ""), args=data, **known)
