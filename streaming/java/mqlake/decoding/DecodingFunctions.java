package mqlake.decoding;

import mqlake.spark.AnalysedFunction;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.types.DataTypes;

import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

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
    private static final AnalysedFunction LAYOUTS =
            AnalysedFunction.noting(
                    "mqlake_layouts", PayloadDecoder.class, PayloadDecoder::remember);
    private static final AnalysedFunction DECODE =
            AnalysedFunction.calling(
                    "mqlake_decode",
                    PayloadDecoder.class,
                    "decode",
                    DataTypes.VariantType,
                    PayloadDecoder::named);

    /** Called by Spark with a session's extensions (`spark.sql.extensions`). */
    @Override
    public BoxedUnit apply(SparkSessionExtensions session) {
        LAYOUTS.inject(session);
        DECODE.inject(session);
        return BoxedUnit.UNIT;
    }

    /** Make the functions known where there is no session. */
    public static void register() {
        LAYOUTS.registerBuiltIn();
        DECODE.registerBuiltIn();
    }
}
