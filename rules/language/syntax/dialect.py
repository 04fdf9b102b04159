"""The rule language as a dialect of sqlglot: its tokens, and the parser of its statements."""

from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import TokenType
from sqlglot.tokens import Tokenizer as BaseTokenizer

from rules.language.syntax.keywords import KEYWORDS
from rules.language.syntax.statements import RuleParser


class RuleDialect(Spark):
    """sqlglot's dialect of the rule language."""

    IDENTIFIERS_CAN_START_WITH_DIGIT = True

    class Tokenizer(BaseTokenizer):
        QUOTES = ["'"]  # noqa: RUF012 - sqlglot's declarations, here and below
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012
        STRING_ESCAPES = ["'"]  # noqa: RUF012
        HEX_STRINGS = []  # noqa: RUF012
        NUMERIC_LITERALS = {}  # noqa: RUF012
        COMMANDS = set()  # noqa: RUF012
        VAR_SINGLE_TOKENS = {"$"}  # noqa: RUF012
        KEYWORDS = {  # noqa: RUF012
            **KEYWORDS,
            "=>": TokenType.FARROW,
            "=~": TokenType.IRLIKE,
            "==": TokenType.EQ,
            "!=": TokenType.NEQ,
            "<>": TokenType.NEQ,
            "<=": TokenType.LTE,
            ">=": TokenType.GTE,
            "||": TokenType.DPIPE,
        }

    Parser = RuleParser
