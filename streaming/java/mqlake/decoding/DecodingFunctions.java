package mqlake.decoding;

import mqlake.spark.Scala;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.ObjectType;

import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

import java.util.List;

/**
 * Two functions, for all sessions of Spark and for the compiler of rules:
 *
 * <p>mqlake_layouts(layout STRING, …) -> true: makes layouts of schemas known by the hash of their
 * text. mqlake_decode(payload BINARY, hash STRING) -> VARIANT: decodes by one of them.
 *
 * <p>An expression names its layouts once, before it uses them. All that is settled when the
 * expression is analysed; what is evaluated is an ordinary call of PayloadDecoder in generated
 * code. Arguments are written out; no file is read and there are no options.
 */
public final class DecodingFunctions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    private static final FunctionIdentifier LAYOUTS = new FunctionIdentifier("mqlake_layouts");
    private static final FunctionIdentifier DECODE = new FunctionIdentifier("mqlake_decode");

    /** Called by Spark with a session's extensions (`spark.sql.extensions`). */
    @Override
    public BoxedUnit apply(SparkSessionExtensions session) {
        session.injectFunction(new Tuple3<>(LAYOUTS, info(LAYOUTS), DecodingFunctions::layouts));
        session.injectFunction(new Tuple3<>(DECODE, info(DECODE), DecodingFunctions::decode));
        return BoxedUnit.UNIT;
    }

    /** Make the functions known to a registry. */
    public static void register(FunctionRegistry registry) {
        registry.registerFunction(builtin(LAYOUTS), info(LAYOUTS), DecodingFunctions::layouts);
        registry.registerFunction(builtin(DECODE), info(DECODE), DecodingFunctions::decode);
    }

    private static FunctionIdentifier builtin(FunctionIdentifier name) {
        return FunctionRegistry$.MODULE$.builtinFunctionIdentifier(name.funcName());
    }

    private static ExpressionInfo info(FunctionIdentifier name) {
        return new ExpressionInfo(PayloadDecoder.class.getName(), name.funcName());
    }

    private static Expression layouts(Seq<Expression> arguments) {
        for (Expression argument : Scala.list(arguments)) {
            PayloadDecoder.remember(written(argument));
        }
        return new Literal(Boolean.TRUE, DataType.fromDDL("BOOLEAN"));
    }

    private static Expression decode(Seq<Expression> given) {
        List<Expression> arguments = Scala.list(given);
        if (arguments.size() != 2) {
            throw new IllegalArgumentException("mqlake_decode takes a payload and a hash");
        }
        Expression payload = arguments.get(0);
        if (!(payload.dataType() instanceof BinaryType)) {
            throw new IllegalArgumentException("mqlake_decode takes bytes");
        }
        PayloadDecoder decoder = PayloadDecoder.named(written(arguments.get(1)));
        return new Invoke(
                new Literal(decoder, new ObjectType(PayloadDecoder.class)),
                "decode",
                DataType.fromDDL("VARIANT"),
                Scala.seq(payload),
                Scala.seq(),
                true,
                true,
                true);
    }

    private static String written(Expression argument) {
        if (!(argument instanceof Literal text) || text.value() == null) {
            throw new IllegalArgumentException("expected a text written out");
        }
        return text.value().toString();
    }
}
