"""The check of a statement of `sql`: what a rule may say to PostgreSQL.

A statement is one INSERT, UPDATE, DELETE, MERGE or CALL of parameters, columns, operators and calls
of listed functions. PostgreSQL reads the text, and sqlglot reads it in its own way. So the words
tell what must not be, which both see alike: outside quotes a statement has ASCII alone, no comments
and no texts with a prefix. The tree then tells the kind of the statement, and the rest.

PostgreSQL calls a function where a name stands before a parenthesis, and where a name stands behind
a dot, `(x).f` and `t.f`: that is `f(x)` when x has no such column. Operators, casts and reserved
words (`CURRENT_DATE`) call functions too, but none that does more than compute.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

from rules.actions.fields import ArgumentError
from rules.errors import RuleError
from rules.sql.reading import Reading
from rules.templates import Placeholder, Template

MAX_STATEMENT_CHARACTERS: Final = 16_384
MAX_PARAMETERS: Final = 1_000
_MAX_DEPTH: Final = 40

# fmt: off
_FUNCTIONS: Final = frozenset(
    (
        # Of values
        "coalesce", "nullif", "greatest", "least", "num_nulls", "num_nonnulls",
        # Numbers
        "abs", "cbrt", "ceil", "ceiling", "degrees", "div", "exp", "floor", "gcd", "lcm", "ln",
        "log", "log10", "min_scale", "mod", "pi", "power", "radians", "random", "round", "scale",
        "sign", "sqrt", "trim_scale", "trunc", "width_bucket",
        "acos", "asin", "atan", "atan2", "cos", "cot", "sin", "tan",
        # Texts
        "ascii", "bit_length", "btrim", "char_length", "character_length", "chr", "concat",
        "concat_ws", "initcap", "left", "length", "lower", "ltrim", "md5", "normalize",
        "octet_length", "overlay", "parse_ident", "position", "quote_ident", "quote_literal",
        "quote_nullable", "regexp_count", "regexp_instr", "regexp_like", "regexp_match",
        "regexp_replace", "regexp_split_to_array", "regexp_substr", "replace", "reverse",
        "right", "rtrim", "split_part", "starts_with", "string_to_array", "strpos", "substr",
        "substring", "to_ascii", "to_char", "to_hex", "to_number", "translate", "trim", "upper",
        # Binary
        "bit_count", "convert_from", "convert_to", "decode", "encode", "get_bit", "get_byte",
        "hashtext", "set_bit", "set_byte", "sha224", "sha256", "sha384", "sha512",
        # Times
        "age", "clock_timestamp", "current_time", "current_timestamp", "date", "date_bin",
        "date_part", "date_trunc", "extract", "isfinite", "justify_days", "justify_hours",
        "justify_interval", "localtime", "localtimestamp", "make_date", "make_interval",
        "make_time", "make_timestamp", "make_timestamptz", "now", "statement_timestamp",
        "timeofday", "timezone", "to_date", "to_timestamp", "transaction_timestamp",
        # JSON
        "array_to_json", "json_array_length", "json_build_array", "json_build_object",
        "json_extract_path", "json_extract_path_text", "json_object", "json_strip_nulls",
        "json_typeof", "jsonb_array_elements", "jsonb_array_elements_text",
        "jsonb_array_length", "jsonb_build_array", "jsonb_build_object", "jsonb_extract_path",
        "jsonb_extract_path_text", "jsonb_insert", "jsonb_object", "jsonb_object_keys",
        "jsonb_path_exists", "jsonb_path_query_array", "jsonb_path_query_first", "jsonb_set",
        "jsonb_set_lax", "jsonb_strip_nulls", "jsonb_typeof", "row_to_json", "to_json",
        "to_jsonb",
        # Arrays and ranges
        "array_append", "array_cat", "array_length", "array_lower", "array_position",
        "array_positions", "array_prepend", "array_remove", "array_replace", "array_to_string",
        "array_upper", "cardinality", "trim_array", "unnest", "daterange", "int4range",
        "int8range", "isempty", "numrange", "tsrange", "tstzrange",
        # Networks, texts to search in, places
        "family", "host", "masklen", "netmask", "network", "plainto_tsquery", "to_tsquery",
        "to_tsvector", "point", "st_geogfromtext", "st_geomfromgeojson", "st_geomfromtext",
        "st_makepoint", "st_point", "st_setsrid",
        # Keys
        "currval", "gen_random_uuid", "lastval", "nextval", "setval", "uuid_generate_v4",
        "uuid_generate_v5", "uuidv4", "uuidv7",
        # Of groups
        "array_agg", "avg", "bool_and", "bool_or", "count", "every", "json_agg",
        "json_object_agg", "jsonb_agg", "jsonb_object_agg", "max", "min", "stddev",
        "string_agg", "sum", "variance",
    )
)
# fmt: on
"""Functions that a statement calls without a schema: they compute, and make no value whose size is
one of their arguments (as `repeat`, `lpad`, `format` and `generate_series` do)."""

# fmt: off
_BEFORE_PARENTHESIS: Final = frozenset(
    (
        "all", "and", "any", "array", "as", "between", "by", "case", "cast", "conflict",
        "distinct", "else", "except", "exists", "filter", "for", "from", "having", "ilike",
        "in", "insert", "intersect", "join", "like", "limit", "materialized", "not", "offset",
        "on", "or", "overlaps", "placing", "returning", "row", "select", "set", "some",
        "then", "to", "union", "using", "values", "when", "where",
    )
)
# fmt: on
"""Keywords before a parenthesis that is none of a call."""
_BEFORE_NAME: Final = frozenset(("into", "as", "with"))
"""Keywords between which and a parenthesis a table, an alias or a type stands, never a function."""

_SYSTEM_FUNCTIONS: Final = ("lo_", "dblink")
"""Beginnings of functions that are not called, in any schema either."""
_OF_ROWS: Final = frozenset(
    (
        "any_out",
        "anycompatible_out",
        "anycompatiblenonarray_out",
        "anyelement_out",
        "anynonarray_out",
        "hash_record",
        "record_out",
        "record_send",
    )
)
"""Functions that `row.f` calls, beside listed ones and those of `pg_`: all that take any row."""
_SHARED_SCHEMA: Final = "public"
"""Schema of functions of extensions, also of those that run SQL text or call servers."""

_WORDS_WITH_VALUES: Final = frozenset(
    (
        "current_catalog",
        "current_date",
        "current_role",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "system_user",
        "user",
    )
)
"""Functions without a parenthesis."""

_JSON_VALUES: Final = frozenset(
    (
        "json_build_array",
        "json_build_object",
        "jsonb_build_array",
        "jsonb_build_object",
        "to_json",
        "to_jsonb",
        "json_agg",
        "jsonb_agg",
        "json_object_agg",
        "jsonb_object_agg",
    )
)
_JSON_PAIRS: Final = frozenset(
    ("json_build_object", "jsonb_build_object", "json_object_agg", "jsonb_object_agg")
)
"""Those of them whose first, third, … argument is a key."""
_ANY_VALUES: Final = frozenset(
    (
        "array_agg",
        "concat",
        "concat_ws",
        "count",
        "num_nonnulls",
        "num_nulls",
    )
)
"""Other functions that take values of any type, of which a parameter has none by itself."""

# fmt: off
_KINDS: Final[frozenset[type[exp.Expr]]] = frozenset(
    (
        # Statements and their clauses
        exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Whens, exp.When, exp.OnConflict,
        exp.Returning, exp.Values, exp.Schema, exp.Select, exp.From, exp.Where, exp.Group,
        exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Join, exp.With, exp.CTE,
        exp.Subquery, exp.Union, exp.Except, exp.Intersect, exp.Distinct, exp.Table,
        exp.TableAlias, exp.Filter,
        # Names and values
        exp.Column, exp.Identifier, exp.Star, exp.Alias, exp.Literal, exp.Null, exp.Boolean,
        exp.Parameter, exp.Tuple, exp.Var, exp.Interval, exp.IntervalSpan,
        exp.DataType, exp.DataTypeParam, exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey,
        exp.JSONPathSubscript, exp.AtTimeZone, exp.Between, exp.In, exp.Bracket, exp.Slice,
        # Functions by kind; their names are checked as words.
        *(kind for kind in exp.ALL_FUNCTIONS if not issubclass(kind, exp.UDTF)),
        exp.Explode, exp.Anonymous,
        # Operators
        exp.Paren, exp.Not, exp.Neg, exp.BitwiseNot, exp.Is, exp.EQ, exp.NEQ, exp.GT, exp.GTE,
        exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Like, exp.ILike, exp.SimilarTo,
        exp.Escape, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe, exp.BitwiseAnd,
        exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift,
        exp.Collate, exp.Distance, exp.Dot, exp.Any, exp.All, exp.Overlaps, exp.RegexpILike,
        exp.Adjacent, exp.ExtendsLeft, exp.ExtendsRight,
    )
)
# fmt: on
_STATEMENTS: Final = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
_BEGINNINGS: Final = ("insert", "update", "delete", "merge", "call", "with")
_EXPECTED: Final = "statement is not one INSERT, UPDATE, DELETE, MERGE or CALL"
_OWN_HINT: Final = "a function of your own is called with its schema, which is not public: app.f(…)"
_QUOTED: Final = (TokenType.STRING, TokenType.IDENTIFIER)
_PREFIXES: Final = ("&", "_", "'", '"')
"""Beside letters and digits: what before a quote may make it another kind of text or name."""
_SEPARATORS: Final = (TokenType.L_PAREN, TokenType.COMMA, TokenType.R_PAREN)
_UNQUOTED: Final = re.compile(r"[A-Za-z0-9_\s.,()\[\]:;$+\-*/<>=~!@#%^&|?]*", re.ASCII)
_COMMENT: Final = re.compile(r"--|/\*")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\s+[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CheckedStatement:
    """A statement that PostgreSQL may prepare.

    Attributes:
        text: With $1, $2, … for the placeholders, one number for each place: the places of one
            placeholder may have different types.
        placeholders: Placeholders of the numbers, in order.
    """

    text: str
    placeholders: tuple[Placeholder, ...]


def check_statement(text: str) -> CheckedStatement:
    """Return a statement for PostgreSQL.

    Raises:
        ArgumentError: It is not one statement of an allowed kind, calls or reads what it may not,
            or a placeholder is not where a value can be.
    """
    try:
        template = Template.parse(text)
        statement, placeholders = _numbered(template)
        reading = _StatementReading(
            statement, characters=2 * MAX_STATEMENT_CHARACTERS, depth=_MAX_DEPTH
        )
        reading.read()
        reading.check_parameters(placeholders)
    except RuleError as exc:
        place = f" (line {exc.line}, column {exc.column} of the statement)" if exc.line else ""
        raise ArgumentError(exc.problem + place, hint=exc.hint) from exc
    return CheckedStatement(reading.typed_text(), placeholders)


def is_of_the_system(name: str) -> bool:
    """Tell whether a relation, a schema or a function with this name is PostgreSQL's own."""
    return name.startswith(("pg_", "information_schema"))


def _numbered(template: Template) -> tuple[str, tuple[Placeholder, ...]]:
    """Return the statement with a number in each place of a placeholder."""
    written = []
    number = 0
    for part in template.parts:
        if isinstance(part, str):
            if "$" in part:
                raise RuleError("statement holds a dollar sign", hint="values are ${field}")
            written.append(part)
            continue
        number += 1
        # Spaces, as digits and letters may stand beside it; as long as the user's text where it
        # can be, so that errors tell the user's columns.
        written.append(f" ${number} ".ljust(len(part.name) + 3))
    if number > MAX_PARAMETERS:
        raise RuleError(f"statement has {number} placeholders, at most {MAX_PARAMETERS} can be")
    return "".join(written), template.placeholders


class _Dialect(Postgres):
    INDEX_OFFSET = 0  # Counting from 1 is not ours to change, and takes time exponential in depth.

    class Tokenizer(Postgres.Tokenizer):
        COMMANDS = set()  # noqa: RUF012 - sqlglot's declaration: CALL is taken apart, too


class _StatementReading(Reading):
    NOUN = "statement"
    DIALECT = _Dialect()
    PARSER = PostgresParser
    KINDS = _KINDS
    ERROR = RuleError
    REFUSED = {TokenType.SEMICOLON: _EXPECTED}  # noqa: RUF012
    UNPARSED = "statement is not SQL of a kind that can be used, at {!r}"
    UNLISTED = "statement has {}, which is on no list"
    QUOTES = "text is 'in single quotes'"

    def check_spelling(self) -> None:
        """Refuse what PostgreSQL might take apart into other words than sqlglot."""
        rest = self.text
        for token in self.tokens:
            end = token.end + 1
            if token.token_type in _QUOTED:
                before = self.text[token.start - 1 : token.start]
                if before in _PREFIXES or before.isalnum():
                    self.fail_at(token, "statement has a text or a name with a prefix")
                rest = rest[: token.start] + " " * (end - token.start) + rest[end:]
            elif "'" in self.text[token.start : end]:
                self.fail_at(token, "statement has a text or a name with a prefix")
            elif token.token_type == TokenType.NUMBER and (
                not _NUMBER.fullmatch(self.text, token.start, end) or _WORD.match(self.text, end)
            ):
                self.fail_at(token, "statement has a number that is not like 1, 1.5 or 1e5")
        allowed = _UNQUOTED.match(rest)
        place = allowed.end() if allowed else 0
        if place < len(rest):
            problem = "statement has, outside quotes, a character that is no part of SQL"
            raise RuleError.at(self.text, place, place + 1, problem)
        if comment := _COMMENT.search(rest):
            raise RuleError.at(self.text, comment.start(), comment.end(), "statement has a comment")

    def check_beginning(self) -> None:
        """Refuse what does not begin like a statement that can be used."""
        if self._keyword(0) not in _BEGINNINGS:
            raise RuleError(_EXPECTED)

    def check_names(self) -> None:
        """Refuse names that are the system's, wherever they stand, and what may be a call."""
        for index, token in enumerate(self.tokens):
            if is_of_the_system(self._name(index) or ""):
                self.fail_at(token, f"statement names {token.text}, the system's own")
        for index, token in enumerate(self.tokens):
            if token.token_type == TokenType.DOT:
                self._check_dot(index)
            elif token.token_type == TokenType.L_PAREN and self._name(index - 1) is not None:
                self._check_call(index - 1)

    def _check_dot(self, index: int) -> None:
        """Refuse a dot that may call a function of what is before it."""
        token, name = self.tokens[index], self._name(index + 1)
        is_star = self._kind(index + 1) == TokenType.STAR
        if self._name(index - 1) is None or (name is None and not is_star):
            problem = "statement has a dot that is not between two names"
            hint = "a field of a value that is no row is not read"
        elif all(self._kind(index - back) == TokenType.DOT for back in (2, 4, 6)):
            problem, hint = "statement has a name of more than four parts", ""
        elif name in _OF_ROWS:
            problem, hint = f"statement calls {name}, which is on no list", ""
        else:
            return
        raise RuleError.at(self.text, token.start, token.end + 1, problem, hint)

    def _check_call(self, index: int) -> None:
        """Refuse a function before a parenthesis, unless it is listed or of one's own."""
        name = self._name(index) or ""
        names = [name]
        while self._kind(index - 1) == TokenType.DOT:
            index -= 2
            names.append(self._name(index) or "")
        before = self._kind(index - 1)
        if self._keyword(index - 1) in _BEFORE_NAME or before == TokenType.DCOLON:
            return
        if len(names) > 1:
            is_known = names[1] != _SHARED_SCHEMA and not name.startswith(_SYSTEM_FUNCTIONS)
        else:
            is_known = name in _FUNCTIONS or self._keyword(index) in _BEFORE_PARENTHESIS
        if not is_known:
            token = self.tokens[index]
            called = ".".join(reversed(names))
            problem = f"statement calls {called}, which is on no list"
            raise RuleError.at(self.text, token.start, token.end + 1, problem, _OWN_HINT)

    def parse(self) -> None:
        """Make the tree; of CALL that of the call."""
        if self._keyword(0) == "call":
            del self.tokens[0]
            super().parse()
            if not isinstance(self.tree, exp.Dot):
                raise RuleError("statement calls no procedure", hint="CALL app.p(…)")
            return
        super().parse()
        if not isinstance(self.tree, _STATEMENTS):
            raise RuleError(_EXPECTED)

    def check_relations(self) -> None:
        """Refuse what rows come from, unless it is a table, a subquery or VALUES.

        Their rows are composite values, which few functions take. The row of a function may be a
        text, say, and then `row.f` calls any function of a text.
        """
        for table in self.tree.find_all(exp.Table):
            name = table.this
            if isinstance(name, exp.Identifier):
                is_function = not name.quoted and name.name.lower() in _WORDS_WITH_VALUES
            else:
                is_function = True
            if is_function:
                self.fail(table, "statement has something else in place of a table's name")
        for name in self.tree.find_all(exp.With):
            if name.recursive:
                self.fail(name, "statement has WITH RECURSIVE")

    def check_parameters(self, placeholders: Sequence[Placeholder]) -> None:
        """Refuse a placeholder where no value can be."""
        found = {
            int(self.tokens[index + 1].text)
            for index in range(len(self.tokens))
            # DATE ${a} is none.
            if self._is_parameter(index) and self._kind(index - 1) not in PostgresParser.TYPE_TOKENS
        }
        for number, placeholder in enumerate(placeholders, 1):
            if number not in found:
                problem = "placeholder ${" + placeholder.name + "} is not where a value can be"
                hint = "write it without quotes, a type behind it: ${a}::date"
                raise RuleError(problem, hint=hint)

    PASSES = (
        Reading.tokenize,
        Reading.check_tokens,
        check_spelling,
        check_beginning,
        check_names,
        Reading.check_depth,
        Reading.check_tries,
        parse,
        Reading.check_kinds,
        check_relations,
    )

    def typed_text(self) -> str:
        """Return the text, with a type for each parameter that has none from its place."""
        written, end = "", 0
        calls: list[tuple[str, int]] = []  # around the token: the function, number of the argument
        for index, token in enumerate(self.tokens):
            match token.token_type:
                case TokenType.L_PAREN | TokenType.L_BRACKET:
                    is_own = self._kind(index - 2) == TokenType.DOT
                    calls.append(("" if is_own else self._name(index - 1) or "", 0))
                case TokenType.R_PAREN | TokenType.R_BRACKET if calls:
                    calls.pop()
                case TokenType.COMMA if calls:
                    calls[-1] = (calls[-1][0], calls[-1][1] + 1)
                case TokenType.PARAMETER if self._is_parameter(index):
                    number = self.tokens[index + 1]
                    type_name = self._type_of_parameter(index, *(calls or [("", 0)])[-1])
                    written += self.text[end : number.end + 1] + type_name
                    end = number.end + 1
        return written + self.text[end : self.tokens[-1].end + 1]

    def _type_of_parameter(self, index: int, function: str, argument: int) -> str:
        """Return the cast that a parameter needs; empty: its place has a type."""
        before, after = self._kind(index - 1), self._kind(index + 2)
        is_first = before in _SEPARATORS
        if self._keyword(index + 2) == "is" and (is_first or self._keyword(index - 1)):
            return "::text"
        if not is_first or after not in _SEPARATORS:
            return ""
        if function in _JSON_VALUES:
            return "::text" if function in _JSON_PAIRS and argument % 2 == 0 else "::jsonb"
        return "::text" if function in _ANY_VALUES else ""

    def _is_parameter(self, index: int) -> bool:
        return self.tokens[index].text == "$"  # all are made by us

    def _kind(self, index: int) -> TokenType | None:
        return self.tokens[index].token_type if 0 <= index < len(self.tokens) else None

    def _name(self, index: int) -> str | None:
        """Return a token as PostgreSQL's name: in small letters unless it is quoted."""
        if not 0 <= index < len(self.tokens):
            return None
        token = self.tokens[index]
        if token.token_type == TokenType.IDENTIFIER:
            return token.text
        return self._keyword(index)

    def _keyword(self, index: int) -> str | None:
        """Return an unquoted word in small letters, of several the last; None: it is none."""
        if self._kind(index) in (None, *_QUOTED):
            return None
        token = self.tokens[index]
        word = _WORD.fullmatch(self.text, token.start, token.end + 1)
        return word[0].split()[-1].lower() if word else None
