package mqlake.spark;

import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.errors.QueryExecutionErrors$;
import org.apache.spark.unsafe.types.UTF8String;

/** Errors of expressions: as Spark raises them, and as people read them. */
public final class Failures {
    /** Characters of an error that are kept. */
    private static final int MAX_REASON = 1000;

    private Failures() {}

    /** Return an error as raise_error gives it. */
    public static RuntimeException raised(String reason) {
        Object[] names = {UTF8String.fromString("errorMessage")};
        Object[] values = {UTF8String.fromString(reason)};
        return QueryExecutionErrors$.MODULE$.raiseError(
                UTF8String.fromString("USER_RAISED_EXCEPTION"),
                new ArrayBasedMapData(new GenericArrayData(names), new GenericArrayData(values)));
    }

    /** Return the first line of what an error says. */
    public static String firstLine(Throwable error) {
        String text = error.getMessage() == null ? error.toString() : error.getMessage();
        int end = text.indexOf('\n');
        return end < 0 ? text : text.substring(0, end);
    }

    /** What an expression that fails says to people: without Spark's words around it. */
    public static String reason(Throwable error) {
        String text = given(error);
        if (text == null) {
            text = firstLine(error);
            int state = text.indexOf(" SQLSTATE:");
            text = state < 0 ? text : text.substring(0, state);
        }
        return text.length() > MAX_REASON ? text.substring(0, MAX_REASON) : text;
    }

    /** What raise_error was given; null when it is another error. */
    private static String given(Throwable error) {
        if (!(error instanceof SparkThrowable thrown)) {
            return null;
        }
        return "USER_RAISED_EXCEPTION".equals(thrown.getCondition())
                ? thrown.getMessageParameters().get("errorMessage")
                : null;
    }
}
