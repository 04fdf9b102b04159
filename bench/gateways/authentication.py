"""Cost of logins and rights: connects a second with passwords, a PUBLISH with 1,000 rules.

Two gateways and a log of one broker, without the rest of the system: one without authentication,
and one with a file of users and a file of rights. They take turns, so that both see the same
machine.
"""

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psutil

from bench.load.connector import BenchLogins, Cycles, run_cycles
from bench.load.loader import Load, run_load
from bench.load.programs import LoadPrograms
from bench.results.figures import Figures, figure
from bench.systems.gateways import BenchFleet, BenchGateway, running_fleet
from mqlake.security.argon2_verifiers import make_argon2_verifier

OPEN: Final = "open"
ASKS: Final = "asks"
USERS: Final = 50
PASSWORD: Final = "of the bench"  # noqa: S105
RULES: Final = 1_000
CYCLES: Final = 6_000
IN_FLIGHT: Final = 50
"""Fewer than a gateway takes whose passwords are to be checked (`MAX_WAITING_CHECKS`)."""
PAIRS: Final = 5
LOAD_SECONDS: Final = 5.0


def measure_authentication(
    programs: LoadPrograms, note: Callable[[str], None], pairs: int = PAIRS
) -> list[Figures]:
    """Compare a gateway that asks and goes by rules with one that does not.

    Raises:
        OperationalError: A client was not let in, or messages were not acknowledged.
    """
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as name,
        running_fleet(Path(name)) as fleet,
    ):
        fleet.start(OPEN)
        fleet.start(ASKS, settings=write_settings(Path(name)))
        first = _connects(programs, fleet.gateway(ASKS), USERS)
        results = [
            {figure("logins, password not known yet (Argon2id)", "logins/s"): first.per_second}
        ]
        for pair in range(pairs):
            order = (OPEN, ASKS) if pair % 2 == 0 else (ASKS, OPEN)
            results.append(_pair(programs, fleet, order))
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg()[:2])
        note(f"{pairs} pairs; load of the machine {load}")
    return results


def write_settings(folder: Path) -> dict[str, str]:
    """Write a file of users and one of rights; return the settings of a gateway that name them."""
    with ThreadPoolExecutor() as threads:  # a verifier is work for each
        verifiers = list(threads.map(lambda _: make_argon2_verifier(PASSWORD), range(USERS)))
    users = folder / "users"
    lines = [f"user-{number}:{verifier}\n" for number, verifier in enumerate(verifiers)]
    users.write_text("".join(lines), encoding="utf-8")
    rules: list[dict[str, object]] = [
        {"effect": "allow", "actions": ["connect"], "client_ids": ["*"]},
        *(_rule(number) for number in range(RULES - 2)),
        {"effect": "allow", "actions": ["publish"], "topics": ["bench/#"]},
    ]
    rights = folder / "rights.toml"
    rights.write_text("".join(map(_table, rules)), encoding="utf-8")
    for path in (users, rights):
        path.chmod(0o600)
    return {
        "CREDENTIALS_FILE": str(users),
        "RIGHTS_FILE": str(rights),
        "ALLOW_ANONYMOUS": "true",
    }


def _rule(number: int) -> dict[str, object]:
    """Return one of many, of the kinds that operators write; none decides about the bench."""
    where = f"plant/{number % 40}/line/{number}"
    return {
        "effect": "deny" if number % 5 == 0 else "allow",
        "actions": ["publish", "subscribe", "receive"][: 1 + number % 3],
        "topics": [f"{where}/#", f"{where}/%c/+", f"+/{number}/commands"][: 1 + number % 3],
    }


def _table(rule: dict[str, object]) -> str:
    return "[[rules]]\n" + "".join(f"{key} = {json.dumps(one)}\n" for key, one in rule.items())


def _pair(programs: LoadPrograms, fleet: BenchFleet, order: tuple[str, str]) -> Figures:
    connects = {name: _connects(programs, fleet.gateway(name), CYCLES) for name in order}
    publishes = {name: _publishes(programs, fleet.gateway(name)) for name in order}
    with_rules, without = publishes[ASKS], publishes[OPEN]
    return {
        figure("connects, nobody asked", "connections/s"): connects[OPEN].per_second,
        figure("connects, password known", "connections/s"): connects[ASKS].per_second,
        figure("a PUBLISH, without rights, its processor", "us"): without,
        figure(f"a PUBLISH, {RULES:,} rules, its processor", "us"): with_rules,
        figure(f"a PUBLISH costs more with {RULES:,} rules", "%"): (
            100 * (with_rules / without - 1)
        ),
    }


def _connects(programs: LoadPrograms, gateway: BenchGateway, cycles: int) -> Cycles:
    login = BenchLogins(USERS, PASSWORD) if gateway.name == ASKS else None
    return run_cycles(
        programs.connector, [gateway.address], cycles=cycles, in_flight=IN_FLIGHT, login=login
    )


def _publishes(programs: LoadPrograms, gateway: BenchGateway) -> float:
    """Return the processor time that a gateway takes for a message, in microseconds.

    Of messages a second the loader, which has the other core, says as much as the gateway.
    """
    process = psutil.Process(gateway.pid)
    before = process.cpu_times()
    load = Load(
        publish_to=[gateway.address],
        publishers=20,
        window=200,
        seconds=LOAD_SECONDS,
        warmup_seconds=0.0,
    )
    result = run_load(programs.loader, load).completed("messages to be acknowledged")
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return used / result.acknowledged * 1e6
