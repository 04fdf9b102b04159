package mqlake.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import mqlake.Vocabulary;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.AliasIdentifier;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

import scala.Option;
import scala.Tuple3;
import scala.collection.immutable.Seq;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Reads statements as Spark does. In a session that has a list of functions it holds them to what
 * was given to them (rules/sql/confined.py).
 *
 * <p>A statement there begins with a comment that says whether it is mqlake's own, or which
 * relations it has, each with the SELECT of its rows. Those are read apart, and put in front of it
 * as queries of a WITH: so its text is nowhere part of a text that may name a table.
 */
final class ConfinedParser implements ParserInterface {
    /** Qualifier of the alias over the rows of a relation that was given. */
    static final String GIVEN = "mqlake_given";

    /** Qualifier of the alias over a confined statement. */
    static final String CONFINED = "mqlake_confined";

    private static final String END = "*/";
    private static final ObjectMapper JSON = new ObjectMapper();

    /** One of Spark's ways to read a statement. */
    private interface Reading {
        LogicalPlan read(String text) throws ParseException;
    }

    private final SparkSession session;
    private final ParserInterface parser;

    ConfinedParser(SparkSession session, ParserInterface parser) {
        this.session = session;
        this.parser = parser;
    }

    @Override
    public LogicalPlan parsePlan(String text) throws ParseException {
        return read(text, parser::parsePlan);
    }

    @Override
    public LogicalPlan parsePlanWithParameters(String text, ParameterContext parameters)
            throws ParseException {
        return read(text, one -> parser.parsePlanWithParameters(one, parameters));
    }

    private LogicalPlan read(String text, Reading reading) throws ParseException {
        Option<String> functions = session.conf().getOption(Vocabulary.FUNCTIONS_OPTION);
        if (functions.isEmpty()) {
            return reading.read(text);
        }
        if (text.startsWith(Vocabulary.OWN_STATEMENT)) {
            return reading.read(text.substring(Vocabulary.OWN_STATEMENT.length()));
        }
        int end = text.indexOf(END);
        if (!text.startsWith(Vocabulary.CONFINED_STATEMENT) || end < 0) {
            throw new IllegalArgumentException("the statement does not say what it may read");
        }
        String head = text.substring(Vocabulary.CONFINED_STATEMENT.length(), end);
        Set<String> known = Set.of(functions.get().split(","));
        return confined(strictly(reading, text.substring(end + END.length())), head, known);
    }

    /** Return a statement over the relations that its head gives. */
    private LogicalPlan confined(LogicalPlan plan, String head, Set<String> functions)
            throws ParseException {
        Set<String> names = new HashSet<>();
        List<Tuple3<String, SubqueryAlias, Option<Object>>> given = new ArrayList<>();
        for (Map.Entry<String, JsonNode> relation : relations(head)) {
            String name = relation.getKey();
            names.add(name.toLowerCase(Locale.ROOT));
            if (relation.getValue().isObject()) {
                LogicalPlan rows = rows(relation.getValue(), functions);
                given.add(new Tuple3<>(name, alias(name, GIVEN, rows), Option.empty()));
            }
        }
        new NamesCheck(functions, names, false).check(plan);
        LogicalPlan marked = alias("statement", CONFINED, plan);
        return given.isEmpty() ? marked : new UnresolvedWith(marked, Scala.sequence(given), false);
    }

    /** Return the rows of a relation: parts of their text are a user's, too. */
    private LogicalPlan rows(JsonNode relation, Set<String> functions) throws ParseException {
        Set<String> tables = new HashSet<>();
        relation.get("reads").forEach(table -> tables.add(table.textValue()));
        LogicalPlan plan = strictly(parser::parsePlan, relation.get("rows").textValue());
        new NamesCheck(functions, tables, true).check(plan);
        return OwnRows.guarded(plan);
    }

    /** Read a text in which reserved words are no names, as they are none to our own parser. */
    private static LogicalPlan strictly(Reading reading, String text) throws ParseException {
        SQLConf conf = SQLConf$.MODULE$.get().clone();
        conf.setConfString("spark.sql.ansi.enforceReservedKeywords", "true");
        AtomicReference<ParseException> failed = new AtomicReference<>();
        LogicalPlan plan =
                SQLConf$.MODULE$.withExistingConf(
                        conf,
                        () -> {
                            try {
                                return reading.read(text);
                            } catch (ParseException error) {
                                failed.set(error);
                                return null;
                            }
                        });
        if (plan == null) {
            throw failed.get();
        }
        return plan;
    }

    private static Set<Map.Entry<String, JsonNode>> relations(String head) {
        try {
            return JSON.readTree(head).properties();
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException("the head of the statement is no JSON", error);
        }
    }

    private static SubqueryAlias alias(String name, String qualifier, LogicalPlan plan) {
        return new SubqueryAlias(new AliasIdentifier(name, Scala.seq(qualifier)), plan);
    }

    // The rest is asked by Spark itself: texts of views, types, names.

    @Override
    public LogicalPlan parseQuery(String text) throws ParseException {
        return parser.parseQuery(text);
    }

    @Override
    public Expression parseExpression(String text) throws ParseException {
        return parser.parseExpression(text);
    }

    @Override
    public TableIdentifier parseTableIdentifier(String text) throws ParseException {
        return parser.parseTableIdentifier(text);
    }

    @Override
    public FunctionIdentifier parseFunctionIdentifier(String text) throws ParseException {
        return parser.parseFunctionIdentifier(text);
    }

    @Override
    public Seq<String> parseMultipartIdentifier(String text) throws ParseException {
        return parser.parseMultipartIdentifier(text);
    }

    @Override
    public StructType parseTableSchema(String text) throws ParseException {
        return parser.parseTableSchema(text);
    }

    @Override
    public DataType parseDataType(String text) throws ParseException {
        return parser.parseDataType(text);
    }

    @Override
    public StructType parseRoutineParam(String text) throws ParseException {
        return parser.parseRoutineParam(text);
    }
}
