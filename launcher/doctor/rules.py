"""Do rules run that are meant to?"""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

from launcher.doctor.contract import Finding, Patient, ok, warning
from launcher.doctor.traffic import ask

MOST_TOLD: Final = 20
"""Rules named for each tenant and state; the list of the API has all."""
_ADVICE: Final = {
    "failed": "change it, or let it go on with rights of your own: bin/mqlake rules resume {id} "
    "--from pause",
    "paused": "see its dead letters, then: bin/mqlake rules resume {id} --from pause",
}


def look_at_rules(patient: Patient) -> Iterator[Finding]:
    """Is any rule paused, or unable to run, for want of its maker's rights say?"""
    try:
        token = patient.data.api_token.read_text(encoding="ascii").strip()
        tenants = _all(patient, "/tenants", token)
    except (OSError, ValueError, KeyError):
        return  # another check says that the API does not answer
    stopped = 0
    with_rules = [one for one in tenants if one["rules"]]
    for tenant in with_rules:
        for state, advice in _ADVICE.items():
            asked = {"tenant": tenant["name"], "state": state, "limit": MOST_TOLD}
            for rule in ask(patient, f"/rules?{urlencode(asked)}", token)["items"]:
                stopped += 1
                name = f"rule {rule['id']} of the tenant {tenant['name']}"
                yield warning("rules", f"{name} is {state}: {rule['error']}", advice.format(**rule))
    if with_rules and not stopped:
        yield ok("rules", f"none of {sum(one['rules'] for one in with_rules)} is paused or failed")


def _all(patient: Patient, path: str, token: str) -> list[dict[str, Any]]:
    """Return all items of a list."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = ask(patient, f"{path}?limit=1000{cursor}", token)
        found += answer["items"]
        if not answer["next_cursor"]:
            return found
        cursor = f"&{urlencode({'cursor': answer['next_cursor']})}"
