package mqlake.log;

import mqlake.spark.StaticFunction;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Functions for all sessions of Spark that look at the headers of a record, an ARRAY of (key
 * STRING, value BINARY):
 *
 * <ul>
 *   <li>mqlake_header(headers, name STRING) -> BINARY, the first value of a name, null without one;
 *   <li>mqlake_header_byte(headers, name STRING, position INT) -> INT, a byte of that value from 0
 *       to 255, counted from 1, null without one.
 * </ul>
 *
 * <p>They look at the headers where they are. As an expression of Spark's own functions they would
 * take all names and copies of all values into arrays first, for each record, and a byte of a value
 * would be two texts on its way to a number.
 */
public final class HeaderFunction extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    /** Called by Spark with a session's extensions (`spark.sql.extensions`). */
    @Override
    public BoxedUnit apply(SparkSessionExtensions session) {
        StaticFunction.inject(
                session, HeaderFunction.class, "value", "mqlake_header", DataTypes.BinaryType);
        StaticFunction.inject(
                session,
                HeaderFunction.class,
                "byteAt",
                "mqlake_header_byte",
                DataTypes.IntegerType);
        return BoxedUnit.UNIT;
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

    /** Called by the code that Spark generates. */
    public static Integer byteAt(ArrayData headers, UTF8String name, int position) {
        byte[] value = value(headers, name);
        return value == null || position > value.length ? null : value[position - 1] & 0xFF;
    }
}
