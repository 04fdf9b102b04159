"""Text."""

import re
from collections.abc import Sequence
from typing import Final

from rules.language.functions.function import (
    CallContext,
    Function,
    Unusable,
    bounded,
    literal_choice,
    literal_integer,
    literal_text,
    texts,
)
from rules.language.values import (
    Value,
    ValueKind,
    as_array,
    as_finite,
    as_int,
    as_integer,
    as_text,
    boolean,
    integer,
    text,
)
from rules.sql.patterns import InvalidPattern, Regex, any_of, exactly
from rules.sql.quoting import quoted

_BLANKS: Final = quoted(" \t\n\r\v\f")
_NO_TEXTS: Final = "CAST(array() AS ARRAY<VARIANT>)"
_MAX_REPLACEMENT: Final = 1_024
_REPLACED_CHARACTERS: Final = 67_108_864
"""The longest text that replacing may make."""


def _simple(template: str, minimum: int, maximum: int | None = None) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        return text(template.format(*map(as_text, arguments)))

    return Function(minimum, maximum or minimum, emit)


def _trim(where: str) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        characters = as_text(arguments[1]) if len(arguments) > 1 else _BLANKS
        return text(f"trim({where} {characters} FROM {as_text(arguments[0])})")

    return Function(1, 2, emit)


def _substr(arguments: Sequence[Value], _context: CallContext) -> Value:
    """From 0, as EMQX counts."""
    start = as_int(arguments[1])
    length = f", {as_int(arguments[2])}" if len(arguments) > 2 else ""
    taken = f"substring({as_text(arguments[0])}, try_add({start}, 1){length})"
    return text(taken if _is_small(arguments[1]) else f"IF({start} >= 0, {taken}, NULL)")


def _substring(arguments: Sequence[Value], _context: CallContext) -> Value:
    """From 1, as SQL counts."""
    length = f", {as_int(arguments[2])}" if len(arguments) > 2 else ""
    return text(f"substring({as_text(arguments[0])}, {as_int(arguments[1])}{length})")


def _is_small(value: Value) -> bool:
    return isinstance(value.literal, int) and value.literal >= 0


def _split(arguments: Sequence[Value], _context: CallContext) -> Value:
    whole = as_text(arguments[0])
    separator = literal_text(arguments, 1, "the separator")
    if not separator:
        raise Unusable("the separator is empty", 1)
    choices = ("all", "notrim", "leading", "leading_notrim", "trailing", "trailing_notrim")
    option = literal_choice(arguments, 2, choices)
    if option.startswith("leading"):
        parts = f"split({whole}, {exactly(separator)}, 2)"
    elif option.startswith("trailing"):
        last = f"substring_index({whole}, {quoted(separator)}, -1)"
        before = f"left({whole}, length({whole}) - length({last}) - {len(separator)})"
        found = f"instr({whole}, {quoted(separator)}) > 0"
        parts = f"IF({found}, array({before}, {last}), split({whole}, {exactly(separator)}, 1))"
    else:
        parts = f"split({whole}, {exactly(separator)}, -1)"
    return texts(parts if option.endswith("notrim") else f"array_remove({parts}, '')")


def _tokens(arguments: Sequence[Value], _context: CallContext) -> Value:
    separators = literal_text(arguments, 1, "the separators")
    if len(arguments) > 2:
        literal_choice(arguments, 2, ("nocrlf",))
        separators += "\r\n"
    if not separators:
        raise Unusable("there are no separators", 1)
    return texts(f"array_remove(split({as_text(arguments[0])}, {any_of(separators)}, -1), '')")


def _concat(arguments: Sequence[Value], _context: CallContext) -> Value:
    if len(arguments) == 1 and arguments[0].kind in (ValueKind.ARRAY, ValueKind.JSON):
        return text(f"array_join({_shown(arguments[0])}, '')")
    return text(f"concat({', '.join(map(as_text, arguments))})")


def _concat_ws(arguments: Sequence[Value], _context: CallContext) -> Value:
    return text(f"concat_ws({', '.join(map(as_text, arguments))})")


def _join_to_string(arguments: Sequence[Value], _context: CallContext) -> Value:
    separator = as_text(arguments[0]) if len(arguments) == 2 else "', '"
    return text(f"array_join({_shown(arguments[-1])}, {separator})")


def _shown(value: Value) -> str:
    """ARRAY<STRING>: the elements as text, null as `null`."""
    element = "coalesce(try_variant_get(e, '\\u0024', 'string'), 'null')"
    return f"transform({as_array(value)}, e -> {element})"


def _pad(arguments: Sequence[Value], context: CallContext) -> Value:
    whole = as_text(arguments[0])
    length = _length(arguments, context)
    where = literal_choice(arguments, 2, ("trailing", "leading", "both"))
    filler = literal_text(arguments, 3, "the character to pad with") if len(arguments) > 3 else " "
    if len(filler) != 1:
        raise Unusable("expected one character to pad with", 3)
    if where == "both":
        # The odd one goes behind, as in EMQX.
        half = f"(length({whole}) + greatest({length} - length({whole}), 0) div 2)"
        left = f"lpad({whole}, CAST({half} AS INT), {quoted(filler)})"
        return text(f"rpad({left}, greatest({length}, length({whole})), {quoted(filler)})")
    name = "rpad" if where == "trailing" else "lpad"
    return text(f"{name}({whole}, greatest({length}, length({whole})), {quoted(filler)})")


def _fixed_pad(name: str) -> Function:
    def emit(arguments: Sequence[Value], context: CallContext) -> Value:
        filler = as_text(arguments[2]) if len(arguments) > 2 else "' '"
        return text(f"{name}({as_text(arguments[0])}, {_length(arguments, context)}, {filler})")

    return Function(2, 3, emit)


def _length(arguments: Sequence[Value], context: CallContext) -> int:
    return literal_integer(arguments, 1, "the length", 0, context.limits.text_characters)


def _repeat(arguments: Sequence[Value], context: CallContext) -> Value:
    limit = context.limits.text_characters
    times = literal_integer(arguments, 1, "how often", 0, limit)
    whole = as_text(arguments[0])
    made = f"repeat({whole}, {times})"
    return text(bounded(f"length({whole}) * {times}L", limit, made, "the text repeat makes"))


def _replace(arguments: Sequence[Value], _context: CallContext) -> Value:
    whole, old, new = map(as_text, arguments[:3])
    where = literal_choice(arguments, 3, ("all", "leading", "trailing"))
    if where == "leading":
        place = f"instr({whole}, {old})"
        made = f"overlay({whole} PLACING {new} FROM {place} FOR length({old}))"
        return text(f"IF({place} > 0, {made}, {whole})")
    if where == "trailing":
        last = f"substring_index({whole}, {old}, -1)"
        before = f"left({whole}, length({whole}) - length({last}) - length({old}))"
        return text(f"IF(instr({whole}, {old}) > 0, concat({before}, {new}, {last}), {whole})")
    made = f"replace({whole}, {old}, {new})"
    size = f"CAST(length({whole}) AS BIGINT) * length({new})"
    return text(bounded(size, _REPLACED_CHARACTERS, made, "the text replace could make"))


def _rm_prefix(arguments: Sequence[Value], _context: CallContext) -> Value:
    whole, prefix = map(as_text, arguments)
    rest = f"substring({whole}, length({prefix}) + 1)"
    return text(f"IF(startswith({whole}, {prefix}), {rest}, {whole})")


def _find(arguments: Sequence[Value], _context: CallContext) -> Value:
    whole, part = map(as_text, arguments[:2])
    if literal_choice(arguments, 2, ("leading", "trailing")) == "leading":
        found = f"substring({whole}, instr({whole}, {part}))"
    else:
        found = f"concat({part}, substring_index({whole}, {part}, -1))"
    return text(f"IF(instr({whole}, {part}) > 0, {found}, '')")


def regex_of(arguments: Sequence[Value], context: CallContext) -> tuple[str, Regex]:
    """Return the text, checked for its length, and the regular expression to use on it."""
    pattern = literal_text(arguments, 1, "a regular expression")
    try:
        regex = Regex(pattern, context.limits.regular_expression_characters)
    except InvalidPattern as exc:
        raise Unusable(str(exc), 1) from exc
    whole = as_text(arguments[0])
    what = "the text for the regular expression"
    return bounded(f"length({whole})", regex.text_characters, whole, what), regex


def _regex_match(arguments: Sequence[Value], context: CallContext) -> Value:
    whole, regex = regex_of(arguments, context)
    return boolean(f"({whole} RLIKE {regex.java})")


def _regex_replace(arguments: Sequence[Value], context: CallContext) -> Value:
    whole, regex = regex_of(arguments, context)
    replacement = literal_text(arguments, 2, "the replacement")
    if len(replacement) > _MAX_REPLACEMENT:
        raise Unusable(f"the replacement has more than {_MAX_REPLACEMENT} characters", 2)
    made = f"regexp_replace({whole}, {regex.java}, {quoted(_replacement(replacement, regex))})"
    if len(replacement) > 1:
        size = f"(length({as_text(arguments[0])}) + 1L) * {len(replacement)}"
        made = bounded(size, _REPLACED_CHARACTERS, made, "the text regex_replace could make")
    return text(made)


def _replacement(written: str, regex: Regex) -> str:
    r"""Return a replacement as Java writes it: `\1` is a group, `&` the whole match."""
    made = []
    for part in re.findall(r"\\[0-9]|\\&|&|[^&\\]+|\\", written):
        if part == "&":
            made.append("$0")
        elif len(part) == 2 and part[0] == "\\" and part[1].isdigit():
            if int(part[1]) > regex.groups:
                raise Unusable(f"the regular expression has no group {part[1]}", 2)
            made.append(f"${part[1]}")
        else:
            made.append(
                re.sub(r"([\\$])", r"\\\1", part.removeprefix("\\") if "&" in part else part)
            )
    return "".join(made)


def _regex_extract(arguments: Sequence[Value], context: CallContext) -> Value:
    whole, regex = regex_of(arguments, context)
    groups = ", ".join(
        f"CAST(regexp_extract({whole}, {regex.java}, {group}) AS VARIANT)"
        for group in range(1, regex.groups + 1)
    )
    if not groups:
        return Value(ValueKind.ARRAY, _NO_TEXTS)
    return Value(ValueKind.ARRAY, f"IF({whole} RLIKE {regex.java}, array({groups}), {_NO_TEXTS})")


def _regexp_extract(arguments: Sequence[Value], context: CallContext) -> Value:
    whole, regex = regex_of(arguments, context)
    group = 1 if regex.groups else 0
    if len(arguments) > 2:
        group = literal_integer(arguments, 2, "the group", 0, regex.groups)
    return text(f"regexp_extract({whole}, {regex.java}, {group})")


def _sprintf(arguments: Sequence[Value], _context: CallContext) -> Value:
    """Erlang's io_lib:format, as far as text and numbers go."""
    template = literal_text(arguments, 0, "the format")
    given = list(arguments[1:])
    parts: list[str] = []
    for part in re.findall(r"~[0-9.]*[a-zA-Z~]|[^~]+|~", template):
        if not part.startswith("~") or part == "~":
            parts.append(quoted(part))
        elif part == "~n":
            parts.append(quoted("\n"))
        elif part == "~~":
            parts.append(quoted("~"))
        elif not given:
            raise Unusable("the format asks for more values than there are")
        else:
            parts.append(_formatted(part, given.pop(0)))
    if given:
        raise Unusable("there are more values than the format asks for")
    return text(f"concat({', '.join(parts)})" if parts else "''")


def _formatted(directive: str, value: Value) -> str:
    kind = directive[-1]
    if kind in "spw" and len(directive) == 2:
        return as_text(value)
    if kind in "bB" and len(directive) == 2:
        return f"CAST({as_integer(value)} AS STRING)"
    digits = re.fullmatch(r"~(?:\.([0-9]))?f", directive)
    if digits:
        number = as_finite(value)
        shown = f"format_string('%.{digits[1] or 6}f', {number})"
        return f"IF({number} IS NULL, NULL, {shown})"
    raise Unusable(f"the format's {directive} is not supported; ~s, ~p, ~w, ~b, ~f, ~.2f, ~n are")


def _test(template: str) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        return boolean(template.format(*map(as_text, arguments)))

    return Function(2, 2, emit)


def _number_of(template: str, count: int) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        return integer(template.format(*map(as_text, arguments)))

    return Function(count, count, emit)


def _part(name: str) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        return text(f"{name}({as_text(arguments[0])}, {as_int(arguments[1])})")

    return Function(2, 2, emit)


FUNCTIONS: Final = {
    "lower": _simple("lower({})", 1),
    "upper": _simple("upper({})", 1),
    "lcase": _simple("lower({})", 1),
    "ucase": _simple("upper({})", 1),
    "reverse": _simple("reverse({})", 1),
    "trim": _trim("BOTH"),
    "ltrim": _trim("LEADING"),
    "rtrim": _trim("TRAILING"),
    "rm_prefix": Function(2, 2, _rm_prefix),
    "strlen": _number_of("length({})", 1),
    "char_length": _number_of("length({})", 1),
    "substr": Function(2, 3, _substr),
    "substring": Function(2, 3, _substring),
    "left": _part("left"),
    "right": _part("right"),
    "split": Function(2, 3, _split),
    "tokens": Function(2, 3, _tokens),
    "concat": Function(1, 100, _concat),
    "concat_ws": Function(2, 100, _concat_ws),
    "join_to_string": Function(1, 2, _join_to_string),
    "pad": Function(2, 4, _pad),
    "lpad": _fixed_pad("lpad"),
    "rpad": _fixed_pad("rpad"),
    "repeat": Function(2, 2, _repeat),
    "replace": Function(3, 4, _replace),
    "regex_match": Function(2, 2, _regex_match),
    "regexp_like": Function(2, 2, _regex_match),
    "regexp_matches": Function(2, 2, _regex_match),
    "regex_replace": Function(3, 3, _regex_replace),
    "regex_extract": Function(2, 2, _regex_extract),
    "regexp_extract": Function(2, 3, _regexp_extract),
    "ascii": _number_of("ascii({})", 1),
    "find": Function(2, 3, _find),
    "instr": _number_of("instr({}, {})", 2),
    "indexof": _number_of("(instr({}, {}) - 1)", 2),
    "startswith": _test("startswith({}, {})"),
    "endswith": _test("endswith({}, {})"),
    "sprintf": Function(1, 100, _sprintf),
}
