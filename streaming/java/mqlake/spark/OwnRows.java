package mqlake.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

import scala.Option;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;

/**
 * Asks of each row whose it is before it asks anything else of it.
 *
 * <p>Spark puts the conditions of a query and those of its relations into one filter, and computes
 * what it likes first: what it has inferred, what stands twice. An expression that fails tells the
 * value it has failed on. So the condition of a relation that was given is also put into a call of
 * a function that Spark knows nothing of, which moves with it wherever the optimizer brings it. At
 * the end, when the plan is made, the filter that has it is taken apart: first that condition, then
 * the rest. Conditions that the scan can take reach it as before. A call knows the columns that it
 * was made for: Spark may copy it to what it takes for equal, and what is copied tells nothing.
 */
public final class OwnRows extends Rule<SparkPlan> {
    /** On no list: a user cannot call it. */
    private static final String FUNCTION = "mqlake_own";

    static void inject(SparkSessionExtensions session) {
        StaticFunction.inject(session, OwnRows.class, "isOwn", FUNCTION, DataTypes.BooleanType);
        session.injectColumnar(
                one ->
                        new ColumnarRule() {
                            @Override
                            public Rule<SparkPlan> preColumnarTransitions() {
                                return new OwnRows();
                            }
                        });
    }

    /** Called by the code that Spark generates. */
    public static boolean isOwn(boolean condition, UTF8String columns) {
        return condition;
    }

    /** Have conditions on the rows of tables, as the parser has made them, asked first. */
    static LogicalPlan guarded(LogicalPlan rows) {
        List<LogicalPlan> children = new ArrayList<>();
        Scala.list(rows.children()).forEach(child -> children.add(guarded(child)));
        LogicalPlan made = rows.withNewChildren(Scala.sequence(children));
        if (!(made instanceof Filter filter) || !Scala.list(filter.child().children()).isEmpty()) {
            return made;
        }
        Set<String> columns = new TreeSet<>();
        collectColumns(filter.condition(), columns);
        Expression own =
                new UnresolvedFunction(
                        Scala.seq(FUNCTION),
                        Scala.seq(filter.condition(), text(String.join(",", columns))),
                        false,
                        Option.empty(),
                        Option.empty(),
                        Scala.seq(),
                        false);
        return new Filter(new And(filter.condition(), own), filter.child());
    }

    private static Literal text(String value) {
        return new Literal(UTF8String.fromString(value), DataTypes.StringType);
    }

    private static void collectColumns(Expression expression, Set<String> columns) {
        if (expression instanceof Attribute column) {
            columns.add(column.name().toLowerCase(Locale.ROOT));
        }
        Scala.list(expression.children()).forEach(child -> collectColumns(child, columns));
    }

    @Override
    public SparkPlan apply(SparkPlan plan) {
        SparkPlan made = plan.mapChildren(this::apply);
        return made instanceof FilterExec filter ? apart(filter) : made;
    }

    /** Return a filter as several, those that tell whose a row is below the rest. */
    private static SparkPlan apart(FilterExec filter) {
        List<Expression> found = new ArrayList<>();
        collect(filter.condition(), found);
        if (found.isEmpty()) {
            return filter;
        }
        List<Expression> calls =
                found.stream()
                        .filter(call -> isAsMade(call) && implies(filter.condition(), call))
                        .toList();
        if (calls.isEmpty()) {
            throw new IllegalStateException("it is not clear whose rows this query may read");
        }
        SparkPlan made = filter.child();
        for (Expression call : calls) {
            made = new FilterExec(call, made);
        }
        Expression rest = without(filter.condition(), calls);
        return rest == null ? made : new FilterExec(rest, made);
    }

    /** Collect the calls in an expression, each once. */
    private static void collect(Expression expression, List<Expression> calls) {
        if (expression instanceof StaticInvoke call && call.staticObject() == OwnRows.class) {
            if (calls.stream().noneMatch(call::semanticEquals)) {
                calls.add(call);
            }
            return;
        }
        Scala.list(expression.children()).forEach(child -> collect(child, calls));
    }

    /** Tell whether a call asks of the columns that it was made for, and of no other. */
    private static boolean isAsMade(Expression call) {
        List<Expression> arguments = Scala.list(call.children());
        Set<String> columns = new TreeSet<>();
        collectColumns(arguments.get(0), columns);
        return arguments.get(1) instanceof Literal made
                && String.join(",", columns).equals(String.valueOf(made.value()));
    }

    /** Tell whether a call is true wherever a condition is. */
    private static boolean implies(Expression condition, Expression call) {
        if (condition instanceof And and) {
            return implies(and.left(), call) || implies(and.right(), call);
        }
        if (condition instanceof Or or) {
            return implies(or.left(), call) && implies(or.right(), call);
        }
        return condition.semanticEquals(call);
    }

    /** Return what a conjunction asks beside what the calls ask; null: nothing. */
    private static Expression without(Expression condition, List<Expression> calls) {
        if (condition instanceof And and) {
            Expression left = without(and.left(), calls);
            Expression right = without(and.right(), calls);
            if (left == null || right == null) {
                return left == null ? right : left;
            }
            return new And(left, right);
        }
        return calls.stream().anyMatch(call -> asks(call, condition)) ? null : condition;
    }

    /** Tell whether an expression is a condition, or has it as a part of a conjunction. */
    private static boolean asks(Expression expression, Expression condition) {
        boolean isJoint = expression instanceof And || expression instanceof StaticInvoke;
        return expression.semanticEquals(condition)
                || isJoint
                        && Scala.list(expression.children()).stream()
                                .anyMatch(child -> asks(child, condition));
    }
}
