package mqlake.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.types.DataType;

import scala.Option;
import scala.Tuple3;

/** Functions of SQL that are static methods: they are called by the code that Spark generates. */
public final class StaticFunction {
    private StaticFunction() {}

    /**
     * Make a method known to a session as a function that is null when an argument is.
     *
     * @param session The session's extensions.
     * @param owner Class of the method.
     * @param method Name of the method.
     * @param name Name of the function.
     * @param type Type of its values.
     */
    public static void inject(
            SparkSessionExtensions session,
            Class<?> owner,
            String method,
            String name,
            DataType type) {
        session.injectFunction(
                new Tuple3<>(
                        new FunctionIdentifier(name),
                        new ExpressionInfo(owner.getName(), name),
                        arguments ->
                                new StaticInvoke(
                                        owner,
                                        type,
                                        method,
                                        arguments,
                                        Scala.seq(),
                                        true,
                                        true,
                                        true,
                                        Option.empty())));
    }
}
