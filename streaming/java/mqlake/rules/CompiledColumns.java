package mqlake.rules;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.MutableProjection;

/** Code of several expressions over a message, evaluated together; one evaluator for each lane. */
public final class CompiledColumns {
    private final Expression[] expressions;
    private final Object lock = new Object();

    /** By number of the lane. */
    private volatile MutableProjection[] evaluators = new MutableProjection[0];

    CompiledColumns(Expression[] expressions) {
        this.expressions = expressions;
        evaluator(0); // what does not compile is to be known now
    }

    /** Evaluate all of them on a lane's row; values are as Catalyst has them. */
    public Object[] evaluate(Lane lane) {
        MutableProjection[] current = evaluators;
        MutableProjection evaluator = lane.number < current.length ? current[lane.number] : null;
        if (evaluator == null) {
            evaluator = evaluator(lane.number);
        }
        Object[] values = new Object[expressions.length];
        evaluator.target(new GenericInternalRow(values));
        evaluator.apply(lane.row);
        return values;
    }

    private MutableProjection evaluator(int number) {
        synchronized (lock) {
            MutableProjection[] old = evaluators;
            if (number < old.length && old[number] != null) {
                return old[number];
            }
            Expression[] copies = new Expression[expressions.length];
            for (int i = 0; i < copies.length; i++) {
                copies[i] = RuleCompiler.copy(expressions[i]);
            }
            MutableProjection evaluator = RuleCompiler.generate(copies);
            evaluator.initialize(number);
            MutableProjection[] longer = new MutableProjection[Math.max(old.length, number + 1)];
            System.arraycopy(old, 0, longer, 0, old.length);
            longer[number] = evaluator;
            evaluators = longer;
            return evaluator;
        }
    }
}
