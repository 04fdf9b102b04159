package mqlake.rules;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.util.ArrayData;

/** A rule that can be evaluated, and what its rows are like. */
public final class CompiledRule {
    private final String schema;
    private final LaneCode code;
    final Guard[] guards;

    /** The guards are its first conditions: without them there is no row. */
    CompiledRule(String schema, Expression expression, Guard[] guards) {
        this.schema = schema;
        this.code = new LaneCode(expression, true);
        this.guards = guards;
    }

    /** Return the columns of an output row as DDL; null when they are not known. */
    public String schema() {
        return schema;
    }

    /** Return how many conditions are looked at before the rule itself is evaluated. */
    public int guardCount() {
        return guards.length;
    }

    /** Tell whether evaluators are generated code. */
    public boolean isGenerated() {
        return code.isGenerated();
    }

    /**
     * Evaluate the rule on a lane's row.
     *
     * @return The output rows as strings; null when there are none.
     */
    ArrayData evaluate(Lane lane) {
        for (int i = 0; i < guards.length; i++) {
            if (!guards[i].holds(lane.row)) {
                return null;
            }
        }
        return (ArrayData) code.evaluate(lane);
    }
}
