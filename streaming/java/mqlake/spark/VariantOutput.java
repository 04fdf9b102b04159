package mqlake.spark;

import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantBuilder;
import org.apache.spark.unsafe.types.VariantVal;

import java.math.BigDecimal;
import java.util.ArrayList;

/** Writes a VARIANT, by the builder that Spark parses JSON with. */
public final class VariantOutput {
    private final VariantBuilder builder = new VariantBuilder(true);

    /** Fields of an object that is being written. */
    public static final class Fields {
        private final ArrayList<VariantBuilder.FieldEntry> entries;

        public Fields() {
            entries = new ArrayList<>();
        }

        public Fields(int likely) {
            entries = new ArrayList<>(likely);
        }
    }

    public VariantVal result() {
        Variant made = builder.result();
        return new VariantVal(made.getValue(), made.getMetadata());
    }

    public int position() {
        return builder.getWritePos();
    }

    /** Begin a field of the object that began at a position. */
    public void key(String name, int start, Fields fields) {
        int id = builder.addKey(name);
        fields.entries.add(new VariantBuilder.FieldEntry(name, id, builder.getWritePos() - start));
    }

    public void endObject(int start, Fields fields) {
        builder.finishWritingObject(start, fields.entries);
    }

    /** End an array; its elements began at these offsets from its start. */
    public void endArray(int start, ArrayList<Integer> offsets) {
        builder.finishWritingArray(start, offsets);
    }

    public void nothing() {
        builder.appendNull();
    }

    public void bool(boolean value) {
        builder.appendBoolean(value);
    }

    public void integer(long value) {
        builder.appendLong(value);
    }

    public void number(double value) {
        builder.appendDouble(value);
    }

    /** Write a number of at most 38 digits. */
    public void decimal(BigDecimal value) {
        builder.appendDecimal(value);
    }

    public void text(String value) {
        builder.appendString(value);
    }
}
