"""From a user's query to one that Spark may run: a SELECT over the rows of one tenant.

Everything that a query consists of is on a list; whatever is on none is refused. The names of
tables become subqueries that filter, so that no other name reaches Spark's catalog; text reaches it
as literals only.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import Final, NoReturn

from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from api.sql.costs import call_problem, query_problem, sets_problem
from api.sql.dialect import DIALECT, HistoryParser, Verbatim, first_place, path_of, to_sql
from api.sql.errors import QueryError, error_at
from api.sql.functions import ALLOWED, GENERATORS, HINTS, PATTERN_FUNCTIONS, TABLE_FUNCTIONS
from api.sql.usage import NAME as USAGE
from mqlake.errors import InvalidTopic
from mqlake.tables import FOR_ADMINISTRATORS, OF_TOPICS, RULE_TABLE_PATTERN
from mqlake.topics import validate_topic_filter
from mqlake.views import (
    BY_NAME,
    CATALOG_SCHEMA,
    TENANT,
    TOPIC_LEVEL,
    TOPIC_MATCHES,
    reference_view_select,
    rule_view_select,
    view_select,
)
from rules.language.patterns import InvalidPattern, Regex
from rules.language.quoting import quoted

MOST_CHARACTERS: Final = 50_000
MOST_DEPTH: Final = 60
"""Of parentheses; the parser is recursive."""
MOST_NODES: Final = 5_000
MOST_RELATIONS: Final = 16
"""Each is read by tasks of its own."""
MOST_PATTERN: Final = 500
_REFERENCE_TABLE: Final = re.compile(r"reference_((?!\w*__)[a-z][a-z0-9_]{0,62})")
_MOST_WILDCARDS: Final = 4
_LIKE_CHARACTERS: Final = (1_000_000, 1_000_000, 10_000, 800, 220)
"""Characters of a text that LIKE looks at, by the number of `%`: each costs another power."""

_NODES: Final = frozenset(
    {
        # Clauses
        *(exp.Select, exp.From, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered),
        *(exp.Limit, exp.Offset, exp.Join, exp.Lateral, exp.With, exp.CTE, exp.TableAlias),
        *(exp.Subquery, exp.Union, exp.Except, exp.Intersect, exp.Distinct, exp.Table),
        *(exp.Cube, exp.Rollup, exp.GroupingSets, exp.Version),
        # Names and literals
        *(exp.Column, exp.Identifier, exp.Star, exp.Alias, exp.Aliases, exp.Literal, exp.Null),
        *(exp.Boolean, exp.HexString, exp.RawString, exp.Paren, exp.Tuple, exp.Dot, exp.Var),
        exp.Concat,  # 'a' 'b'; calls of functions are Anonymous
        # Operators
        *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT),
        *(exp.GTE, exp.LT, exp.LTE, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike),
        *(exp.RegexpLike, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg),
        *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.DPipe, exp.Exists),
        # Expressions with a syntax of their own
        *(exp.Case, exp.If, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam),
        *(exp.ColumnDef, exp.Interval, exp.IntervalSpan, exp.Extract, exp.Trim, exp.StrPosition),
        *(exp.Substring, exp.Anonymous, exp.Lambda, exp.Window, exp.WindowSpec, exp.Bracket),
        *(exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.CurrentDate, exp.CurrentTimestamp),
        *(exp.JSONExtract, exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript),
        *(exp.PropertyEQ, exp.Kwarg),
    }
)
_TYPES: Final = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "TEXT"),
        *("VARCHAR", "CHAR", "BINARY", "VARBINARY", "DATE", "TIMESTAMP", "TIMESTAMPTZ"),
        *("TIMESTAMPLTZ", "TIMESTAMPNTZ", "ARRAY", "MAP", "STRUCT", "VARIANT", "INTERVAL"),
    }
)
_UNITS: Final = frozenset(
    [
        "microsecond",
        "millisecond",
        "second",
        "minute",
        "hour",
        "day",
        "dayofyear",
        "week",
        "month",
        "quarter",
        "year",
    ]
)
_WITH_UNITS: Final = frozenset(
    ["timestampadd", "timestampdiff", "dateadd", "datediff", "date_add", "date_diff"]
)
"""Functions whose first argument, when there are three, is the name of a unit."""

_OWN_WORDS: Final = frozenset(
    # What we write without quotes: keywords that sqlglot takes for names, units, views.
    word.lower()
    for word in re.findall(
        "[A-Za-z_]+",
        " ".join(
            (
                *(view_select(table, where=f"{TENANT} = x") for table in BY_NAME.values()),
                *(f"{CATALOG_SCHEMA}.{name}" for name in (TOPIC_MATCHES, TOPIC_LEVEL)),
                "AS BOTH LEADING TRAILING NULLS FIRST LAST IGNORE RESPECT",
                "UNBOUNDED PRECEDING FOLLOWING",
                "CURRENT ROW GROUPING SETS CUBE ROLLUP OUTER VIEW FILTER VERSION TIMESTAMP OF IF",
                "VALUES AS BIGINT kind name value",
                "try_cast array regexp_like variant_get position left substring trim extract",
                "interval to",
                "DAYS HOURS MINUTES SECONDS WEEKS MONTHS YEARS DOW DOY WEEK EPOCH",
                "current_timestamp current_date concat",
                " ".join(_UNITS),
            )
        ),
    )
)
_CONSTRUCTORS: Final = (TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT)
_HIDDEN_COLUMN: Final = "_metadata"
"""Of every table for Spark: in which file of this machine a row is."""
_ABOUT_SPARK: Final = {"user", "current_user", "session_user"}
"""Where no column has such a name, Spark takes it for a function and says as whom it runs."""
_STATEMENTS: Final = "expected one SELECT"
_INVOKER: Final = {TOPIC_MATCHES, TOPIC_LEVEL}


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """What Spark is given.

    Attributes:
        text: As the user wrote it.
        sql: As Spark gets it, one line.
        relations: Names of the tables it reads.
        tenant: Whose rows it sees.
    """

    text: str
    sql: str
    relations: frozenset[str]
    tenant: str


def check(
    text: str,
    tenant: str,
    *,
    is_administrator: bool = False,
    topic_filters: Sequence[str] | None = None,
    usage: Callable[[], str] | None = None,
) -> CheckedQuery:
    """Check a query and confine it to a tenant, and to what who asks may see.

    Args:
        text: The query.
        tenant: Whose rows there are.
        is_administrator: Whether who asks is one.
        topic_filters: Of topics of which there are rows, and no tables without topics; None: all.
        usage: Returns the SELECT of the relation `usage`, of this tenant; None: there is none.

    Raises:
        QueryError: It is refused, or does not parse.
    """
    tokens = _tokens(text)
    _check_tokens(text, tokens)
    try:
        statement = _parse(text, tokens)
        checker = _Checker(text, tenant, statement, is_administrator, topic_filters, usage)
        checker.check()
        sql = to_sql(statement)
    except RecursionError as exc:  # a name of a thousand parts, say, is as deep
        raise QueryError("the query is nested too deeply") from exc
    _proofread(text, sql)
    return CheckedQuery(text, sql, frozenset(checker.relations), tenant)


def _proofread(text: str, sql: str) -> None:
    """Refuse a query of which Spark would get a word that is neither quoted nor one of ours.

    Whatever slips through between parser and generator would show as such a word.
    """
    known = ALLOWED | TABLE_FUNCTIONS | PATTERN_FUNCTIONS | _OWN_WORDS
    tokens: list[Token] = DIALECT.tokenize(sql)
    for token in tokens:
        if token.token_type == TokenType.VAR and token.text.lower() not in known:
            raise error_at(text, None, f"{token.text} is not understood")


def _tokens(text: str) -> list[Token]:
    if len(text) > MOST_CHARACTERS:
        raise QueryError(f"the query has {len(text)} characters, at most {MOST_CHARACTERS} may be")
    if "\0" in text:
        raise error_at(text, text.index("\0"), "the query holds U+0000")
    try:
        tokens: list[Token] = DIALECT.tokenize(text)
    except SqlglotError as exc:
        found = re.search(r"[0-9]+:([0-9]+)\Z", str(exc.__cause__ or exc))
        offset = min(int(found[1]), len(text) - 1) if found else 0
        raise error_at(text, offset, "a quote or a comment is not closed") from exc
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    # `array(1, 2)[0]` is a call with an index; the parser would take it for a type and its value.
    for token, following in pairwise(tokens):
        if token.token_type in _CONSTRUCTORS and following.token_type == TokenType.L_PAREN:
            token.token_type = TokenType.VAR
    return tokens


def _check_tokens(text: str, tokens: list[Token]) -> None:
    """Refuse what is no single query, and nesting before the parser meets it."""
    if not tokens:
        raise QueryError(f"the query is empty, {_STATEMENTS}")
    first = tokens[0]
    if first.token_type not in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN):
        raise error_at(text, first.start, f"the statement is {first.text.upper()}, {_STATEMENTS}")
    depth = prefixes = 0
    for token in tokens:
        kind = token.token_type
        if kind == TokenType.SEMICOLON:
            raise error_at(text, token.start, f"a second statement, {_STATEMENTS}")
        if kind == TokenType.PIPE_GT:
            raise error_at(text, token.start, "|> is not supported")
        if kind == TokenType.HINT:
            raise error_at(text, token.start, "hints are not allowed here")
        if kind in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE, TokenType.L_BRACE):
            depth += 1
        elif kind in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END, TokenType.R_BRACE):
            depth -= 1
        is_prefix = kind in (TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE)
        prefixes = prefixes + 1 if is_prefix else 0
        if depth > MOST_DEPTH or prefixes > MOST_DEPTH:
            raise error_at(text, token.start, "the query is nested too deeply")


def _parse(text: str, tokens: list[Token]) -> exp.Expr:
    parser = HistoryParser(error_level=ErrorLevel.IMMEDIATE, dialect=DIALECT)
    try:
        statements = parser.parse(tokens, text)
    except ParseError as exc:
        raise _translated(text, exc) from exc
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as exc:
        # The parser meets input here that it was not made for.
        raise QueryError("the query does not parse") from exc
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise QueryError(f"this is no query, {_STATEMENTS}")
    return statements[0]


def _translated(text: str, error: ParseError) -> QueryError:
    first = error.errors[0] if error.errors else {}
    highlight = str(first.get("highlight") or "")
    detail = f"the query does not parse near {highlight!r}" if highlight else "it does not parse"
    line, column = first.get("line"), first.get("col")
    if not isinstance(line, int) or not isinstance(column, int):
        return QueryError(detail)
    # It tells the last character of what it marks.
    return QueryError(detail, line, max(1, column - max(0, len(highlight) - 1)))


def _within(column: str, topic_filter: str) -> str:
    """Return the condition that all that a topic name, or filter, stands for is of a filter.

    Read as a name, a filter is matched by those that cover it, but for one that ends on `#`, a
    level that a `+` would match.
    """
    matches = f"{CATALOG_SCHEMA}.{TOPIC_MATCHES}({column}, {quoted(topic_filter)})"
    if topic_filter.endswith("#"):
        return matches
    return f"({matches} AND right({column}, 1) <> '#')"


@dataclass(slots=True)
class _Checker:
    text: str
    tenant: str
    root: exp.Expr
    is_administrator: bool
    topic_filters: Sequence[str] | None
    usage: Callable[[], str] | None
    relations: set[str] = field(default_factory=set)

    def check(self) -> None:
        nodes = list(self.root.walk())
        if len(nodes) > MOST_NODES:
            raise QueryError("the query is too long: too many names and operators")
        for node in nodes:
            if type(node) not in _NODES:
                self._refuse(node, f"{_what(node)} is not allowed in a query")
        named_here = self._names_of_ctes()
        for node in nodes:
            if isinstance(node, exp.Select):
                _name_fields(node)
        for node in nodes:
            check = _CHECKS.get(type(node))
            if check is not None:
                check(self, node)
        problem = query_problem(self.root)
        if problem is not None:
            raise QueryError(problem)
        tables = [node for node in nodes if isinstance(node, exp.Table)]
        if len(tables) > MOST_RELATIONS:
            raise QueryError(
                f"the query reads {len(tables)} tables, at most {MOST_RELATIONS} may be"
            )
        for table in tables:
            self._resolve(table, named_here)

    def _refuse(self, node: exp.Expr, detail: str, hint: str = "") -> NoReturn:
        offset = first_place(node)
        parent = node.parent
        while offset is None and parent is not None:
            offset, parent = first_place(parent), parent.parent
        raise error_at(self.text, offset, detail, hint)

    def _names_of_ctes(self) -> set[str]:
        """Return the names that WITH gives; one that hides a table would be read as either."""
        names = set()
        for cte in self.root.find_all(exp.CTE):
            name = cte.alias.lower()
            is_table = re.fullmatch(RULE_TABLE_PATTERN, name) or _REFERENCE_TABLE.fullmatch(name)
            if name in BY_NAME or name == USAGE or is_table:
                self._refuse(cte.args["alias"], f"{cte.alias} is the name of a table")
            names.add(name)
        return names

    # Relations

    def _resolve(self, table: exp.Table, named_here: set[str]) -> None:
        """Put the tenant's rows in the place of a table's name."""
        for kind in ("sample", "pivots", "hints", "partition", "changes", "when", "only"):
            if table.args.get(kind):
                self._refuse(table, f"{kind} of a table is not supported")
        for kind in ("ordinality", "rows_from", "format", "pattern", "file_format", "indexed"):
            if table.args.get(kind):
                self._refuse(table, "this is not supported after a table")
        if not isinstance(table.this, exp.Identifier):
            self._check_table_function(table)
            return
        name = table.name.lower()
        travel = self._time_travel(table.args.get("version"))
        if not table.db and not table.catalog and name in named_here:
            if travel:
                self._refuse(table, f"{table.name} is no table and has no versions")
            return
        is_ours = table.catalog == "" and table.db.lower() in ("", "default")
        mine = f"{TENANT} = {quoted(self.tenant)}"
        if self.topic_filters is not None:
            if not is_ours or name not in OF_TOPICS:
                words = f"with rights to some topics alone one may query {', '.join(OF_TOPICS)}"
                self._refuse(table.this, words)
            allowed = [_within(OF_TOPICS[name], one) for one in self.topic_filters]
            mine += f" AND ({' OR '.join(['false', *allowed])})"
        if is_ours and name in FOR_ADMINISTRATORS and not self.is_administrator:
            self._refuse(table.this, f"the table {name} is for administrators")
        if is_ours and name in BY_NAME:
            select = view_select(BY_NAME[name], time_travel=travel, where=mine)
        elif is_ours and re.fullmatch(RULE_TABLE_PATTERN, name):
            select = rule_view_select(name, time_travel=travel, where=mine)
        elif is_ours and (found := _REFERENCE_TABLE.fullmatch(name)):
            select = reference_view_select(self.tenant, found[1], time_travel=travel)
        elif is_ours and name == USAGE and self.usage is not None:
            if travel:
                self._refuse(table, f"{name} is no table and has no versions")
            select = self.usage()
        else:
            shown = ".".join(part.name for part in table.parts)
            known = [*BY_NAME, USAGE]
            similar = get_close_matches(shown, known, n=1)
            meant = f"did you mean {similar[0]}? There are: " if similar else ""
            self._refuse(
                table.this,
                f"there is no table {shown}",
                f"{meant}{', '.join(known)}, rule_<name>, reference_<id>",
            )
        if name != USAGE:  # whoever runs the query looks for tables
            self.relations.add(name)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
        table.set("this", Verbatim(this=f"({select})"))
        for part in ("db", "catalog", "version"):
            table.set(part, None)

    def _time_travel(self, version: exp.Expr | None) -> str:
        if version is None:
            return ""
        kind = str(version.this).upper()
        wanted = version.args.get("expression")
        if kind not in ("VERSION", "TIMESTAMP") or version.args.get("kind") != "AS OF":
            self._refuse(version, "expected VERSION AS OF or TIMESTAMP AS OF")
        if wanted is None or wanted.find(exp.Column, exp.Query, exp.Table):
            self._refuse(version, f"{kind} AS OF takes a value, not a column or a query")
        is_number = isinstance(wanted, exp.Literal) and not wanted.is_string
        if kind == "VERSION" and not (is_number and re.fullmatch("[0-9]{1,18}", str(wanted.this))):
            self._refuse(version, "VERSION AS OF takes the number of a version")
        return f"{kind} AS OF {to_sql(wanted.copy())}"

    def _check_table_function(self, table: exp.Table) -> None:
        name = table.this.name.lower() if isinstance(table.this, exp.Anonymous) else ""
        if table.db or table.catalog or name not in TABLE_FUNCTIONS:
            self._refuse(
                table.this,
                f"table function {name or _what(table.this)} is not allowed here",
                f"{', '.join(sorted(TABLE_FUNCTIONS))}",
            )

    # Nodes

    def check_call(self, node: exp.Anonymous) -> None:
        name = node.name.lower()
        if isinstance(node.parent, exp.Dot) and node.arg_key == "expression":
            self._refuse(node, f"function {name} is not allowed here: write it without a schema")
        problem = call_problem(name, node.expressions)
        if problem is not None:
            self._refuse(node, f"{name}: {problem}")
        if name in PATTERN_FUNCTIONS:
            self._check_pattern(node)
        elif name in _INVOKER:
            self._check_topic_function(node)
        elif name not in ALLOWED and name not in TABLE_FUNCTIONS:
            self._refuse(node, f"function {name} is not allowed here", HINTS.get(name, ""))
        elif name in _WITH_UNITS and len(node.expressions) == 3:
            self._check_unit(node)
        elif name == "range" and not isinstance(node.parent, exp.Table):
            self._refuse(node, "range stands after FROM only")

    def _check_unit(self, node: exp.Anonymous) -> None:
        unit = node.expressions[0]
        if unit.name.lower() not in _UNITS:
            self._refuse(node, f"the first of 3 arguments of {node.name} is a unit, as DAY")
        unit.replace(exp.Var(this=unit.name.upper()))

    def _check_topic_function(self, node: exp.Anonymous) -> None:
        arguments = node.expressions
        if len(arguments) != 2:
            self._refuse(node, f"{node.name} takes 2 arguments, got {len(arguments)}")
        given = arguments[1]
        if node.name.lower() == TOPIC_MATCHES and _is_text(given):
            try:
                validate_topic_filter(given.this)
            except InvalidTopic as exc:
                self._refuse(node, f"not a topic filter: {exc}")
        # The functions are in the schema of the tables, which is not the one of the session.
        call = Verbatim(this=f"{CATALOG_SCHEMA}.{node.name.lower()}")
        node.set("this", call)

    def _check_pattern(self, node: exp.Anonymous) -> None:
        if len(node.expressions) < 2 or not _is_text(node.expressions[1]):
            self._refuse(node, f"the pattern of {node.name.lower()} has to be written out")
        subject, pattern = node.expressions[:2]
        regex = self._regex(node, pattern)
        subject.replace(_shortened(subject, regex.text_characters))
        node.expressions[1].replace(Verbatim(this=regex.java))

    def check_rlike(self, node: exp.RegexpLike) -> None:
        pattern = node.args.get("expression")
        if pattern is None or not _is_text(pattern) or node.args.get("flag"):
            self._refuse(node, "the pattern of RLIKE has to be written out")
        regex = self._regex(node, pattern)
        node.this.replace(_shortened(node.this, regex.text_characters))
        pattern.replace(Verbatim(this=regex.java))

    def _regex(self, node: exp.Expr, pattern: exp.Expr) -> Regex:
        try:
            return Regex(pattern.this, MOST_PATTERN)
        except InvalidPattern as exc:
            self._refuse(node, str(exc))

    def check_like(self, node: exp.Like | exp.ILike) -> None:
        pattern = node.expression
        if not _is_text(pattern):
            self._refuse(node, "the pattern of LIKE has to be written out")
        wildcards = str(pattern.this).count("%")
        if wildcards > _MOST_WILDCARDS:
            self._refuse(node, f"LIKE takes at most {_MOST_WILDCARDS} of %")
        stripped = str(pattern.this).strip("%")
        if not set(stripped) & {"%", "_", "\\"}:
            return  # begins with, ends with, contains: Spark looks once
        node.this.replace(_shortened(node.this, _LIKE_CHARACTERS[wildcards]))

    def check_type(self, node: exp.DataType) -> None:
        kind = node.this
        name = kind.name if isinstance(kind, exp.DType) else _what(node)
        if isinstance(kind, exp.IntervalSpan | exp.Interval):
            return
        if name not in _TYPES:
            self._refuse(node, f"type {name} is not allowed here")

    def check_identifier(self, node: exp.Identifier) -> None:
        if "${" in node.name:
            self._refuse(node, "a name must not hold ${")
        name = node.name.lower()
        if name == _HIDDEN_COLUMN:
            self._refuse(node, f"there is no column {node.name}")
        parent = node.parent
        if name in _ABOUT_SPARK and isinstance(parent, exp.Column) and not parent.table:
            self._refuse(node, f"write the column with its table: <table>.{node.name}")

    def check_var(self, node: exp.Var) -> None:
        if not re.fullmatch(r"[A-Za-z_ ]{1,40}", str(node.this)):
            self._refuse(node, "this is not understood")

    def check_number(self, node: exp.Literal) -> None:
        if not node.is_string and not re.fullmatch(
            r"[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?[A-Za-z]{0,2}", str(node.this)
        ):
            self._refuse(node, "a number that is not understood")

    def check_path(self, node: exp.JSONExtract) -> None:
        path = node.expression
        if not isinstance(path, exp.JSONPath) or path_of(path) is None:
            self._refuse(node, "after a colon come names and indexes: payload:items[0].name")
        for segment in path_of(path) or ():
            if isinstance(segment, str) and ("'" in segment and '"' in segment):
                self._refuse(node, "a name with both kinds of quotes is not supported")

    def check_with(self, node: exp.With) -> None:
        if node.args.get("recursive"):
            self._refuse(node, "WITH RECURSIVE is not allowed here")

    def check_group(self, node: exp.Group) -> None:
        problem = sets_problem(node)
        if problem is not None:
            self._refuse(node, problem)

    def check_lateral(self, node: exp.Lateral) -> None:
        inner = node.this
        is_generator = isinstance(inner, exp.Anonymous) and inner.name.lower() in GENERATORS
        if not is_generator and not isinstance(inner, exp.Subquery):
            self._refuse(node, "LATERAL takes a subquery or explode, inline, stack and the like")


def _name_fields(select: exp.Select) -> None:
    """Call a field of a payload that has no other name by its own: `payload:temp::double`."""
    for item in list(select.expressions):
        inner = item
        while isinstance(inner, exp.Cast | exp.TryCast | exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.JSONExtract):
            names = [one for one in path_of(inner.expression) or () if isinstance(one, str)]
            if names:
                alias = exp.Identifier(this=names[-1], quoted=True)
                item.replace(exp.Alias(this=item.copy(), alias=alias))


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string)


def _shortened(subject: exp.Expr, characters: int) -> exp.Expr:
    """Return a text, cut to what can be searched in time."""
    number = exp.Literal.number(characters)
    return exp.Anonymous(this="left", expressions=[subject.copy(), number])


def _what(node: exp.Expr) -> str:
    return type(node).__name__.upper()


_CHECKS: Final[dict[type[exp.Expr], Callable[..., None]]] = {
    exp.Anonymous: _Checker.check_call,
    exp.RegexpLike: _Checker.check_rlike,
    exp.Like: _Checker.check_like,
    exp.ILike: _Checker.check_like,
    exp.DataType: _Checker.check_type,
    exp.Identifier: _Checker.check_identifier,
    exp.Var: _Checker.check_var,
    exp.Literal: _Checker.check_number,
    exp.JSONExtract: _Checker.check_path,
    exp.With: _Checker.check_with,
    exp.Lateral: _Checker.check_lateral,
    exp.Group: _Checker.check_group,
}
