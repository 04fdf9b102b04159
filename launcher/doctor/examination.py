"""All checks, in the order in which one explains the next."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from launcher.doctor import access, clocks, machine, processes, rules, traffic
from launcher.doctor.contract import Check, Finding, Level, Patient, error
from launcher.paths import DataDirectory
from mqlake.errors import OperationalError
from mqlake.processes.status import load_state

_logger = logging.getLogger(__name__)

CHECKS: Final = (
    Check("system", processes.look_at_system, needs_running=False),
    Check("processes", processes.look_at_processes),
    Check("heartbeats", processes.look_at_heartbeats),
    Check("load", processes.look_at_load),
    Check("disk", machine.look_at_disk, needs_running=False),
    Check("log room", machine.look_at_log_room),
    Check("files", machine.look_at_files, needs_running=False),
    Check("java", processes.look_at_java, needs_running=False),
    Check("ports", machine.look_at_ports),
    Check("log", traffic.look_at_log),
    Check("durability", traffic.look_at_durability),
    Check("queries", processes.look_at_queries),
    Check("query", processes.look_at_query_application),
    Check("poison", processes.look_at_poison, needs_running=False),
    Check("tables", machine.look_at_tables, needs_running=False),
    Check("checkpoints", machine.look_at_checkpoints, needs_running=False),
    Check("api", traffic.look_at_api),
    Check("gateways", traffic.look_at_gateways),
    Check("gone gateways", traffic.look_at_gone_gateways),
    Check("rules", rules.look_at_rules),
    Check("access", access.look_at_access),
    Check("balancer", traffic.look_at_balancer),
    Check("federation", traffic.look_at_federation),
    Check("clock", clocks.look_at_clocks),
    Check("metrics", traffic.look_at_metrics),
)


def new_patient(
    data_dir: Path, username: str | None = None, password: str | None = None
) -> tuple[Patient, list[Finding]]:
    """Return the system on a data directory, and faults of its state file."""
    data = DataDirectory(data_dir.absolute())
    try:
        state = load_state(data.root)
    except OperationalError as exc:
        return Patient(data, None, username, password), [error("system", str(exc), "see there")]
    if state is not None and not state.is_alive:
        state = None
    return Patient(data, state, username, password), []


def examine(patient: Patient) -> Iterator[Finding]:
    """Do all checks that can be done, one after the other."""
    for check in CHECKS:
        if check.needs_running and patient.state is None:
            continue
        try:
            yield from check.look(patient)
        except Exception as exc:
            _logger.debug("check failed", exc_info=True)
            yield error(check.name, f"the check itself failed: {exc!r}", "tell its authors")


def worst(findings: list[Finding]) -> Level:
    """Return the worst level of the findings."""
    levels = {finding.level for finding in findings}
    return next((one for one in (Level.ERROR, Level.WARNING) if one in levels), Level.OK)
