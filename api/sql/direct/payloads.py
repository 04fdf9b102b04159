"""Payloads as Spark shows the column `payload`, a VARIANT, as JSON."""

import json
import re
from decimal import Decimal
from typing import Any, Final

_DIGITS: Final = 38
"""Digits of a decimal of Spark; a number with more of them is a double."""
_DEEPEST: Final = 100
_ODD: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]")
"""Characters that Spark writes in another way."""
_LONGEST: Final = 1_000_000
"""Characters of a text that Spark reads as JSON at all; above that it is asked."""


class Unclear(Exception):  # noqa: N818 - it is no error: Spark answers
    """Spark may show it in another way."""


def as_variant(payload: bytes | None) -> str | None:
    """Return a payload as JSON; as a JSON string when it is none, None when it is no text.

    Raises:
        Unclear: It has something that Spark knows better.
    """
    if payload is None:
        return None
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    if len(text) > _LONGEST:
        raise Unclear
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_refused,
        )
    except json.JSONDecodeError as exc:
        if exc.msg == "Extra data":
            raise Unclear from None  # Spark reads the value before it
        return _text(text)
    except RecursionError:
        raise Unclear from None
    return _written(value, 0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unclear
    return found


def _integer(text: str) -> int:
    number = int(text) if len(text) < 20 else 2**63
    if not -(2**63) <= number < 2**63:
        raise Unclear
    return number


def _decimal(text: str) -> Decimal:
    if "e" in text.lower() or len(text) > _DIGITS:
        raise Unclear
    return Decimal(text)


def _refused(text: str) -> Any:
    raise Unclear


def _written(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        raise Unclear
    if isinstance(value, dict):
        if any(name > "\uffff" for name in map(max, filter(None, value))):
            raise Unclear  # Spark's order is that of UTF-16
        fields = (f"{_text(name)}:{_written(value[name], depth + 1)}" for name in sorted(value))
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(_written(one, depth + 1) for one in value)}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Decimal):
        return "0" if value == 0 else f"{value.normalize():f}"
    return json.dumps(value)


def _text(text: str) -> str:
    if _ODD.search(text):
        raise Unclear
    return json.dumps(text, ensure_ascii=False)
