package mqlake.rules;

import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.variant.ArrayExtraction;
import org.apache.spark.sql.catalyst.expressions.variant.ObjectExtraction;
import org.apache.spark.sql.catalyst.expressions.variant.VariantGet;
import org.apache.spark.sql.catalyst.expressions.variant.VariantGet$;
import org.apache.spark.sql.catalyst.expressions.variant.VariantPathSegment;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal$;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.VariantType;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantBuilder;
import org.apache.spark.types.variant.VariantUtil;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * A field of the payload as a number, a text or a variant: variant_get with a constant path.
 *
 * <p>Catalyst makes an expression of the field's value and one that casts it, for each message
 * anew. A field that needs no cast is taken as it is here; all else is left to Catalyst.
 */
final class PayloadField extends SharedColumn {
    private final int ordinal;
    private final VariantPathSegment[] path;
    private final DataType type;
    private final LaneCode catalyst;

    private PayloadField(int ordinal, VariantPathSegment[] path, DataType type, LaneCode catalyst) {
        this.ordinal = ordinal;
        this.path = path;
        this.type = type;
        this.catalyst = catalyst;
    }

    /** Return what computes a field; null when the expression is another one. */
    static SharedColumn of(Expression node, LaneCode catalyst) {
        if (!(node instanceof VariantGet field) || !(field.path() instanceof Literal path)) {
            return null;
        }
        DataType type = field.targetType();
        boolean isPlain =
                type instanceof DoubleType
                        || type instanceof LongType
                        || type instanceof VariantType
                        || type.equals(StringType$.MODULE$);
        if (!isPlain || path.value() == null || !(field.child() instanceof BoundReference column)) {
            return null;
        }
        return new PayloadField(
                column.ordinal(),
                VariantGet$.MODULE$.getParsedPath(path.value().toString(), field.prettyName()),
                type,
                catalyst);
    }

    @Override
    Object evaluate(Lane lane) {
        VariantVal whole = (VariantVal) lane.row.genericGet(ordinal);
        if (whole == null) {
            return null;
        }
        Variant found = new Variant(whole.getValue(), whole.getMetadata());
        for (int i = 0; i < path.length && found != null; i++) {
            found = step(found, path[i]);
        }
        if (found == null) {
            return null;
        }
        if (type instanceof VariantType) {
            // Without what the rest of the payload has in its dictionary.
            VariantBuilder builder = new VariantBuilder(false);
            builder.appendVariant(found);
            Variant alone = builder.result();
            return new VariantVal(alone.getValue(), alone.getMetadata());
        }
        VariantUtil.Type kind = found.getType();
        if (kind == VariantUtil.Type.NULL) {
            return null;
        }
        if (kind == VariantUtil.Type.LONG && type instanceof LongType) {
            return Long.valueOf(found.getLong());
        }
        if (type instanceof DoubleType) {
            if (kind == VariantUtil.Type.LONG) {
                return Double.valueOf(found.getLong());
            }
            if (kind == VariantUtil.Type.DECIMAL) {
                return Double.valueOf(Decimal$.MODULE$.apply(found.getDecimal()).toDouble());
            }
            if (kind == VariantUtil.Type.DOUBLE) {
                return Double.valueOf(found.getDouble());
            }
        }
        if (kind == VariantUtil.Type.STRING && type.equals(StringType$.MODULE$)) {
            return UTF8String.fromString(found.getString());
        }
        return catalyst.evaluate(lane);
    }

    private static Variant step(Variant from, VariantPathSegment segment) {
        VariantUtil.Type kind = from.getType();
        if (segment instanceof ObjectExtraction field) {
            return kind == VariantUtil.Type.OBJECT ? from.getFieldByKey(field.key()) : null;
        }
        return kind == VariantUtil.Type.ARRAY
                ? from.getElementAtIndex(((ArrayExtraction) segment).index())
                : null;
    }
}
