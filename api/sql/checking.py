"""From a user's query to one that Spark may run: a SELECT over the rows of one tenant.

All parts of a query are on lists; a part that is on none is refused. Text reaches Spark as literals
only.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from api.relations.views import CATALOG_SCHEMA, TOPIC_LEVEL, TOPIC_MATCHES
from api.sql.confining import MOST_CHARACTERS, MOST_DEPTH, Confinement
from api.sql.costs import call_problem, query_problem, sets_problem
from api.sql.dialect import DIALECT, HistoryParser, Verbatim, is_text, path_of, to_sql
from api.sql.direct.questions import SmallQuestion, question_of
from api.sql.errors import QueryError
from api.sql.lengths import Lengths
from mqlake.errors import InvalidTopic
from mqlake.topics.names import validate_topic_filter
from rules.sql.confined import Confined, GivenRows
from rules.sql.functions import (
    ALLOWED,
    GENERATORS,
    HINTS,
    PATTERN_FUNCTIONS,
    TABLE_FUNCTIONS,
)
from rules.sql.names import folded
from rules.sql.patterns import InvalidPattern, Regex, like
from rules.sql.quoting import is_expressible
from rules.sql.reading import Reading, kind_of

MOST_NODES: Final = 5_000
MOST_PATTERN: Final = 500
_MOST_WILDCARDS: Final = 4
_LIKE_CHARACTERS: Final = (1_000_000, 1_000_000, 10_000, 800, 220)
"""Characters of a text that LIKE looks at, by the number of `%`: each costs another power."""

# fmt: off
_NODES: Final = frozenset(
    {
        # Clauses
        exp.Select, exp.From, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered,
        exp.Limit, exp.Offset, exp.Join, exp.Lateral, exp.With, exp.CTE, exp.TableAlias,
        exp.Subquery, exp.Union, exp.Except, exp.Intersect, exp.Distinct, exp.Table,
        exp.Cube, exp.Rollup, exp.GroupingSets, exp.Version,
        # Names and literals
        exp.Column, exp.Identifier, exp.Star, exp.Alias, exp.Aliases, exp.Literal, exp.Null,
        exp.Boolean, exp.HexString, exp.RawString, exp.Paren, exp.Tuple, exp.Dot, exp.Var,
        exp.Concat,  # 'a' 'b'; calls of functions are Anonymous
        # Operators
        exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT,
        exp.GTE, exp.LT, exp.LTE, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike,
        exp.Escape,  # of LIKE
        exp.RegexpLike, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg,
        exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.DPipe, exp.Exists,
        # Expressions with a syntax of their own
        exp.Case, exp.If, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam,
        exp.ColumnDef, exp.Interval, exp.IntervalSpan, exp.Extract, exp.Trim, exp.StrPosition,
        exp.Substring, exp.Anonymous, exp.Lambda, exp.Window, exp.WindowSpec, exp.Bracket,
        exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.CurrentDate, exp.CurrentTimestamp,
        exp.JSONExtract, exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript,
        exp.PropertyEQ, exp.Kwarg,
    }
)
_TYPES: Final = frozenset(
    {
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "TEXT",
        "VARCHAR", "CHAR", "BINARY", "VARBINARY", "DATE", "TIMESTAMP", "TIMESTAMPTZ",
        "TIMESTAMPLTZ", "TIMESTAMPNTZ", "ARRAY", "MAP", "STRUCT", "VARIANT", "INTERVAL",
    }
)
# fmt: on
_UNITS: Final = frozenset(
    (
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
    )
)
_WITH_UNITS: Final = frozenset(
    ["timestampadd", "timestampdiff", "dateadd", "datediff", "date_add", "date_diff"]
)
"""Functions whose first argument, when there are three, is the name of a unit."""

_OWN_WORDS: Final = frozenset(
    # Words that we write without quotes: keywords that sqlglot takes for names, units.
    word.lower()
    for word in re.findall(
        "[A-Za-z_]+",
        " ".join(
            (
                *(f"{CATALOG_SCHEMA}.{name}" for name in (TOPIC_MATCHES, TOPIC_LEVEL)),
                "AS BOTH LEADING TRAILING NULLS FIRST LAST IGNORE RESPECT",
                "UNBOUNDED PRECEDING FOLLOWING",
                "CURRENT ROW GROUPING SETS CUBE ROLLUP OUTER VIEW FILTER VERSION TIMESTAMP OF IF",
                "cast try_cast array regexp_like variant_get position left substring trim extract",
                "interval to",
                "DAYS HOURS MINUTES SECONDS WEEKS MONTHS YEARS DOW DOY WEEK EPOCH",
                "current_timestamp current_date concat",
                " ".join(_UNITS),
            )
        ),
    )
)
_CONSTRUCTORS: Final = (TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT)
_DEFINES: Final = [TokenType.ALIAS, TokenType.L_PAREN]
"""Behind the name that WINDOW gives: `WINDOW w AS (PARTITION BY topic)`."""
_HIDDEN_COLUMN: Final = "_metadata"
"""Column that Spark adds to every table: it names the file of this machine that has a row."""
_ABOUT_SPARK: Final = {
    "user",
    "current_user",
    "session_user",
    "current_catalog",
    "current_database",
    "current_schema",
    "current_path",
}
"""Names that Spark takes for functions that tell its user, if no column has them."""
_EXPECTED: Final = "expected one SELECT"
_INVOKER: Final = {TOPIC_MATCHES, TOPIC_LEVEL}


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """A query for Spark.

    Attributes:
        text: As the user wrote it.
        sql: Over relations that are given, one line.
        given: The relations by name, each with the rows that the caller may see.
        tenant: Whose rows it sees.
        question: The same as a small question; None when it is none.
    """

    text: str
    sql: str
    given: Mapping[str, GivenRows]
    tenant: str
    question: SmallQuestion | None = None

    @property
    def tables(self) -> frozenset[str]:
        """Names of the tables that it reads."""
        read = (name for rows in self.given.values() for name in rows.reads)
        return frozenset(name.removeprefix(f"{CATALOG_SCHEMA}.") for name in read)

    def around(self, sql: str) -> "CheckedQuery":
        """Return a query around this one, of the same relations, which is for Spark."""
        return replace(self, sql=sql, question=None)

    def confined(self, sql: str) -> Confined:
        """Return a query around it as a statement for Spark."""
        return Confined(sql, self.given)


def check(
    text: str,
    tenant: str,
    *,
    is_administrator: bool = False,
    is_for_all: bool = False,
    topic_filters: Sequence[str] | None = None,
    usage: Callable[[], str] | None = None,
) -> CheckedQuery:
    """Check a query and confine it to a tenant, and to the rows that the caller may see.

    Args:
        text: The query.
        tenant: Whose rows there are.
        is_administrator: Whether the caller is one.
        is_for_all: Whether he is for all tenants, and sees what was changed for none alone.
        topic_filters: Topics whose rows are shown, without tables that have no topics; None: all.
        usage: Returns the SELECT of the relation `usage`, of this tenant; None: there is none.

    Raises:
        QueryError: It is refused, or does not parse.
    """
    query = _Query(
        text,
        tenant,
        is_administrator=is_administrator,
        is_for_all=is_for_all,
        topic_filters=topic_filters,
        usage=usage,
    )
    query.read()
    question = None
    if not query.confinement.travels:  # a version is in the rows that are given, not in the tree
        question = question_of(query.tree, tenant, topic_filters, datetime.now(tz=UTC))
    return CheckedQuery(text, query.sql, query.confinement.given, tenant, question)


class _Query(Reading):
    """A query; changed nodes of its tree are moved, never copied, so that all passes see them."""

    NOUN = "query"
    DIALECT = DIALECT
    PARSER = HistoryParser
    KINDS = _NODES
    ERROR = QueryError
    REFUSED = {  # noqa: RUF012
        TokenType.SEMICOLON: f"a second statement, {_EXPECTED}",
        TokenType.PIPE_GT: "|> is not supported",
        TokenType.HINT: "hints are not allowed here",
    }
    UNPARSED = "the query does not parse near {!r}"
    UNLISTED = "{} is not allowed in a query"

    sql: str

    def __init__(
        self,
        text: str,
        tenant: str,
        *,
        is_administrator: bool,
        is_for_all: bool,
        topic_filters: Sequence[str] | None,
        usage: Callable[[], str] | None,
    ) -> None:
        super().__init__(text, characters=MOST_CHARACTERS, depth=MOST_DEPTH)
        self.confinement = Confinement(
            self,
            tenant,
            is_administrator=is_administrator,
            is_for_all=is_for_all,
            topic_filters=topic_filters,
            usage=usage,
        )

    def check_beginning(self) -> None:
        """Refuse a text that is no query."""
        if not self.tokens:
            raise QueryError(f"the query is empty, {_EXPECTED}")
        first = self.tokens[0]
        if first.token_type not in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN):
            self.fail_at(first, f"the statement is {first.text.upper()}, {_EXPECTED}")

    def call_constructors(self) -> None:
        """Make `array(1, 2)[0]` a call with an index: the parser sees a type and its value."""
        for token, following in pairwise(self.tokens):
            if token.token_type in _CONSTRUCTORS and following.token_type == TokenType.L_PAREN:
                token.token_type = TokenType.VAR

    def name_windows(self) -> None:
        """Make WINDOW a name where it is none of a clause: `window(ts, '1 hour')`, its column."""
        for token, *behind in zip_longest(*(self.tokens[place:] for place in range(4))):
            kinds = [one and one.token_type for one in behind]
            is_clause = kinds[1:] == _DEFINES and kinds[0] != TokenType.DOT
            if token.token_type == TokenType.WINDOW and not is_clause:
                token.token_type = TokenType.VAR

    def check_statement(self) -> None:
        """Refuse a tree that is no query, or too large."""
        if not isinstance(self.tree, exp.Query):
            raise QueryError(f"this is no query, {_EXPECTED}")
        if sum(1 for _ in self.tree.walk()) > MOST_NODES:
            raise QueryError("the query is too long: too many names and operators")

    def check_nodes(self) -> None:
        """Check each node by the check of its kind."""
        for node in list(self.tree.walk()):
            check = _CHECKS.get(type(node))
            if check is not None:
                check(self, node)

    def check_costs(self) -> None:
        """Refuse a query that would cost too much as a whole."""
        problem = query_problem(self.tree)
        if problem is not None:
            raise QueryError(problem)

    def check_lengths(self) -> None:
        """Refuse a query that may make a value too long for Spark's memory."""
        Lengths(self.fail).check(self.tree)

    def name_fields(self) -> None:
        """Call fields of a payload without another name by their own: `payload:temp::double`."""
        for select in list(self.tree.find_all(exp.Select)):
            for item in list(select.expressions):
                name = _name_of(item)
                if name and "${" not in name:
                    named = exp.Alias(alias=exp.Identifier(this=name, quoted=True))
                    item.replace(named)
                    named.set("this", item)

    def check_queries(self) -> None:
        """Refuse queries of which Spark may make something else."""
        self.confinement.check_queries()

    def check_ctes(self) -> None:
        """Refuse the name of a table for a query of WITH."""
        self.confinement.check_ctes()

    def confine(self) -> None:
        """Put the rows in the place of each table."""
        self.confinement.confine()

    def write(self) -> None:
        self.sql = to_sql(self.tree)

    def proofread(self) -> None:
        """Refuse a query of which Spark would get a word that is neither quoted nor one of ours.

        A mistake between parser and generator would show as such a word.
        """
        known = ALLOWED | TABLE_FUNCTIONS | PATTERN_FUNCTIONS | _OWN_WORDS
        for sql in (self.sql, *self.confinement.travels):
            tokens: list[Token] = DIALECT.tokenize(sql)
            for token in tokens:
                is_quoted = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
                is_unknown = token.token_type == TokenType.VAR and token.text.lower() not in known
                if is_unknown or (not is_quoted and not token.text.isascii()):
                    raise QueryError(f"{token.text} is not understood")

    PASSES = (
        Reading.tokenize,
        check_beginning,
        Reading.check_tokens,
        Reading.check_depth,
        call_constructors,
        name_windows,
        Reading.check_tries,
        Reading.parse,
        check_statement,
        Reading.check_kinds,
        check_queries,
        check_ctes,
        check_nodes,
        check_costs,
        name_fields,
        confine,
        check_lengths,
        write,
        proofread,
    )

    # Nodes

    def check_call(self, node: exp.Anonymous) -> None:
        name = node.name.lower()
        if not node.name.isascii():  # what Spark would take it for is nothing that we know
            self.fail(node, f"function {node.name} is not allowed here")
        if isinstance(node.parent, exp.Dot) and node.arg_key == "expression":
            self.fail(node, f"function {name} is not allowed here: write it without a schema")
        problem = call_problem(name, node.expressions)
        if problem is not None:
            self.fail(node, f"{name}: {problem}")
        if name in PATTERN_FUNCTIONS:
            self._check_pattern(node, node.expressions, name)
        elif name in _INVOKER:
            self._check_topic_function(node)
        elif name not in ALLOWED and name not in TABLE_FUNCTIONS:
            self.fail(node, f"function {name} is not allowed here", HINTS.get(name, ""))
        elif name in _WITH_UNITS and len(node.expressions) == 3:
            self._check_unit(node)
        elif name == "range" and not isinstance(node.parent, exp.Table):
            self.fail(node, "range stands after FROM only")

    def _check_unit(self, node: exp.Anonymous) -> None:
        unit = node.expressions[0]
        name = folded(unit.name)
        if name not in _UNITS:
            self.fail(node, f"the first of 3 arguments of {node.name} is a unit, as DAY")
        unit.replace(exp.Var(this=name.upper()))

    def _check_topic_function(self, node: exp.Anonymous) -> None:
        arguments = node.expressions
        if len(arguments) != 2:
            self.fail(node, f"{node.name} takes 2 arguments, got {len(arguments)}")
        given = arguments[1]
        if node.name.lower() == TOPIC_MATCHES and is_text(given):
            try:
                validate_topic_filter(given.this)
            except InvalidTopic as exc:
                self.fail(node, f"not a topic filter: {exc}")
        # The functions are in the schema of the tables, which is not the one of the session.
        call = Verbatim(this=f"{CATALOG_SCHEMA}.{node.name.lower()}")
        node.set("this", call)

    def check_dot(self, node: exp.Dot | exp.Column) -> None:
        """Refuse what is no name behind a point: Spark reads a function of a schema there.

        Two texts, say, are one call: `reflect . 'a' 'b'` is written as `reflect.CONCAT('a', 'b')`.
        """
        last = node.expression if isinstance(node, exp.Dot) else node.this
        if not isinstance(last, exp.Identifier | exp.Star | exp.Anonymous):
            self.fail(node, "a name stands after a point, as in payload.level")

    def check_rlike(self, node: exp.RegexpLike) -> None:
        self._check_pattern(node, [node.this, node.args.get("expression")], "RLIKE")

    def _check_pattern(
        self, node: exp.Expr, arguments: Sequence[exp.Expr | None], shown: str
    ) -> None:
        """Put the pattern as it was understood in its place, and bound the text it searches."""
        subject, pattern, *_ = (*arguments, None, None)
        if subject is None or pattern is None or not is_text(pattern) or node.args.get("flag"):
            self.fail(node, f"the pattern of {shown} has to be written out")
        try:
            regex = Regex(pattern.this, MOST_PATTERN)
        except InvalidPattern as exc:
            self.fail(node, str(exc))
        _shorten(subject, regex.text_characters)
        pattern.replace(Verbatim(this=regex.java))

    def check_like(self, node: exp.Like | exp.ILike) -> None:
        pattern = node.expression
        if not is_text(pattern):
            self.fail(node, "the pattern of LIKE has to be written out")
        wildcards = re.sub(r"\\.", "", str(pattern.this)).count("%")
        if wildcards > _MOST_WILDCARDS:
            self.fail(node, f"LIKE takes at most {_MOST_WILDCARDS} of %")
        stripped = str(pattern.this).strip("%")
        if not set(stripped) & {"%", "_", "\\"}:
            return  # begins with, ends with, contains: Spark looks once
        _shorten(node.this, _LIKE_CHARACTERS[wildcards])

    def check_escape(self, node: exp.Escape) -> None:
        """Write the pattern with backslashes, which Spark takes without ESCAPE."""
        liked, pattern = node.this, node.this.expression
        if not isinstance(liked, exp.Like | exp.ILike) or not is_text(pattern):
            self.fail(node, "ESCAPE stands behind LIKE and a pattern that is written out")
        if not is_text(node.expression):
            self.fail(node, "ESCAPE takes one character, written out")
        try:
            written = like(pattern.this, node.expression.this)
        except InvalidPattern as exc:
            self.fail(node, str(exc))
        pattern.replace(exp.Literal.string(written))
        node.replace(liked)

    def check_type(self, node: exp.DataType) -> None:
        kind = node.this
        name = kind.name if isinstance(kind, exp.DType) else kind_of(node)
        if isinstance(kind, exp.IntervalSpan | exp.Interval):
            return
        if name not in _TYPES:
            self.fail(node, f"type {name} is not allowed here")

    def check_identifier(self, node: exp.Identifier) -> None:
        if "${" in node.name:
            self.fail(node, "a name must not hold ${")
        if folded(node.name) == _HIDDEN_COLUMN:
            self.fail(node, f"there is no column {node.name}")
        parent = node.parent
        is_bare = isinstance(parent, exp.Column) and not parent.table
        if is_bare and folded(node.name) in _ABOUT_SPARK:
            self.fail(node, f"write the column with its table: <table>.{node.name}")

    def check_var(self, node: exp.Var) -> None:
        if not re.fullmatch(r"[A-Za-z_ ]{1,40}", str(node.this)):
            self.fail(node, "this is not understood")

    def check_number(self, node: exp.Literal) -> None:
        if not node.is_string and not re.fullmatch(
            r"[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?[A-Za-z]{0,2}", str(node.this)
        ):
            self.fail(node, "a number that is not understood")

    def check_interval(self, node: exp.Interval) -> None:
        value = node.this.this if isinstance(node.this, exp.Neg) else node.this
        if value is not None and not isinstance(value, exp.Literal):
            self.fail(node, "INTERVAL takes a number or a text that is written out")

    def check_path(self, node: exp.JSONExtract) -> None:
        path = node.expression
        if not isinstance(path, exp.JSONPath) or path_of(path) is None:
            self.fail(node, "after a colon come names and indexes: payload:items[0].name")
        for segment in path_of(path) or ():
            if not is_expressible(segment):
                self.fail(node, "a name with both kinds of quotes is not supported")

    def check_with(self, node: exp.With) -> None:
        if node.args.get("recursive"):
            self.fail(node, "WITH RECURSIVE is not allowed here")
        query = node.parent
        if query is not None and isinstance(query.parent, exp.SetOperation):
            self.fail(node, "WITH after UNION, EXCEPT or INTERSECT stands in parentheses")
        names = [folded(cte.alias) for cte in node.expressions]
        for cte, name in zip(node.expressions, names, strict=True):
            if names.count(name) > 1:
                self.fail(cte.args["alias"], f"the name {cte.alias} is given twice")

    def check_group(self, node: exp.Group) -> None:
        problem = sets_problem(node)
        if problem is not None:
            self.fail(node, problem)

    def check_lateral(self, node: exp.Lateral) -> None:
        inner = node.this
        is_generator = isinstance(inner, exp.Anonymous) and inner.name.lower() in GENERATORS
        if not is_generator and not isinstance(inner, exp.Subquery):
            self.fail(node, "LATERAL takes a subquery or explode, inline, stack and the like")


def _name_of(item: exp.Expr) -> str:
    """Return the name of the field that an item of SELECT is; empty: it is none."""
    while isinstance(item, exp.Cast | exp.TryCast | exp.Paren):
        item = item.this
    path = path_of(item.expression) if isinstance(item, exp.JSONExtract) else None
    names = [one for one in path or () if isinstance(one, str)]
    return names[-1] if names else ""


def _shorten(subject: exp.Expr, characters: int) -> None:
    """Cut a text to a length that can be searched in time.

    It is moved, never copied: later checks have to see the nodes that Spark gets.
    """
    call = exp.Anonymous(this="left")
    subject.replace(call)
    call.set("expressions", [subject, exp.Literal.number(characters)])


_CHECKS: Final[dict[type[exp.Expr], Callable[..., None]]] = {
    exp.Anonymous: _Query.check_call,
    exp.Dot: _Query.check_dot,
    exp.Column: _Query.check_dot,
    exp.RegexpLike: _Query.check_rlike,
    exp.Like: _Query.check_like,
    exp.ILike: _Query.check_like,
    exp.Escape: _Query.check_escape,
    exp.DataType: _Query.check_type,
    exp.Identifier: _Query.check_identifier,
    exp.Var: _Query.check_var,
    exp.Literal: _Query.check_number,
    exp.Interval: _Query.check_interval,
    exp.JSONExtract: _Query.check_path,
    exp.With: _Query.check_with,
    exp.Lateral: _Query.check_lateral,
    exp.Group: _Query.check_group,
}
