"""Who may come to the gateways, and do what."""

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from mqlake.local.doctor.contract import Finding, Patient, ok, warning


def look_at_access(patient: Patient) -> Iterator[Finding]:
    """Are clients of other machines asked who they are, and what they may do?"""
    entrances = [url for url in patient.running.entrances if _is_reachable(url)]
    closed = 0
    for gateway in patient.running.gateways:
        access = patient.figures(gateway.name).get("access")
        if access is None:
            continue  # it has not said anything yet
        reached = ", ".join([*access["reachable"], *entrances])
        if not reached:
            closed += 1
        elif not access["asks_who"]:
            yield warning(
                "access",
                f"{gateway.name}: other machines reach {reached}, and nobody is asked who he is",
                "set credentials_file and rights_file in conf/gateway.toml, and take "
                "allow_anonymous away; or listen on 127.0.0.1",
            )
        elif not access["has_rights"]:
            yield warning(
                "access",
                f"{gateway.name}: other machines reach {reached}, and whoever logs in may publish "
                "and read everything, and take over any session",
                "write rules into a file, set rights_file in conf/gateway.toml (docs/rights.md)",
            )
        else:
            yield ok("access", f"{gateway.name} asks all who they are, and goes by rules")
    if closed:
        yield ok("access", f"other machines do not reach {closed} gateways")


def _is_reachable(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
