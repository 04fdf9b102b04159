package mqlake.streaming;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.MutableProjection;
import org.apache.spark.sql.catalyst.util.ArrayData;

/** The code of a rule: one evaluator for each lane, because generated code is not thread-safe. */
public final class CompiledRule {
    private final String schema;
    private final Expression expression;
    private final Object lock = new Object();
    /** By number of the lane. */
    private volatile MutableProjection[] evaluators = new MutableProjection[0];

    CompiledRule(String schema, Expression expression) {
        this.schema = schema;
        this.expression = expression;
        evaluator(0); // what does not compile is to be known now
    }

    /** Return the columns of an output row as DDL; null when they are not known. */
    public String schema() {
        return schema;
    }

    /**
     * Evaluate the rule on a lane's row.
     *
     * @return The output rows as strings; null when there are none.
     */
    ArrayData evaluate(Lane lane) {
        MutableProjection[] current = evaluators;
        MutableProjection evaluator = lane.number < current.length ? current[lane.number] : null;
        if (evaluator == null) {
            evaluator = evaluator(lane.number);
        }
        evaluator.target(lane.result);
        evaluator.apply(lane.row);
        return (ArrayData) lane.result.genericGet(0);
    }

    private MutableProjection evaluator(int number) {
        synchronized (lock) {
            MutableProjection[] old = evaluators;
            if (number < old.length && old[number] != null) {
                return old[number];
            }
            MutableProjection evaluator = RuleCompiler.generate(RuleCompiler.copy(expression));
            // For what is random: each lane has its own sequence.
            evaluator.initialize(number);
            MutableProjection[] longer = new MutableProjection[Math.max(old.length, number + 1)];
            System.arraycopy(old, 0, longer, 0, old.length);
            longer[number] = evaluator;
            evaluators = longer;
            return evaluator;
        }
    }
}
