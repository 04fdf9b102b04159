package mqlake.rules;

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

import java.util.ArrayList;
import java.util.List;

/**
 * A condition that a column of the message has one value. Most rules say no to most messages; those
 * whose first conditions are such (columns that rules share are, too) say so without code of their
 * own, which for hundreds of rules would be in no cache of the processor.
 */
record Guard(int ordinal, Object wanted) {
    boolean holds(MessageRow row) {
        return wanted.equals(row.genericGet(ordinal));
    }

    /**
     * Return the guards of a rule: those conditions that it looks at first, in its order, so that
     * what fails still fails. Not every one of them: where another one comes before, it ends.
     */
    static Guard[] of(Expression rule) {
        ArrayList<Guard> guards = new ArrayList<>();
        if (rule instanceof CaseWhen when
                && Scala.list(when.branches()).size() == 1
                && when.elseValue().isEmpty()) {
            addAll(Scala.list(when.branches()).get(0)._1(), guards);
        }
        return guards.toArray(new Guard[0]);
    }

    /** Add the guards of what has to be true; tell whether they are all that it asks. */
    private static boolean addAll(Expression condition, ArrayList<Guard> guards) {
        if (condition instanceof And and) {
            return addAll(and.left(), guards) && addAll(and.right(), guards);
        }
        if (condition instanceof Coalesce) {
            List<Expression> children = Scala.list(condition.children());
            return children.size() == 2
                    && isFalse(children.get(1))
                    && addAll(children.get(0), guards);
        }
        if (condition instanceof CaseWhen when) {
            return addEach(when, guards);
        }
        if (condition instanceof BoundReference column
                && condition.dataType() instanceof BooleanType) {
            guards.add(new Guard(column.ordinal(), Boolean.TRUE));
            return true;
        }
        return condition instanceof EqualTo equal && addEqual(equal, guards);
    }

    /** Add those of conditions of which each is asked only if the ones before are true. */
    private static boolean addEach(CaseWhen conditions, ArrayList<Guard> guards) {
        for (Tuple2<Expression, Expression> branch : Scala.list(conditions.branches())) {
            if (!(branch._1() instanceof Not not)
                    || !isFalse(branch._2())
                    || !addAll(not.child(), guards)) {
                return false;
            }
        }
        return conditions.elseValue().isDefined() && addAll(conditions.elseValue().get(), guards);
    }

    private static boolean addEqual(EqualTo condition, ArrayList<Guard> guards) {
        if (!(condition.left() instanceof BoundReference column)
                || !(condition.right() instanceof Literal literal)
                || literal.value() == null
                || !isComparedByEquals(column.dataType())) {
            return false;
        }
        guards.add(new Guard(column.ordinal(), literal.value()));
        return true;
    }

    /** Tell whether Catalyst's equality is that of Java: not of fractions, with their two zeros. */
    private static boolean isComparedByEquals(DataType type) {
        return type instanceof LongType
                || type instanceof IntegerType
                || type.equals(StringType$.MODULE$);
    }

    private static boolean isFalse(Expression expression) {
        return expression instanceof Literal literal && Boolean.FALSE.equals(literal.value());
    }
}
