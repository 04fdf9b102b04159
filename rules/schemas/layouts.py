"""Layouts as text: how they stand in an expression."""

import json
import zlib
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

_HASH_CHARACTERS: Final = 32

SPARKPLUG_LAYOUT: Final[dict[str, Any]] = {"format": "sparkplug_b"}
"""Sparkplug B needs no more than its name: the decoder knows it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout that `mqlake_decode` decodes by.

    Attributes:
        text: JSON, packed, as base64: letters, digits and `+/=`.
        hash: Hash of the text; by it an expression names the layout.
    """

    text: str
    hash: str


def pack(layout: dict[str, Any], label: str) -> Layout:
    """Return a layout as text.

    Args:
        layout: Plain data.
        label: Its name in errors.
    """
    data = json.dumps({**layout, "label": label}, ensure_ascii=False, separators=(",", ":"))
    text = b64encode(zlib.compress(data.encode(), 9)).decode("ascii")
    return Layout(text, sha256(text.encode("ascii")).hexdigest()[:_HASH_CHARACTERS])
