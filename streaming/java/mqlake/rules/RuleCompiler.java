package mqlake.rules;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.lang.ref.WeakReference;
import java.util.concurrent.ConcurrentHashMap;
import mqlake.bounds.Bounds;
import mqlake.bounds.Failures;
import mqlake.decoding.DecodingFunctions;
import mqlake.decoding.PayloadDecoder;
import mqlake.spark.Scala;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
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
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.List;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * Turns the Spark SQL of a rule into code, by Catalyst alone: it needs no session, so it works in any
 * executor.
 *
 * What many rules ask of one message is taken out of them and becomes a column of the row, computed once
 * for a message and only when a rule gets as far as to need it: a field of the payload from the first
 * rule on, whatever else (a whole condition, say) from the second one that has it.
 */
public final class RuleCompiler {
    /** Columns that may be taken out of rules; more stay where they are. They are never given up. */
    private static final int MOST_SHARED = 4096;
    /** Parts of rules that are remembered; beyond that all are forgotten. */
    private static final int MOST_SEEN = 20000;
    /** Operators of the least part that is worth a column of its own: to look one up costs something too. */
    private static final int LEAST_SHARED = 3;

    private static final SQLConf CONF = conf();
    private static final FunctionRegistry FUNCTIONS = functions();
    private static final SQLConf PLAIN = plain();
    private static final StructType SCHEMA = StructType.fromDDL(MessageRow.COLUMNS);
    private static final LocalRelation ROW = LocalRelation$.MODULE$.apply(SCHEMA);
    /** Text to the rule compiled from it, while anybody holds it. */
    private static final ConcurrentHashMap<String, WeakReference<CompiledRule>> COMPILED =
            new ConcurrentHashMap<String, WeakReference<CompiledRule>>();

    // Guarded by the lock: expression over the columns to its ordinal, and the other way round.
    private static final Object LOCK = new Object();
    private static final ConcurrentHashMap<Expression, Integer> SHARED =
            new ConcurrentHashMap<Expression, Integer>();
    private static volatile SharedColumn[] shared = new SharedColumn[0];
    /** Parts of the rules that were compiled, as a set: those that may become columns. */
    private static final ConcurrentHashMap<Expression, Boolean> SEEN =
            new ConcurrentHashMap<Expression, Boolean>();

    private RuleCompiler() {
    }

    /** Return the columns that an expression may use, as DDL. */
    public static String columns() {
        return MessageRow.COLUMNS;
    }

    /**
     * Compile the expression of a rule.
     *
     * @throws IllegalArgumentException It is not Spark SQL over the columns, or not array<string>.
     */
    public static CompiledRule compile(final String text) {
        WeakReference<CompiledRule> known = (WeakReference<CompiledRule>) COMPILED.get(text);
        CompiledRule rule = known == null ? null : (CompiledRule) known.get();
        if (rule != null) {
            return rule;
        }
        try {
            rule = (CompiledRule) SQLConf$.MODULE$.withExistingConf(CONF, new AbstractFunction0() {
                public Object apply() {
                    Expression resolved = resolved(text);
                    String schema = rowSchema(resolved);
                    Expression bound = executable(resolved);
                    Expression sharing = sharing(bound);
                    return new CompiledRule(schema, sharing, Guard.of(sharing));
                }
            });
        } catch (StackOverflowError error) {
            throw new IllegalArgumentException("the expression is nested too deeply", error);
        } catch (Exception error) { // Scala's are not declared
            throw new IllegalArgumentException(Failures.firstLine(error), error);
        }
        COMPILED.put(text, new WeakReference<CompiledRule>(rule));
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
    public static CompiledColumns compileColumns(final String[] texts) {
        try {
            return (CompiledColumns) SQLConf$.MODULE$.withExistingConf(CONF, new AbstractFunction0() {
                public Object apply() {
                    Expression[] found = new Expression[texts.length];
                    for (int i = 0; i < found.length; i++) {
                        found[i] = executable(analyzed(texts[i]));
                    }
                    return new CompiledColumns(found);
                }
            });
        } catch (StackOverflowError error) {
            throw new IllegalArgumentException("an expression is nested too deeply", error);
        } catch (Exception error) { // Scala's are not declared
            throw new IllegalArgumentException(Failures.firstLine(error), error);
        }
    }

    /** Return the columns of the row that a query makes by to_json, as DDL; null without one. */
    public static String querySchema(LogicalPlan plan) {
        Iterator expressions = plan.expressions().iterator();
        while (expressions.hasNext()) {
            String found = rowSchema((Expression) expressions.next());
            if (found != null) {
                return found;
            }
        }
        Iterator children = plan.children().iterator();
        while (children.hasNext()) {
            String found = querySchema((LogicalPlan) children.next());
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    private static Expression resolved(String text) {
        Expression resolved = analyzed(text);
        if (!(resolved.dataType() instanceof ArrayType)
                || !(((ArrayType) resolved.dataType()).elementType() instanceof StringType)) {
            throw new IllegalArgumentException(
                    "the expression gives " + resolved.dataType().sql() + ", expected ARRAY<STRING>");
        }
        return resolved;
    }

    private static Expression analyzed(String text) {
        Expression parsed = CatalystSqlParser$.MODULE$.parseExpression(text);
        Analyzer analyzer = new Analyzer(
                new SessionCatalog(
                        new InMemoryCatalog(new SparkConf(false), new Configuration(false)),
                        FunctionRegistry$.MODULE$.builtin()));
        LogicalPlan plan = (LogicalPlan) analyzer.execute(project(parsed));
        analyzer.checkAnalysis(plan);
        return expression(plan);
    }

    private static Expression executable(Expression resolved) {
        LogicalPlan plan = ReplaceExpressions$.MODULE$.apply(project(Bounds.of(resolved)));
        plan = ConstantFolding$.MODULE$.apply(plan);
        return (Expression) expression(plan).transformUp(new Binding());
    }

    private static LogicalPlan project(Expression expression) {
        Alias alias = new Alias(
                expression, "rows", NamedExpression$.MODULE$.newExprId(),
                (Seq) Nil$.MODULE$, Option.empty(), (Seq) Nil$.MODULE$);
        return new Project(Nil$.MODULE$.$colon$colon(alias), ROW);
    }

    private static Expression expression(LogicalPlan plan) {
        if (!(plan instanceof Project)) {
            throw new IllegalArgumentException("not an expression of one row");
        }
        return ((Alias) Scala.list(((Project) plan).projectList()).get(0)).child();
    }

    /** Return the columns of an output row as DDL; null when it is not made by to_json. */
    private static String rowSchema(Expression expression) {
        if (expression instanceof StructsToJson) {
            Object type = ((Expression) Scala.list(expression.children()).get(0)).dataType();
            return type instanceof StructType ? ((StructType) type).toDDL() : null;
        }
        // Conditions stand before what they are for.
        for (int i = Scala.list(expression.children()).size() - 1; i >= 0; i--) {
            String found = rowSchema((Expression) Scala.list(expression.children()).get(i));
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    /** Replace columns by their ordinals, and what rules share by a column of its own. */
    private static final class Binding extends AbstractPartialFunction {
        public boolean isDefinedAt(Object node) {
            return true;
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            if (node instanceof PlanExpression) {
                throw new IllegalArgumentException("a rule cannot hold a query");
            }
            if (node instanceof AttributeReference) {
                AttributeReference column = (AttributeReference) node;
                return new BoundReference(
                        SCHEMA.fieldIndex(column.name()), column.dataType(), true);
            }
            return isShared((Expression) node) ? share((Expression) node, false) : node;
        }
    }

    private static boolean isShared(Expression node) {
        if (node instanceof Invoke) {
            return isDecoding((Invoke) node);
        }
        if (FieldKind.is(node)) {
            return true; // asked of a column that was taken out before
        }
        if (!(node instanceof VariantGet || node instanceof StringSplit || node instanceof Cast)) {
            return false;
        }
        Object child = Scala.list(node.children()).get(0);
        if (!(child instanceof BoundReference)
                || ((BoundReference) child).ordinal() >= MessageRow.COLUMN_COUNT) {
            return false;
        }
        if (node instanceof Cast) {
            return node.dataType() instanceof StringType
                    && ((BoundReference) child).ordinal() == MessageRow.PAYLOAD;
        }
        for (int i = 1; i < Scala.list(node.children()).size(); i++) {
            if (!((Expression) Scala.list(node.children()).get(i)).foldable()) {
                return false;
            }
        }
        return true;
    }

    /** Tell whether the payload is decoded, which takes longer than what is then done with it. */
    private static boolean isDecoding(Invoke node) {
        if (Scala.list(node.arguments()).size() != 1) {
            return false;
        }
        Object payload = Scala.list(node.arguments()).get(0);
        return node.targetObject() instanceof Literal
                && ((Literal) node.targetObject()).value() instanceof PayloadDecoder
                && payload instanceof BoundReference
                && ((BoundReference) payload).ordinal() == MessageRow.PAYLOAD;
    }

    /** Take out of a rule what others have had too; the rule as a whole stays. */
    private static Expression sharing(Expression rule) {
        Expression found = (Expression) rule.mapChildren(new AbstractFunction1() {
            public Object apply(Object part) {
                return ((Expression) part).transformDown(new Sharing());
            }
        });
        for (int i = 0; i < Scala.list(rule.children()).size(); i++) {
            remember((Expression) Scala.list(rule.children()).get(i));
        }
        return found;
    }

    /** Replaces the largest parts that are known by columns. */
    private static final class Sharing extends AbstractPartialFunction {
        public boolean isDefinedAt(Object node) {
            return true;
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            Expression part = (Expression) node;
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
        for (int i = 0; i < Scala.list(node.children()).size(); i++) {
            remember((Expression) Scala.list(node.children()).get(i));
        }
    }

    /**
     * Tell whether a part has one value for a message, wherever it stands. A negation stays, and what it
     * negates is taken out: a guard asks for what is true.
     */
    private static boolean isWhole(Expression node) {
        return node.deterministic() && !node.foldable() && !hasVariable(node)
                && !(node instanceof Not);
    }

    private static boolean hasVariable(Expression node) {
        if (node instanceof NamedLambdaVariable) {
            return true;
        }
        for (int i = 0; i < Scala.list(node.children()).size(); i++) {
            if (hasVariable((Expression) Scala.list(node.children()).get(i))) {
                return true;
            }
        }
        return false;
    }

    /** Count what is neither a column nor a constant, up to a limit. */
    private static int operators(Expression node, int limit) {
        if (Scala.list(node.children()).isEmpty()) {
            return 0;
        }
        int count = 1;
        for (int i = 0; count < limit && i < Scala.list(node.children()).size(); i++) {
            count += operators((Expression) Scala.list(node.children()).get(i), limit - count);
        }
        return count;
    }

    private static Expression share(Expression node, boolean isWorthCode) {
        Integer ordinal = (Integer) SHARED.get(node);
        if (ordinal == null) {
            synchronized (LOCK) {
                ordinal = (Integer) SHARED.get(node);
                if (ordinal == null) {
                    if (shared.length >= MOST_SHARED) {
                        return node;
                    }
                    ordinal = Integer.valueOf(MessageRow.COLUMN_COUNT + shared.length);
                    SharedColumn[] longer = new SharedColumn[shared.length + 1];
                    System.arraycopy(shared, 0, longer, 0, shared.length);
                    longer[shared.length] = column(node, new LaneCode(node, isWorthCode));
                    shared = longer;
                    SHARED.put(node, ordinal);
                }
            }
        }
        return new BoundReference(ordinal.intValue(), node.dataType(), true);
    }

    private static SharedColumn column(Expression node, LaneCode catalyst) {
        SharedColumn known = PayloadField.of(node, catalyst);
        known = known == null ? FieldKind.of(node, catalyst) : known;
        return known == null ? catalyst : known;
    }

    /** Return what computes a column that rules share. */
    static SharedColumn sharedColumn(int ordinal) {
        return shared[ordinal - MessageRow.COLUMN_COUNT];
    }

    /** Return code for some expressions; it is for one thread at a time. */
    static MutableProjection generate(final Expression[] expressions) {
        return (MutableProjection) SQLConf$.MODULE$.withExistingConf(CONF, new AbstractFunction0() {
            public Object apply() {
                List listed = Nil$.MODULE$;
                for (int i = expressions.length - 1; i >= 0; i--) {
                    listed = listed.$colon$colon(expressions[i]);
                }
                return GenerateMutableProjection$.MODULE$.generate(listed, true);
            }
        });
    }

    /** Return what evaluates an expression without code of its own; it is for one thread at a time. */
    static MutableProjection interpret(final Expression expression) {
        return (MutableProjection) SQLConf$.MODULE$.withExistingConf(PLAIN, new AbstractFunction0() {
            public Object apply() {
                return InterpretedMutableProjection$.MODULE$.createProjection(
                        Nil$.MODULE$.$colon$colon(expression));
            }
        });
    }

    /** Copy an expression with all that it holds while it is evaluated, as Spark does for each task. */
    static Expression copy(Expression expression) {
        try {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            ObjectOutputStream out = new ObjectOutputStream(bytes);
            out.writeObject(expression);
            out.close();
            return (Expression)
                    new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray())).readObject();
        } catch (IOException error) {
            throw new IllegalStateException("an expression cannot be copied", error);
        } catch (ClassNotFoundException error) {
            throw new IllegalStateException("an expression cannot be copied", error);
        }
    }

    private static FunctionRegistry functions() {
        // Only what is in this one registry counts as built in.
        FunctionRegistry functions = FunctionRegistry$.MODULE$.builtin();
        DecodingFunctions.register(functions);
        return functions;
    }

    private static SQLConf conf() {
        // As rules are tested and run over history: Spark's defaults, times in UTC.
        SQLConf conf = new SQLConf();
        conf.setConfString("spark.sql.session.timeZone", "UTC");
        return conf;
    }

    /** For the interpreter, whose way to compute once what stands twice costs more than it saves. */
    private static SQLConf plain() {
        SQLConf conf = conf();
        conf.setConfString("spark.sql.subexpressionElimination.enabled", "false");
        return conf;
    }
}
