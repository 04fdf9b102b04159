package mqlake.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;

import scala.Function1;
import scala.Tuple3;
import scala.collection.immutable.Seq;

import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * A function of SQL with texts among its arguments that are written out: what they say is settled
 * when an expression is analysed.
 */
public final class AnalysedFunction {
    private final FunctionIdentifier name;
    private final ExpressionInfo info;
    private final Function1<Seq<Expression>, Expression> builder;

    private AnalysedFunction(
            String name, Class<?> owner, Function1<Seq<Expression>, Expression> builder) {
        this.name = new FunctionIdentifier(name);
        this.info = new ExpressionInfo(owner.getName(), name);
        this.builder = builder;
    }

    /**
     * Return a function of texts that is true.
     *
     * @param name Its name.
     * @param owner The class that it is for.
     * @param noted Is given each text.
     */
    public static AnalysedFunction noting(String name, Class<?> owner, Consumer<String> noted) {
        return new AnalysedFunction(
                name,
                owner,
                arguments -> {
                    for (Expression argument : Scala.list(arguments)) {
                        noted.accept(written(argument));
                    }
                    return new Literal(Boolean.TRUE, DataTypes.BooleanType);
                });
    }

    /**
     * Return a function of bytes and a text: a method of an object that the text names. It is null
     * when the bytes are; the code that Spark generates calls it.
     *
     * @param name Its name.
     * @param owner Class of the object.
     * @param method Name of the method, which takes the bytes.
     * @param type Type of its values.
     * @param named Returns the object of a text.
     */
    public static <T> AnalysedFunction calling(
            String name, Class<T> owner, String method, DataType type, Function<String, T> named) {
        return new AnalysedFunction(
                name,
                owner,
                given -> {
                    List<Expression> arguments = Scala.list(given);
                    if (arguments.size() != 2) {
                        throw new IllegalArgumentException(name + " takes a payload and a hash");
                    }
                    Expression bytes = arguments.get(0);
                    if (!(bytes.dataType() instanceof BinaryType)) {
                        throw new IllegalArgumentException(name + " takes bytes");
                    }
                    T object = named.apply(written(arguments.get(1)));
                    return new Invoke(
                            new Literal(object, new ObjectType(owner)),
                            method,
                            type,
                            Scala.seq(bytes),
                            Scala.seq(),
                            true,
                            true,
                            true);
                });
    }

    /** Make it known to a session. */
    public void inject(SparkSessionExtensions session) {
        session.injectFunction(new Tuple3<>(name, info, builder));
    }

    /** Make it one of those that are built in, for what has no session. */
    public void registerBuiltIn() {
        FunctionIdentifier builtIn =
                FunctionRegistry$.MODULE$.builtinFunctionIdentifier(name.funcName());
        FunctionRegistry$.MODULE$.builtin().registerFunction(builtIn, info, builder);
    }

    private static String written(Expression argument) {
        if (!(argument instanceof Literal text) || text.value() == null) {
            throw new IllegalArgumentException("expected a text written out");
        }
        return text.value().toString();
    }
}
