package mqlake.decoding;

import com.fasterxml.jackson.databind.ObjectMapper;

import mqlake.spark.VariantOutput;

import org.apache.spark.unsafe.types.VariantVal;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * Decodes payloads of Sparkplug B (specification 3.0.0, 6.4): each metric with its name, alias,
 * type as text, time and one `value`; `values` has the values of the metrics that have a name, by
 * it.
 *
 * <p>Nothing is remembered between messages: a metric that has only an alias is told by its alias.
 */
final class SparkplugDecoder implements PayloadDecoder.Format {
    /**
     * Messages by number; a field is number, name, type (see ProtobufDecoder), presence, message.
     */
    private static final String LAYOUT =
            """
            [{"name":"Payload","fields":[[1,"timestamp",4,"optional",-1],
            [2,"metrics",11,"repeated",1],[3,"seq",4,"optional",-1],
            [4,"uuid",9,"optional",-1],[5,"body",12,"optional",-1]]},
            {"name":"Metric","fields":[[1,"name",9,"optional",-1],
            [2,"alias",4,"optional",-1],[3,"timestamp",4,"optional",-1],
            [4,"datatype",13,"optional",-1],[5,"is_historical",8,"optional",-1],
            [6,"is_transient",8,"optional",-1],[7,"is_null",8,"optional",-1],
            [8,"metadata",11,"optional",2],[9,"properties",11,"optional",3],
            [10,"int_value",13,"optional",-1],[11,"long_value",4,"optional",-1],
            [12,"float_value",2,"optional",-1],[13,"double_value",1,"optional",-1],
            [14,"boolean_value",8,"optional",-1],[15,"string_value",9,"optional",-1],
            [16,"bytes_value",12,"optional",-1],[17,"dataset_value",11,"optional",6],
            [18,"template_value",11,"optional",9]]},
            {"name":"MetaData","fields":[[1,"is_multi_part",8,"optional",-1],
            [2,"content_type",9,"optional",-1],[3,"size",4,"optional",-1],
            [4,"seq",4,"optional",-1],[5,"file_name",9,"optional",-1],
            [6,"file_type",9,"optional",-1],[7,"md5",9,"optional",-1],
            [8,"description",9,"optional",-1]]},
            {"name":"PropertySet","fields":[[1,"keys",9,"repeated",-1],
            [2,"values",11,"repeated",4]]},
            {"name":"PropertyValue","fields":[[1,"type",13,"optional",-1],
            [2,"is_null",8,"optional",-1],[3,"int_value",13,"optional",-1],
            [4,"long_value",4,"optional",-1],[5,"float_value",2,"optional",-1],
            [6,"double_value",1,"optional",-1],[7,"boolean_value",8,"optional",-1],
            [8,"string_value",9,"optional",-1],[9,"propertyset_value",11,"optional",3],
            [10,"propertysets_value",11,"optional",5]]},
            {"name":"PropertySetList","fields":[[1,"propertyset",11,"repeated",3]]},
            {"name":"DataSet","fields":[[1,"num_of_columns",4,"optional",-1],
            [2,"columns",9,"repeated",-1],[3,"types",13,"repeated",-1],
            [4,"rows",11,"repeated",7]]},
            {"name":"Row","fields":[[1,"elements",11,"repeated",8]]},
            {"name":"DataSetValue","fields":[[1,"int_value",13,"optional",-1],
            [2,"long_value",4,"optional",-1],[3,"float_value",2,"optional",-1],
            [4,"double_value",1,"optional",-1],[5,"boolean_value",8,"optional",-1],
            [6,"string_value",9,"optional",-1]]},
            {"name":"Template","fields":[[1,"version",9,"optional",-1],
            [2,"metrics",11,"repeated",1],[3,"parameters",11,"repeated",10],
            [4,"template_ref",9,"optional",-1],[5,"is_definition",8,"optional",-1]]},
            {"name":"Parameter","fields":[[1,"name",9,"optional",-1],
            [2,"type",13,"optional",-1],[3,"int_value",13,"optional",-1],
            [4,"long_value",4,"optional",-1],[5,"float_value",2,"optional",-1],
            [6,"double_value",1,"optional",-1],[7,"boolean_value",8,"optional",-1],
            [8,"string_value",9,"optional",-1]]}]
            """;

    /** Where a metric has its values; the fields before are its own. */
    private static final int METRIC_VALUES = 9;

    private static final int PROPERTY_VALUES = 2;
    private static final int PARAMETER_VALUES = 2;

    private static final int INT8 = 1;
    private static final int INT16 = 2;
    private static final int INT32 = 3;
    private static final int INT64 = 4;
    private static final int INT8_ARRAY = 22;
    private static final int BOOLEAN_ARRAY = 32;
    private static final int STRING_ARRAY = 33;
    private static final int DATE_TIME_ARRAY = 34;
    private static final String[] TYPES = {
        "Unknown",
        "Int8",
        "Int16",
        "Int32",
        "Int64",
        "UInt8",
        "UInt16",
        "UInt32",
        "UInt64",
        "Float",
        "Double",
        "Boolean",
        "String",
        "DateTime",
        "Text",
        "UUID",
        "DataSet",
        "Bytes",
        "File",
        "Template",
        "PropertySet",
        "PropertySetList",
        "Int8Array",
        "Int16Array",
        "Int32Array",
        "Int64Array",
        "UInt8Array",
        "UInt16Array",
        "UInt32Array",
        "UInt64Array",
        "FloatArray",
        "DoubleArray",
        "BooleanArray",
        "StringArray",
        "DateTimeArray",
    };

    /** Bytes of an element of the arrays, from Int8Array to DoubleArray. */
    private static final int[] SIZES = {1, 2, 4, 8, 1, 2, 4, 8, 4, 8};

    private final ProtobufDecoder.Type root;

    SparkplugDecoder() {
        try {
            root = ProtobufDecoder.types(new ObjectMapper().readTree(LAYOUT))[0];
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public VariantVal decode(byte[] payload) {
        VariantWriter out = new VariantWriter();
        ProtobufMessage values = ProtobufDecoder.read(root, new WireReader(payload), out, -1, 0);
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields(6);
        unsigned("timestamp", values, 0, start, fields, out);
        unsigned("seq", values, 2, start, fields, out);
        text("uuid", values, 3, start, fields, out);
        if (values.has(4)) {
            out.key("body", start, fields);
            out.bytes(values.bytes(4));
        }
        out.key("metrics", start, fields);
        metrics(values.all(1), out);
        out.key("values", start, fields);
        named(values.all(1), out);
        out.endObject(start, fields);
        return out.result();
    }

    private static void metrics(List<ProtobufMessage> metrics, VariantWriter out) {
        int start = out.position();
        ArrayList<Integer> offsets = new ArrayList<>();
        for (ProtobufMessage metric : metrics) {
            out.element(start, offsets);
            metric(metric, out);
        }
        out.endArray(start, offsets);
    }

    private static void named(List<ProtobufMessage> metrics, VariantWriter out) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields();
        for (ProtobufMessage metric : metrics) {
            if (metric.has(0)) {
                out.key(metric.text(0), start, fields);
                metricValue(metric, out);
            }
        }
        out.endObject(start, fields);
    }

    private static void metric(ProtobufMessage metric, VariantWriter out) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields(9);
        text("name", metric, 0, start, fields, out);
        unsigned("alias", metric, 1, start, fields, out);
        unsigned("timestamp", metric, 2, start, fields, out);
        if (metric.has(3)) {
            out.key("datatype", start, fields);
            type(metric.number(3), out);
        }
        flag("is_historical", metric, 4, start, fields, out);
        flag("is_transient", metric, 5, start, fields, out);
        out.key("value", start, fields);
        metricValue(metric, out);
        if (metric.has(7)) {
            out.key("metadata", start, fields);
            metadata(metric.message(7), out);
        }
        if (metric.has(8)) {
            out.key("properties", start, fields);
            properties(metric.message(8), out);
        }
        out.endObject(start, fields);
    }

    private static void metricValue(ProtobufMessage metric, VariantWriter out) {
        if (metric.flag(6)) {
            out.nothing();
            return;
        }
        long type = metric.number(3);
        if (metric.has(15)) {
            bytes(type, metric.bytes(15), out);
        } else if (metric.has(16)) {
            dataSet(metric.message(16), out);
        } else if (metric.has(17)) {
            template(metric.message(17), out);
        } else {
            scalar(type, metric, METRIC_VALUES, out);
        }
    }

    /**
     * Write whichever is there of int, long, float, double, boolean and string, which stand in a
     * row.
     */
    private static void scalar(long type, ProtobufMessage values, int first, VariantWriter out) {
        if (values.has(first)) {
            integer(type, values.number(first), out);
        } else if (values.has(first + 1)) {
            integer(type, values.number(first + 1), out);
        } else if (values.has(first + 2)) {
            out.number(values.single(first + 2));
        } else if (values.has(first + 3)) {
            out.number(values.real(first + 3));
        } else if (values.has(first + 4)) {
            out.bool(values.flag(first + 4));
        } else if (values.has(first + 5)) {
            out.text(values.text(first + 5));
        } else {
            out.nothing();
        }
    }

    /** Negative numbers stand in unsigned fields, as their two's complement. */
    private static void integer(long type, long value, VariantWriter out) {
        if (type == INT8) {
            out.integer((byte) value);
        } else if (type == INT16) {
            out.integer((short) value);
        } else if (type == INT32) {
            out.integer((int) value);
        } else if (type == INT64) {
            out.integer(value);
        } else {
            out.unsigned(value);
        }
    }

    private static void bytes(long type, byte[] value, VariantWriter out) {
        if (type < INT8_ARRAY || type > DATE_TIME_ARRAY) {
            out.bytes(value);
            return;
        }
        WireReader in = new WireReader(value);
        int start = out.position();
        ArrayList<Integer> offsets = new ArrayList<>();
        if (type == STRING_ARRAY) {
            strings(value, start, offsets, out);
        } else if (type == BOOLEAN_ARRAY) {
            long count = in.fixed32() & 0xffffffffL;
            int bits = 0;
            for (long i = 0; i < count; i++) {
                bits = bits << 1;
                if (i % 8 == 0) {
                    bits = in.next();
                }
                out.element(start, offsets);
                out.bool((bits & 0x80) != 0);
            }
        } else {
            while (!in.isAtEnd()) {
                out.element(start, offsets);
                element((int) type, in, out);
            }
        }
        out.endArray(start, offsets);
    }

    private static void element(int type, WireReader in, VariantWriter out) {
        int size = type == DATE_TIME_ARRAY ? 8 : SIZES[type - INT8_ARRAY];
        long bits = 0;
        for (int i = 0; i < size; i++) {
            bits |= (in.next() & 0xffL) << (8 * i);
        }
        switch (TYPES[type]) {
            case "FloatArray" -> out.number(Float.intBitsToFloat((int) bits));
            case "DoubleArray" -> out.number(Double.longBitsToDouble(bits));
            // Int8Array to Int64Array come in the order of Int8 to Int64.
            default -> integer(type - INT8_ARRAY + INT8, bits, out);
        }
    }

    private static void strings(
            byte[] value, int start, ArrayList<Integer> offsets, VariantWriter out) {
        int from = 0;
        for (int i = 0; i < value.length; i++) {
            if (value[i] == 0) {
                out.element(start, offsets);
                out.text(WireReader.text(value, from, i - from));
                from = i + 1;
            }
        }
        if (from < value.length) {
            throw new Undecodable("the last text of a StringArray does not end");
        }
    }

    private static void dataSet(ProtobufMessage set, VariantWriter out) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields(3);
        List<String> columns = set.all(1);
        List<Long> types = set.all(2);
        List<ProtobufMessage> rows = set.all(3);
        out.key("columns", start, fields);
        int begin = out.position();
        ArrayList<Integer> offsets = new ArrayList<>();
        for (String column : columns) {
            out.element(begin, offsets);
            out.text(column);
        }
        out.endArray(begin, offsets);
        out.key("types", start, fields);
        begin = out.position();
        offsets = new ArrayList<>();
        for (Long type : types) {
            out.element(begin, offsets);
            type(type, out);
        }
        out.endArray(begin, offsets);
        out.key("rows", start, fields);
        begin = out.position();
        offsets = new ArrayList<>();
        for (ProtobufMessage row : rows) {
            out.element(begin, offsets);
            row(row.all(0), types, out);
        }
        out.endArray(begin, offsets);
        out.endObject(start, fields);
    }

    private static void row(List<ProtobufMessage> elements, List<Long> types, VariantWriter out) {
        int start = out.position();
        ArrayList<Integer> offsets = new ArrayList<>();
        for (int i = 0; i < elements.size(); i++) {
            out.element(start, offsets);
            long type = i < types.size() ? types.get(i) : 0;
            scalar(type, elements.get(i), 0, out);
        }
        out.endArray(start, offsets);
    }

    private static void template(ProtobufMessage template, VariantWriter out) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields(6);
        text("version", template, 0, start, fields, out);
        text("template_ref", template, 3, start, fields, out);
        flag("is_definition", template, 4, start, fields, out);
        out.key("metrics", start, fields);
        metrics(template.all(1), out);
        out.key("parameters", start, fields);
        int begin = out.position();
        VariantOutput.Fields named = new VariantOutput.Fields();
        List<ProtobufMessage> parameters = template.all(2);
        for (ProtobufMessage parameter : parameters) {
            out.key(parameter.has(0) ? parameter.text(0) : "", begin, named);
            scalar(parameter.number(1), parameter, PARAMETER_VALUES, out);
        }
        out.endObject(begin, named);
        out.endObject(start, fields);
    }

    private static void properties(ProtobufMessage set, VariantWriter out) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields();
        List<String> keys = set.all(0);
        List<ProtobufMessage> values = set.all(1);
        for (int i = 0; i < keys.size(); i++) {
            out.key(keys.get(i), start, fields);
            if (i >= values.size()) {
                out.nothing();
            } else {
                property(values.get(i), out);
            }
        }
        out.endObject(start, fields);
    }

    private static void property(ProtobufMessage value, VariantWriter out) {
        if (value.flag(1)) {
            out.nothing();
        } else if (value.has(8)) {
            properties(value.message(8), out);
        } else if (value.has(9)) {
            List<ProtobufMessage> sets = value.message(9).all(0);
            int start = out.position();
            ArrayList<Integer> offsets = new ArrayList<>();
            for (ProtobufMessage set : sets) {
                out.element(start, offsets);
                properties(set, out);
            }
            out.endArray(start, offsets);
        } else {
            scalar(value.number(0), value, PROPERTY_VALUES, out);
        }
    }

    private static void metadata(ProtobufMessage metadata, VariantWriter out) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields(8);
        flag("is_multi_part", metadata, 0, start, fields, out);
        text("content_type", metadata, 1, start, fields, out);
        unsigned("size", metadata, 2, start, fields, out);
        unsigned("seq", metadata, 3, start, fields, out);
        text("file_name", metadata, 4, start, fields, out);
        text("file_type", metadata, 5, start, fields, out);
        text("md5", metadata, 6, start, fields, out);
        text("description", metadata, 7, start, fields, out);
        out.endObject(start, fields);
    }

    private static void type(long type, VariantWriter out) {
        if (type >= 0 && type < TYPES.length) {
            out.text(TYPES[(int) type]);
        } else {
            out.integer(type);
        }
    }

    // What is not there is left out.

    private static void text(
            String name,
            ProtobufMessage from,
            int field,
            int start,
            VariantOutput.Fields fields,
            VariantWriter out) {
        if (from.has(field)) {
            out.key(name, start, fields);
            out.text(from.text(field));
        }
    }

    private static void unsigned(
            String name,
            ProtobufMessage from,
            int field,
            int start,
            VariantOutput.Fields fields,
            VariantWriter out) {
        if (from.has(field)) {
            out.key(name, start, fields);
            out.unsigned(from.number(field));
        }
    }

    private static void flag(
            String name,
            ProtobufMessage from,
            int field,
            int start,
            VariantOutput.Fields fields,
            VariantWriter out) {
        if (from.has(field)) {
            out.key(name, start, fields);
            out.bool(from.flag(field));
        }
    }
}
