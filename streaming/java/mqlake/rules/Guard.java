package mqlake.rules;

import java.util.ArrayList;
import mqlake.spark.Scala;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.CaseWhen;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StringType$;
import scala.Tuple2;

/**
 * A condition that a column of the message has one value. Most rules say no to most messages; those
 * whose first conditions are such (columns that rules share are, too) say so without code of their own,
 * which for hundreds of rules would be in no cache of the processor.
 */
final class Guard {
    final int ordinal;
    final Object wanted;

    private Guard(int ordinal, Object wanted) {
        this.ordinal = ordinal;
        this.wanted = wanted;
    }

    boolean holds(MessageRow row) {
        return wanted.equals(row.genericGet(ordinal));
    }

    /**
     * Return the guards of a rule: those conditions that it looks at first, in its order, so that what
     * fails still fails. Not every one of them: where another one comes before, it ends.
     */
    static Guard[] of(Expression rule) {
        ArrayList<Guard> guards = new ArrayList<Guard>();
        if (rule instanceof CaseWhen && Scala.list(((CaseWhen) rule).branches()).size() == 1
                && ((CaseWhen) rule).elseValue().isEmpty()) {
            Tuple2 branch = (Tuple2) Scala.list(((CaseWhen) rule).branches()).get(0);
            addAll((Expression) branch._1(), guards);
        }
        return (Guard[]) guards.toArray(new Guard[guards.size()]);
    }

    /** Add the guards of what has to be true; tell whether they are all that it asks. */
    private static boolean addAll(Expression condition, ArrayList<Guard> guards) {
        if (condition instanceof And) {
            return addAll(((And) condition).left(), guards)
                    && addAll(((And) condition).right(), guards);
        }
        if (condition instanceof Coalesce && Scala.list(condition.children()).size() == 2
                && isFalse((Expression) Scala.list(condition.children()).get(1))) {
            return addAll((Expression) Scala.list(condition.children()).get(0), guards);
        }
        if (condition instanceof CaseWhen) {
            return addEach((CaseWhen) condition, guards);
        }
        if (condition instanceof BoundReference && condition.dataType() instanceof BooleanType) {
            guards.add(new Guard(((BoundReference) condition).ordinal(), Boolean.TRUE));
            return true;
        }
        return condition instanceof EqualTo && addEqual((EqualTo) condition, guards);
    }

    /** Add those of conditions of which each is asked only if the ones before are true. */
    private static boolean addEach(CaseWhen conditions, ArrayList<Guard> guards) {
        for (int i = 0; i < Scala.list(conditions.branches()).size(); i++) {
            Tuple2 branch = (Tuple2) Scala.list(conditions.branches()).get(i);
            if (!(branch._1() instanceof Not) || !isFalse((Expression) branch._2())
                    || !addAll(((Not) branch._1()).child(), guards)) {
                return false;
            }
        }
        return conditions.elseValue().isDefined()
                && addAll((Expression) conditions.elseValue().get(), guards);
    }

    private static boolean addEqual(EqualTo condition, ArrayList<Guard> guards) {
        Expression column = condition.left();
        Expression value = condition.right();
        if (!(column instanceof BoundReference) || !(value instanceof Literal)
                || ((Literal) value).value() == null || !isComparedByEquals(column.dataType())) {
            return false;
        }
        guards.add(new Guard(((BoundReference) column).ordinal(), ((Literal) value).value()));
        return true;
    }

    /** Tell whether Catalyst's equality is that of Java: not of fractions, with their two zeros. */
    private static boolean isComparedByEquals(DataType type) {
        return type instanceof LongType || type instanceof IntegerType
                || type.equals(StringType$.MODULE$);
    }

    private static boolean isFalse(Expression expression) {
        return expression instanceof Literal
                && Boolean.FALSE.equals(((Literal) expression).value());
    }
}
