package mqlake.rules;

import mqlake.Vocabulary;
import mqlake.decoding.DecodingFunctions;
import mqlake.decoding.PayloadDecoder;
import mqlake.spark.Bounds;
import mqlake.spark.Failures;
import mqlake.spark.NamesCheck;
import mqlake.spark.Scala;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.catalog.InMemoryCatalog;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection$;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.MutableProjection;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.StringSplit;
import org.apache.spark.sql.catalyst.expressions.StructsToJson;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateMutableProjection$;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.variant.VariantGet;
import org.apache.spark.sql.catalyst.optimizer.ConstantFolding$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions$;
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser$;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;

import scala.Function1;
import scala.Option;
import scala.runtime.AbstractPartialFunction;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.lang.ref.WeakReference;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Turns the Spark SQL of a rule into code, by Catalyst alone: it needs no session, so it works in
 * any executor.
 *
 * <p>What many rules ask of one message is taken out of them and becomes a column of the row,
 * computed once for a message and only when a rule gets as far as to need it: a field of the
 * payload from the first rule on, whatever else (a whole condition, say) from the second one that
 * has it.
 */
public final class RuleCompiler {
    /**
     * Columns that may be taken out of rules; more stay where they are. They are never given up.
     */
    private static final int MOST_SHARED = 4096;

    /** Parts of rules that are remembered; beyond that all are forgotten. */
    private static final int MOST_SEEN = 20000;

    /**
     * Operators of the least part that is worth a column of its own: to look one up costs something
     * too.
     */
    private static final int LEAST_SHARED = 3;

    /** An expression names no relation, and functions of the list alone. */
    private static final NamesCheck NAMES =
            new NamesCheck(Set.of(Vocabulary.RULE_FUNCTIONS.split(",")), Set.of(), false);

    private static final SQLConf CONF = conf();
    private static final SQLConf PLAIN = plain();
    private static final StructType SCHEMA = StructType.fromDDL(Vocabulary.COLUMNS);
    private static final LocalRelation ROW = LocalRelation$.MODULE$.apply(SCHEMA);

    /** Text to the rule compiled from it, while anybody holds it. */
    private static final ConcurrentHashMap<String, WeakReference<CompiledRule>> COMPILED =
            new ConcurrentHashMap<>();

    // Guarded by the lock: expression over the columns to its ordinal, and the other way round.
    private static final Object LOCK = new Object();
    private static final ConcurrentHashMap<Expression, Integer> SHARED = new ConcurrentHashMap<>();
    private static volatile SharedColumn[] shared = new SharedColumn[0];

    /** Parts of the rules that were compiled, as a set: those that may become columns. */
    private static final ConcurrentHashMap<Expression, Boolean> SEEN = new ConcurrentHashMap<>();

    static {
        // Only what is in this one registry counts as built in.
        DecodingFunctions.register();
    }

    private RuleCompiler() {}

    /**
     * Compile the expression of a rule.
     *
     * @throws IllegalArgumentException It is not Spark SQL over the columns, or not array<string>.
     */
    public static CompiledRule compile(String text) {
        WeakReference<CompiledRule> known = COMPILED.get(text);
        CompiledRule rule = known == null ? null : known.get();
        if (rule != null) {
            return rule;
        }
        try {
            rule =
                    SQLConf$.MODULE$.withExistingConf(
                            CONF,
                            () -> {
                                Expression resolved = resolved(text);
                                String schema = rowSchema(resolved);
                                Expression sharing = sharing(executable(resolved));
                                return new CompiledRule(schema, sharing, Guard.of(sharing));
                            });
        } catch (StackOverflowError error) {
            throw new IllegalArgumentException("the expression is nested too deeply", error);
        } catch (Exception error) { // Scala's are not declared
            throw new IllegalArgumentException(Failures.firstLine(error), error);
        }
        COMPILED.put(text, new WeakReference<>(rule));
        if (COMPILED.size() > 10000) {
            COMPILED.clear();
        }
        return rule;
    }

    /**
     * Compile several expressions over the columns, which are evaluated together.
     *
     * @throws IllegalArgumentException One of them is not Spark SQL over the columns.
     */
    public static CompiledColumns compileColumns(String[] texts) {
        try {
            return SQLConf$.MODULE$.withExistingConf(
                    CONF,
                    () -> {
                        Expression[] found = new Expression[texts.length];
                        for (int i = 0; i < found.length; i++) {
                            found[i] = executable(analyzed(texts[i]));
                        }
                        return new CompiledColumns(found);
                    });
        } catch (StackOverflowError error) {
            throw new IllegalArgumentException("an expression is nested too deeply", error);
        } catch (Exception error) { // Scala's are not declared
            throw new IllegalArgumentException(Failures.firstLine(error), error);
        }
    }

    /** Return the columns of the row that a query makes by to_json, as DDL; null without one. */
    public static String querySchema(LogicalPlan plan) {
        for (Expression expression : Scala.list(plan.expressions())) {
            String found = rowSchema(expression);
            if (found != null) {
                return found;
            }
        }
        for (LogicalPlan child : Scala.list(plan.children())) {
            String found = querySchema(child);
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    private static Expression resolved(String text) {
        Expression resolved = analyzed(text);
        if (!(resolved.dataType() instanceof ArrayType array)
                || !(array.elementType() instanceof StringType)) {
            throw new IllegalArgumentException(
                    "the expression gives "
                            + resolved.dataType().sql()
                            + ", expected ARRAY<STRING>");
        }
        return resolved;
    }

    private static Expression analyzed(String text) {
        Expression parsed = CatalystSqlParser$.MODULE$.parseExpression(text);
        NAMES.check(parsed);
        Analyzer analyzer =
                new Analyzer(
                        new SessionCatalog(
                                new InMemoryCatalog(new SparkConf(false), new Configuration(false)),
                                FunctionRegistry$.MODULE$.builtin()));
        LogicalPlan plan = analyzer.execute(project(parsed));
        analyzer.checkAnalysis(plan);
        return expression(plan);
    }

    private static Expression executable(Expression resolved) {
        LogicalPlan plan = ReplaceExpressions$.MODULE$.apply(project(Bounds.of(resolved)));
        plan = ConstantFolding$.MODULE$.apply(plan);
        return expression(plan).transformUp(new Binding());
    }

    private static LogicalPlan project(Expression expression) {
        Alias alias =
                new Alias(
                        expression,
                        "rows",
                        NamedExpression$.MODULE$.newExprId(),
                        Scala.seq(),
                        Option.empty(),
                        Scala.seq());
        return new Project(Scala.seq(alias), ROW);
    }

    private static Expression expression(LogicalPlan plan) {
        if (plan instanceof Project project
                && Scala.list(project.projectList()).get(0) instanceof Alias alias) {
            return alias.child();
        }
        throw new IllegalArgumentException("not an expression of one row");
    }

    /** Return the columns of an output row as DDL; null when it is not made by to_json. */
    private static String rowSchema(Expression expression) {
        List<Expression> children = Scala.list(expression.children());
        if (expression instanceof StructsToJson) {
            return children.get(0).dataType() instanceof StructType type ? type.toDDL() : null;
        }
        // Conditions stand before what they are for.
        for (int i = children.size() - 1; i >= 0; i--) {
            String found = rowSchema(children.get(i));
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    /** Replaces parts of an expression; each part is asked for. */
    private abstract static class Replacing
            extends AbstractPartialFunction<Expression, Expression> {
        /** Return what stands in the place of a part. */
        abstract Expression replaced(Expression part);

        @Override
        public boolean isDefinedAt(Expression part) {
            return true;
        }

        /** The result is a supertype of an expression, which Java's generics cannot say. */
        @Override
        @SuppressWarnings("unchecked")
        public <A1 extends Expression, B1> B1 applyOrElse(A1 part, Function1<A1, B1> otherwise) {
            return (B1) replaced(part);
        }
    }

    /** Replace columns by their ordinals, and what rules share by a column of its own. */
    private static final class Binding extends Replacing {
        @Override
        Expression replaced(Expression part) {
            if (part instanceof PlanExpression) {
                throw new IllegalArgumentException("a rule cannot hold a query");
            }
            if (part instanceof AttributeReference column) {
                return new BoundReference(
                        SCHEMA.fieldIndex(column.name()), column.dataType(), true);
            }
            return isShared(part) ? share(part, false) : part;
        }
    }

    private static boolean isShared(Expression node) {
        if (node instanceof Invoke invoke) {
            return isDecoding(invoke);
        }
        if (FieldKind.is(node)) {
            return true; // asked of a column that was taken out before
        }
        if (!(node instanceof VariantGet || node instanceof StringSplit || node instanceof Cast)) {
            return false;
        }
        List<Expression> children = Scala.list(node.children());
        if (!(children.get(0) instanceof BoundReference column)
                || column.ordinal() >= Vocabulary.COLUMN_COUNT) {
            return false;
        }
        if (node instanceof Cast) {
            return node.dataType() instanceof StringType
                    && column.ordinal() == Vocabulary.COLUMN_PAYLOAD;
        }
        return children.stream().skip(1).allMatch(Expression::foldable);
    }

    /** Tell whether the payload is decoded, which takes longer than what is then done with it. */
    private static boolean isDecoding(Invoke node) {
        List<Expression> arguments = Scala.list(node.arguments());
        return arguments.size() == 1
                && node.targetObject() instanceof Literal target
                && target.value() instanceof PayloadDecoder
                && arguments.get(0) instanceof BoundReference payload
                && payload.ordinal() == Vocabulary.COLUMN_PAYLOAD;
    }

    /** Take out of a rule what others have had too; the rule as a whole stays. */
    private static Expression sharing(Expression rule) {
        Expression found = rule.mapChildren(part -> part.transformDown(new Sharing()));
        Scala.list(rule.children()).forEach(RuleCompiler::remember);
        return found;
    }

    /** Replaces the largest parts that are known by columns. */
    private static final class Sharing extends Replacing {
        @Override
        Expression replaced(Expression part) {
            return SEEN.containsKey(part) ? share(part, true) : part;
        }
    }

    /** Remember the parts of a rule, for the next one that has the same. */
    private static void remember(Expression node) {
        if (SEEN.size() >= MOST_SEEN) {
            SEEN.clear();
        }
        if (operators(node, LEAST_SHARED) < LEAST_SHARED) {
            return; // nor have its children more
        }
        if (isWhole(node)) {
            SEEN.put(node, Boolean.TRUE);
        }
        Scala.list(node.children()).forEach(RuleCompiler::remember);
    }

    /**
     * Tell whether a part has one value for a message, wherever it stands. A negation stays, and
     * what it negates is taken out: a guard asks for what is true.
     */
    private static boolean isWhole(Expression node) {
        return node.deterministic()
                && !node.foldable()
                && !hasVariable(node)
                && !(node instanceof Not);
    }

    private static boolean hasVariable(Expression node) {
        return node instanceof NamedLambdaVariable
                || Scala.list(node.children()).stream().anyMatch(RuleCompiler::hasVariable);
    }

    /** Count what is neither a column nor a constant, up to a limit. */
    private static int operators(Expression node, int limit) {
        List<Expression> children = Scala.list(node.children());
        int count = children.isEmpty() ? 0 : 1;
        for (int i = 0; count < limit && i < children.size(); i++) {
            count += operators(children.get(i), limit - count);
        }
        return count;
    }

    private static Expression share(Expression node, boolean isWorthCode) {
        Integer ordinal = SHARED.get(node);
        if (ordinal == null) {
            synchronized (LOCK) {
                ordinal = SHARED.get(node);
                if (ordinal == null) {
                    if (shared.length >= MOST_SHARED) {
                        return node;
                    }
                    ordinal = Vocabulary.COLUMN_COUNT + shared.length;
                    SharedColumn[] longer = new SharedColumn[shared.length + 1];
                    System.arraycopy(shared, 0, longer, 0, shared.length);
                    longer[shared.length] = column(node, new LaneCode(node, isWorthCode));
                    shared = longer;
                    SHARED.put(node, ordinal);
                }
            }
        }
        return new BoundReference(ordinal, node.dataType(), true);
    }

    private static SharedColumn column(Expression node, LaneCode catalyst) {
        SharedColumn known = PayloadField.of(node, catalyst);
        known = known == null ? FieldKind.of(node, catalyst) : known;
        return known == null ? catalyst : known;
    }

    /** Return what computes a column that rules share. */
    static SharedColumn sharedColumn(int ordinal) {
        return shared[ordinal - Vocabulary.COLUMN_COUNT];
    }

    /** Return code for some expressions; it is for one thread at a time. */
    static MutableProjection generate(Expression... expressions) {
        return SQLConf$.MODULE$.withExistingConf(
                CONF,
                () -> GenerateMutableProjection$.MODULE$.generate(Scala.seq(expressions), true));
    }

    /**
     * Return what evaluates an expression without code of its own; it is for one thread at a time.
     */
    static MutableProjection interpret(Expression expression) {
        return SQLConf$.MODULE$.withExistingConf(
                PLAIN,
                () ->
                        InterpretedMutableProjection$.MODULE$.createProjection(
                                Scala.seq(expression)));
    }

    /**
     * Copy an expression with all that it holds while it is evaluated, as Spark does for each task.
     */
    static Expression copy(Expression expression) {
        try {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            ObjectOutputStream out = new ObjectOutputStream(bytes);
            out.writeObject(expression);
            out.close();
            return (Expression)
                    new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))
                            .readObject();
        } catch (IOException | ClassNotFoundException error) {
            throw new IllegalStateException("an expression cannot be copied", error);
        }
    }

    private static SQLConf conf() {
        // As rules are tested and run over history: Spark's defaults, times in UTC, reserved words.
        SQLConf conf = new SQLConf();
        conf.setConfString("spark.sql.session.timeZone", "UTC");
        conf.setConfString("spark.sql.ansi.enforceReservedKeywords", "true");
        return conf;
    }

    /**
     * For the interpreter, whose way to compute once what stands twice costs more than it saves.
     */
    private static SQLConf plain() {
        SQLConf conf = conf();
        conf.setConfString("spark.sql.subexpressionElimination.enabled", "false");
        return conf;
    }
}
