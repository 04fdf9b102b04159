package mqlake.log;

import mqlake.spark.Scala;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

import scala.Option;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * A function for all sessions of Spark: mqlake_header(headers ARRAY of (key STRING, value BINARY),
 * name STRING) -> BINARY, the first value of a name, null without one.
 *
 * <p>It looks at the headers where they are. As an expression of Spark's own functions it would
 * take all names and copies of all values into arrays first, for each record.
 */
public final class HeaderFunction extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    private static final FunctionIdentifier NAME = new FunctionIdentifier("mqlake_header");

    /** Called by Spark with a session's extensions (`spark.sql.extensions`). */
    @Override
    public BoxedUnit apply(SparkSessionExtensions session) {
        ExpressionInfo info = new ExpressionInfo(HeaderFunction.class.getName(), NAME.funcName());
        session.injectFunction(new Tuple3<>(NAME, info, HeaderFunction::expression));
        return BoxedUnit.UNIT;
    }

    private static Expression expression(Seq<Expression> arguments) {
        return new StaticInvoke(
                HeaderFunction.class,
                DataTypes.BinaryType,
                "value",
                arguments,
                Scala.seq(),
                true,
                true,
                true,
                Option.empty());
    }

    /** Called by the code that Spark generates. */
    public static byte[] value(ArrayData headers, UTF8String name) {
        for (int i = 0; i < headers.numElements(); i++) {
            InternalRow header = headers.getStruct(i, 2);
            if (name.equals(header.getUTF8String(0))) {
                return header.isNullAt(1) ? null : header.getBinary(1);
            }
        }
        return null;
    }
}
