"""Access to the gateways and the API: logins, rights and encryption."""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil

from launcher.doctor.contract import Finding, Patient, ok, warning
from mqlake.security.addresses import is_loopback


def look_at_access(patient: Patient) -> Iterator[Finding]:
    """Do clients of other machines need a login, and rights?"""
    entrances: list[str] = []
    if patient.running.entrances:
        listening = _listening()
        entrances = [one for one in patient.running.entrances if _is_reachable(one, listening)]
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
                f"{gateway.name}: other machines reach {reached}, and clients need no login",
                "set credentials_file and rights_file in conf/gateway.toml, and take "
                "allow_anonymous away; or listen on 127.0.0.1",
            )
        elif not access["has_rights"]:
            yield warning(
                "access",
                f"{gateway.name}: other machines reach {reached}, and all who log in may publish "
                "and read everything",
                "write rules into a file and apply it: bin/mqlake rights apply FILE "
                "(docs/rights.md)",
            )
        else:
            yield ok("access", f"{gateway.name} asks all who they are, and goes by rules")
    if closed:
        yield ok("access", f"other machines do not reach {closed} gateways")
    url = patient.running.api_url
    if not patient.running.api_certificate and not is_loopback(urlsplit(url).hostname or ""):
        yield warning(
            "access",
            f"the API: other machines reach {url}, passwords and keys go there unencrypted",
            "set certificate and key in conf/api.toml; or listen on 127.0.0.1",
        )


def _is_reachable(url: str, listening: Iterable[tuple[str, int]]) -> bool:
    """Tell whether a server listens at the port of a URL for other machines too.

    The URL of a proxy says only how this machine reaches it.
    """
    port = urlsplit(url).port
    return any(at == port and not ip_address(host).is_loopback for host, at in listening)


def _listening() -> list[tuple[str, int]]:
    """Return address and port of all who listen on this machine."""
    return [
        (one.laddr.ip, one.laddr.port)
        for one in psutil.net_connections(kind="tcp")
        if one.laddr and one.status == psutil.CONN_LISTEN
    ]
