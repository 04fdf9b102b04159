package mqlake.rules;

import mqlake.spark.Scala;

import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantUtil;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * What a field of the payload is: schema_of_variant, which every condition on a number asks.
 *
 * <p>Catalyst calls it by reflection; the kinds that most fields are of are known here.
 */
final class FieldKind extends SharedColumn {
    private static final UTF8String BIGINT = UTF8String.fromString("BIGINT");
    private static final UTF8String DOUBLE = UTF8String.fromString("DOUBLE");
    private static final UTF8String STRING = UTF8String.fromString("STRING");
    private static final UTF8String BOOLEAN = UTF8String.fromString("BOOLEAN");

    private final int ordinal;
    private final LaneCode catalyst;

    private FieldKind(int ordinal, LaneCode catalyst) {
        this.ordinal = ordinal;
        this.catalyst = catalyst;
    }

    /** Return what computes a kind; null when the expression is another one. */
    static SharedColumn of(Expression node, LaneCode catalyst) {
        return is(node)
                ? new FieldKind(
                        ((BoundReference) Scala.list(node.children()).get(0)).ordinal(), catalyst)
                : null;
    }

    /** Tell whether an expression is the kind of what a column has. */
    static boolean is(Expression node) {
        return node instanceof StaticInvoke call
                && "schemaOfVariant".equals(call.functionName())
                && Scala.list(node.children()).get(0) instanceof BoundReference;
    }

    @Override
    Object evaluate(Lane lane) {
        VariantVal value = (VariantVal) lane.row.genericGet(ordinal);
        if (value == null) {
            return null;
        }
        VariantUtil.Type kind = new Variant(value.getValue(), value.getMetadata()).getType();
        if (kind == VariantUtil.Type.LONG) {
            return BIGINT;
        }
        if (kind == VariantUtil.Type.STRING) {
            return STRING;
        }
        if (kind == VariantUtil.Type.DOUBLE) {
            return DOUBLE;
        }
        return kind == VariantUtil.Type.BOOLEAN ? BOOLEAN : catalyst.evaluate(lane);
    }
}
