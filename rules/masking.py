"""Actions as they are shown to callers who may look at rules and not change them.

A secret belongs into a template by its name; it may stand in a request of `http` all the same: in a
header, the body, or the path of the address. So of these texts only those made of placeholders are
shown, and those that name a secret, whose author knew how to hide it.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from rules.model import ActionSpec

MASK: Final = "***"

_SECRET: Final = re.compile(r"\$\{\$secret\.[a-z0-9]")
_PLACEHOLDER: Final = re.compile(r"\$\{[^{}]*\}")
_URL: Final = re.compile(r"^(https?://[^/?#]*)([\s\S]*)$")
"""Server and rest."""


def mask_actions(actions: Sequence[ActionSpec]) -> tuple[ActionSpec, ...]:
    """Return actions without texts that may be secret."""
    return tuple(
        one.model_copy(
            update={"args": _mask_arguments(one), "fallback": mask_actions(one.fallback)}
        )
        for one in actions
    )


def _mask_arguments(action: ActionSpec) -> dict[str, Any]:
    if action.function != "http":
        return action.args
    masked = dict(action.args)
    if "url" in masked:
        masked["url"] = _mask_url(masked["url"])
    if "body" in masked:
        masked["body"] = _mask_text(masked["body"])
    if "headers" in masked:
        headers = masked["headers"]
        masked["headers"] = {name: _mask_text(text) for name, text in headers.items()}
    return masked


def _mask_text(text: str) -> str:
    if _SECRET.search(text) or not _PLACEHOLDER.sub("", text):
        return text
    return MASK


def _mask_url(url: str) -> str:
    found = _URL.match(url)
    if found is None:
        return MASK
    server, rest = found.groups()
    return url if rest in ("", "/") else f"{server}/{_mask_text(rest[1:])}"
