"""How long a value may become that a function makes, in a query: a row for each that is allowed.

A length is in bytes, as a text or a variant has it; a number counts as its text, and a list, map
or struct as what is in it. What is here are upper bounds, coarse ones.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from api.sql.dialect import is_text

SHORT: Final = 32
"""Bytes of a number, a time, a truth, and of nothing."""
AROUND: Final = 2
"""Bytes around a value in a list, map or struct."""
LONGEST_MESSAGE: Final = 1_048_576
"""Bytes that a stored value has, where it is multiplied by another one."""
_LONG: Final = 1_024
"""Length of a number with 100 decimals, a hash, the digits of a number in base 2."""


@dataclass(frozen=True, slots=True)
class Length:
    """An upper bound for the length of a value.

    Attributes:
        made: Bytes, whatever is stored.
        stored: Times that the value of a stored column comes on top, by the column's name.
        bytes: The whole, if stored values are as long as the longest message.
    """

    made: float
    stored: Mapping[str, float]
    bytes: float

    @property
    def times(self) -> float:
        """Copies of the stored value of which there are most."""
        return max(self.stored.values(), default=0.0)

    def __add__(self, other: "Length") -> "Length":
        stored = dict(self.stored)
        for name, times in other.stored.items():
            stored[name] = stored.get(name, 0.0) + times
        return Length(self.made + other.made, stored, self.bytes + other.bytes)

    def __mul__(self, times: float) -> "Length":
        stored = {name: _product(one, times) for name, one in self.stored.items()}
        return Length(_product(self.made, times), stored, _product(self.bytes, times))

    def __or__(self, other: "Length") -> "Length":
        """Return a bound of either."""
        stored = dict(self.stored)
        for name, times in other.stored.items():
            stored[name] = max(stored.get(name, 0.0), times)
        return Length(max(self.made, other.made), stored, max(self.bytes, other.bytes))


def _product(one: float, times: float) -> float:
    return one * times if one and times else 0.0  # without an end, too


def made(count: float) -> Length:
    """Return the length of `count` bytes."""
    return Length(count, {}, count)


def stored(name: str, most: float = LONGEST_MESSAGE) -> Length:
    """Return the length of a stored value of at most `most` bytes."""
    return Length(0.0, {name: 1.0}, most)


NUMBER: Final = made(SHORT)
"""Length of a number, a time, a truth value, and of null."""


def sum_of(lengths: Iterable[Length]) -> Length:
    """Return the bound of values one behind the other, each with some bytes around it."""
    total = made(AROUND)
    for one in lengths:
        total += one + made(AROUND)
    return total


def joined(lengths: Iterable[Length]) -> Length:
    """Return the bound of texts, or lists, that become one."""
    total = made(AROUND)
    for one in lengths:
        total += one
    return total


def longest(lengths: Iterable[Length]) -> Length:
    """Return the bound of one of several values."""
    most = made(AROUND)
    for one in lengths:
        most |= one
    return most


def product(one: Length, other: Length) -> Length:
    """Return the bound of a value for each byte of another one."""
    return other * one.bytes if other.stored and not one.stored else one * other.bytes


def cut(whole: Length, characters: float) -> Length:
    """Return the bound of a number of characters of a text, each of four bytes at most."""
    part = made(4.0 * characters)
    return part if part.bytes < whole.bytes else whole


Arguments = Sequence[exp.Expr]
Growth = Callable[[Arguments, Sequence[Length]], Length]
"""From the arguments of a call, and their lengths, to that of its result."""


def short(_arguments: Arguments, _lengths: Sequence[Length]) -> Length:
    return NUMBER


def one_of(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return longest(lengths)


def all_of(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return sum_of(lengths)


def _joined(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return joined(lengths)


def _long_one(_arguments: Arguments, _lengths: Sequence[Length]) -> Length:
    return made(_LONG)


def _first(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return longest(lengths[:1])


def _times(factor: float) -> Growth:
    def grown(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
        return longest(lengths) * factor + made(AROUND)

    return grown


def _left(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return cut_by(lengths[0], arguments[-1]) if len(arguments) == 2 else longest(lengths)


def _substring(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return cut_by(lengths[0], arguments[2]) if len(arguments) == 3 else longest(lengths[:1])


def cut_by(whole: Length, characters: exp.Expr | None) -> Length:
    """Return the bound of the beginning of a text, if the query says how long that is."""
    is_number = isinstance(characters, exp.Literal) and not characters.is_string
    written = str(characters.this) if is_number and characters is not None else ""
    return cut(whole, float(written)) if re.fullmatch("[0-9]{1,9}", written) else whole


def _replace(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    if len(lengths) < 3:
        return longest(lengths)
    searched = len(_text(arguments[1]) or " ")
    return longest([lengths[0], product(lengths[0], lengths[2]) * (1.0 / searched)])


def _regexp_replace(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    # At each place of the text, and what a group has found as often as the replacement names one.
    written = len(_text(arguments[2]).encode()) if len(arguments) > 2 else 0
    return longest(lengths[:1]) * (1.0 + written) + made(written)


def _concat_ws(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    # A list is as many texts as it has bytes.
    pairs = zip(arguments[1:], lengths[1:], strict=True)
    texts = sum_of(made(1) if _is_scalar(one) else length for one, length in pairs)
    return joined([*lengths[1:], product(texts, lengths[0])]) if lengths else NUMBER


def _is_scalar(argument: exp.Expr) -> bool:
    """Tell whether an argument is one text and no list of them, for all that is known here."""
    if isinstance(argument, exp.Cast | exp.TryCast):
        return not argument.to.args.get("nested")
    return isinstance(argument, exp.Literal | exp.JSONExtract | exp.Concat | exp.DPipe)


def _array_join(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    listed = longest(lengths[:1])
    return sum_of([listed, *(product(listed, one) for one in lengths[1:])])


def _array_insert(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return sum_of(lengths) + made(10_000 * 8)  # MOST_POSITION of nothing


def _arrays_zip(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    # Each struct has the names of the columns, as JSON.
    names = sum(len(one.name.encode()) + 8 for one in arguments)
    return sum_of(lengths) + longest(lengths) * names


def _format_string(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    text = _text(arguments[0]) if arguments else ""
    most = longest(lengths[1:]) * 3.0 + made(1_000)  # in capitals, or filled up
    return most * text.count("%") + made(len(text.encode()) + SHORT)


def _formatted(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    # A letter of the format is the name of a zone at most; bytes may be shown as digits.
    return longest(lengths[:1]) * 3.0 + longest(lengths[1:]) * 32.0


def _date_format(_arguments: Arguments, lengths: Sequence[Length]) -> Length:
    return longest([NUMBER, *lengths[1:]]) * 32.0


def _from_json(arguments: Arguments, lengths: Sequence[Length]) -> Length:
    schema = _text(arguments[1]) if len(arguments) > 1 else ""
    fields = len(schema.encode()) + 8.0 * (1 + schema.count(":") + schema.count(","))
    if re.search("(?i)array|map", schema) or not schema:
        # An element that is written `{}` has all the fields, and is three characters.
        return longest(lengths[:1]) * max(1.0, fields / 3) + (lengths[1] if not schema else NUMBER)
    return longest(lengths[:1]) + made(fields)


def _text(argument: exp.Expr) -> str:
    return str(argument.this) if is_text(argument) else ""


@dataclass(frozen=True, slots=True)
class Lambda:
    """Result of a function that calls another one for each element.

    Attributes:
        lists: Number of its arguments that are lists or maps.
        makes: Whether what the function returns is in the result.
        keeps: Whether the elements are, too, or the keys.
    """

    lists: int = 1
    makes: bool = False
    keeps: bool = True


FOLD: Final = "fold"
"""Kind of `aggregate`: each step takes the result of the one before."""

_WORDS: Final[Sequence[tuple[Growth | Lambda | str, str]]] = (
    (
        short,
        """
        any approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or corr count count_if
        covar_pop covar_samp every grouping grouping_id kurtosis regr_avgx regr_avgy regr_count
        regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev
        stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance mean
        cume_dist dense_rank ntile percent_rank rank row_number
        equal_null isnan isnotnull isnull not
        abs acos acosh asin asinh atan atan2 atanh bit_count bround cbrt ceil ceiling cos
        cosh cot csc degrees div e exp expm1 factorial floor getbit hypot ln log log10 log1p
        log2 mod negative pi pmod positive pow power radians rand randn random rint round sec
        shiftleft shiftright sign signum sin sinh sqrt tan tanh try_add try_divide try_mod
        try_multiply try_subtract width_bucket uniform
        ascii bit_length char chr char_length character_length contains crc32 endswith find_in_set
        instr is_valid_utf8 len length levenshtein locate luhn_check octet_length position soundex
        startswith to_number try_to_number xxhash64 hash regexp regexp_count regexp_instr
        regexp_like rlike topic_matches
        add_months curdate current_date current_timestamp date date_add date_diff
        date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname
        dayofmonth dayofweek dayofyear extract from_utc_timestamp hour last_day localtimestamp
        make_date make_dt_interval make_interval make_timestamp make_ym_interval minute month
        monthname months_between next_day now quarter second timestamp convert_timezone
        timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff to_date
        to_timestamp to_unix_timestamp to_utc_timestamp trunc try_make_timestamp try_to_date
        try_to_timestamp unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday
        weekofyear window_time year range
        array_contains array_position array_size arrays_overlap cardinality
        map_contains_key size is_variant_null json_array_length
        bigint boolean decimal double float int smallint tinyint
        monotonically_increasing_id
        """,
    ),
    (_long_one, "bin conv md5 sha sha1 sha2 uuid current_timezone format_number"),
    (
        one_of,
        """
        any_value first first_value last last_value max max_by min min_by lag lead nth_value
        coalesce greatest if ifnull least nanvl nullif nullifzero nvl nvl2 zeroifnull
        btrim ltrim rtrim trim reverse split_part substring_index unbase64
        unhex to_binary try_to_binary regexp_extract regexp_extract_all regexp_substr split
        parse_url try_parse_url topic_level validate_utf8 try_validate_utf8
        array_compact array_distinct array_except array_intersect array_max array_min
        array_remove array_sort element_at flatten get map_entries map_keys map_values
        shuffle slice sort_array try_element_at str_to_map get_json_object url_decode
        try_url_decode variant_get try_variant_get
        json_object_keys json_tuple explode explode_outer posexplode posexplode_outer inline
        inline_outer variant_explode variant_explode_outer binary
        """,
    ),
    (
        all_of,
        """
        approx_percentile percentile_approx array array_append array_prepend
        array_union map map_concat map_from_arrays map_from_entries named_struct struct stack
        window session_window string
        """,
    ),
    (_joined, "concat overlay"),
    (_times(1.5), "lcase lower base64"),
    (_times(2.0), "hex quote"),
    (_times(3.0), "ucase upper initcap url_encode make_valid_utf8 decode"),
    (
        _times(4.0),
        """
        translate mask encode parse_json try_parse_json typeof schema_of_json schema_of_variant
        """,
    ),
    (_times(6.0), "to_json to_variant_object"),
    (_times(16.0), "sentences"),
    (_formatted, "to_char to_varchar"),
    (_date_format, "date_format from_unixtime"),
    (_left, "left right"),
    (_substring, "substr substring"),
    (_replace, "replace"),
    (_regexp_replace, "regexp_replace"),
    (_concat_ws, "concat_ws"),
    (_array_join, "array_join"),
    (_array_insert, "array_insert"),
    (_arrays_zip, "arrays_zip"),
    (_format_string, "format_string printf"),
    (_from_json, "from_json"),
    (Lambda(), "exists filter forall map_filter"),
    (Lambda(makes=True, keeps=False), "transform"),
    (Lambda(makes=True), "transform_keys transform_values"),
    (Lambda(lists=2, makes=True), "map_zip_with"),
    (Lambda(lists=2, makes=True, keeps=False), "zip_with"),
    (FOLD, "aggregate reduce"),
)
GROWTH: Final[Mapping[str, Growth | Lambda | str]] = {
    name: growth for growth, words in _WORDS for name in words.split()
}
"""Each function that a query may call -> what it makes."""
