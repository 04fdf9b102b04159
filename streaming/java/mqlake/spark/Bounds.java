package mqlake.spark;

import org.apache.spark.sql.catalyst.expressions.ArrayInsert;
import org.apache.spark.sql.catalyst.expressions.ArrayJoin;
import org.apache.spark.sql.catalyst.expressions.ArrayRepeat;
import org.apache.spark.sql.catalyst.expressions.Base64;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Concat;
import org.apache.spark.sql.catalyst.expressions.ConcatWs;
import org.apache.spark.sql.catalyst.expressions.CreateStruct$;
import org.apache.spark.sql.catalyst.expressions.Encode;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Flatten;
import org.apache.spark.sql.catalyst.expressions.FormatNumber;
import org.apache.spark.sql.catalyst.expressions.FormatString;
import org.apache.spark.sql.catalyst.expressions.Hex;
import org.apache.spark.sql.catalyst.expressions.HigherOrderFunction;
import org.apache.spark.sql.catalyst.expressions.JsonToStructs;
import org.apache.spark.sql.catalyst.expressions.LambdaFunction;
import org.apache.spark.sql.catalyst.expressions.Levenshtein;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Overlay;
import org.apache.spark.sql.catalyst.expressions.Quote;
import org.apache.spark.sql.catalyst.expressions.RegExpReplace;
import org.apache.spark.sql.catalyst.expressions.Sequence;
import org.apache.spark.sql.catalyst.expressions.StringDecode;
import org.apache.spark.sql.catalyst.expressions.StringLPad;
import org.apache.spark.sql.catalyst.expressions.StringRPad;
import org.apache.spark.sql.catalyst.expressions.StringRepeat;
import org.apache.spark.sql.catalyst.expressions.StringReplace;
import org.apache.spark.sql.catalyst.expressions.StringSpace;
import org.apache.spark.sql.catalyst.expressions.StructsToJson;
import org.apache.spark.sql.catalyst.expressions.UrlEncode;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.variant.ToVariantObject;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.VariantType;
import org.apache.spark.unsafe.types.UTF8String;

import java.util.Arrays;

/**
 * Puts a Bound before every function of Spark that makes values longer than those it is given, or
 * as long as a number says. A function that is not in here makes at most a small multiple of its
 * input and does so once: nested, it would take a rule longer than rules may be.
 */
public final class Bounds {
    private static final int ELEMENT_BYTES = 16;

    /**
     * Spark writes JSON into characters that it copies as they grow, then into a string, then
     * bytes.
     */
    private static final int JSON_COPIES = 4;

    /**
     * Of a separator, when it is not written out, and of the texts that every letter is compared
     * of.
     */
    private static final int SEPARATOR_BYTES = 1024;

    private static final int COMPARED_BYTES = 10000;

    private final Bound.Shares shares;

    private Bounds(Bound.Shares shares) {
        this.shares = shares;
    }

    /** Return an analysed expression that keeps to a budget. */
    public static Expression of(Expression expression) {
        return new Bounds(new Bound.Shares()).bounded(expression, false);
    }

    private Expression bounded(Expression node, boolean isRepeated) {
        if (isBound(node)) {
            return node;
        }
        Expression[] children = new Expression[Scala.list(node.children()).size()];
        boolean isSame = true;
        for (int i = 0; i < children.length; i++) {
            Expression child = Scala.list(node.children()).get(i);
            children[i] = bounded(child, isRepeated || child instanceof LambdaFunction);
            isSame = isSame && children[i] == child;
        }
        Expression[] before = children.clone();
        Expression made = replaced(node, children, isRepeated);
        if (made != null) {
            return made;
        }
        for (int i = 0; i < children.length; i++) {
            isSame = isSame && children[i] == before[i];
        }
        return isSame ? node : with(node, children);
    }

    /** Put bounds before children, or return what stands in the place of the whole node. */
    private Expression replaced(Expression node, Expression[] children, boolean isRepeated) {
        if (node instanceof Concat) {
            every(children, "concat", 1, isRepeated);
        } else if (node instanceof ConcatWs) {
            joined(children, 0, 1, "concat_ws", isRepeated);
        } else if (node instanceof ArrayJoin) {
            joined(children, 1, 0, "array_join", isRepeated);
        } else if (node instanceof StructsToJson) {
            children[0] = whole(children[0], "to_json", isRepeated);
        } else if (node instanceof ToVariantObject) {
            children[0] = whole(children[0], "to_variant_object", isRepeated);
        } else if (node instanceof Cast) {
            boolean grows =
                    node.dataType() instanceof StringType || node.dataType() instanceof VariantType;
            if (grows && isNested(children[0].dataType())) {
                children[0] = whole(children[0], "cast", isRepeated);
            }
        } else if (node instanceof StringReplace) {
            return call(
                    bound("replace", 1, 0, null, isRepeated), "replace", node.dataType(), children);
        } else if (node instanceof StringRepeat) {
            return call(
                    bound("repeat", 1, 0, null, isRepeated), "repeat", node.dataType(), children);
        } else if (node instanceof FormatString) {
            return format(node, children, isRepeated);
        } else if (node instanceof RegExpReplace) {
            regexReplace(children, isRepeated);
        } else if (node instanceof StringLPad || node instanceof StringRPad) {
            children[1] = number(children[1], "count", "padding", 4, isRepeated);
        } else if (node instanceof StringSpace) {
            children[0] = number(children[0], "count", "space", 1, isRepeated);
        } else if (node instanceof FormatNumber) {
            children[1] =
                    number(children[1], "atMost", "format_number", Bound.MOST_DIGITS, isRepeated);
        } else if (node instanceof ArrayRepeat) {
            children[1] = number(children[1], "count", "array_repeat", ELEMENT_BYTES, isRepeated);
        } else if (node instanceof ArrayInsert) {
            children[0] = charged(children[0], "array_insert", 1, isRepeated);
            children[1] = number(children[1], "count", "array_insert", ELEMENT_BYTES, isRepeated);
        } else if (node instanceof Flatten) {
            children[0] = pass(bound("flatten", 1, 0, null, isRepeated), "flat", children[0]);
        } else if (node instanceof JsonToStructs) {
            long row = 8L * Math.max(1, width(node.dataType()));
            children[0] =
                    pass(bound("from_json", row, 0, null, isRepeated), "objects", children[0]);
        } else if (node instanceof Levenshtein) {
            for (int i = 0; i < 2; i++) {
                children[i] =
                        pass(
                                bound("levenshtein", COMPARED_BYTES, 0, null, isRepeated),
                                "atMost",
                                children[i]);
            }
        } else if (node instanceof Sequence) {
            throw new IllegalArgumentException("sequence is not supported");
        } else if (node instanceof HigherOrderFunction && !isRepeated) {
            if (isRepeating(node)) {
                children[0] =
                        call(
                                bound("a function of elements", 1, 0, null, false),
                                "begin",
                                children[0].dataType(),
                                new Expression[] {children[0]});
            }
        } else {
            encoded(node, children, isRepeated);
        }
        return null;
    }

    /** What makes a few bytes of one, over and over. */
    private void encoded(Expression node, Expression[] children, boolean isRepeated) {
        if (node instanceof Hex) {
            children[0] = charged(children[0], "hex", 2, isRepeated);
        } else if (node instanceof Base64) {
            children[0] = charged(children[0], "base64", 2, isRepeated);
        } else if (node instanceof UrlEncode) {
            children[0] = charged(children[0], "url_encode", 3, isRepeated);
        } else if (node instanceof Quote) {
            children[0] = charged(children[0], "quote", 2, isRepeated);
        } else if (node instanceof Encode) {
            children[0] = charged(children[0], "encode", 4, isRepeated);
        } else if (node instanceof StringDecode) {
            children[0] = charged(children[0], "decode", 3, isRepeated);
        } else if (node instanceof Overlay) {
            children[0] = charged(children[0], "overlay", 1, isRepeated);
            children[1] = charged(children[1], "overlay", 1, isRepeated);
        }
    }

    private void every(Expression[] children, String name, long factor, boolean isRepeated) {
        for (int i = 0; i < children.length; i++) {
            children[i] = charged(children[i], name, factor, isRepeated);
        }
    }

    /** Text of elements with a separator between: its place, that of the first elements. */
    private void joined(
            Expression[] children, int separator, int first, String name, boolean isRepeated) {
        long between = literalBytes(children[separator]);
        if (between < 0) {
            between = SEPARATOR_BYTES;
            children[separator] =
                    pass(
                            bound(name, SEPARATOR_BYTES, 0, null, isRepeated),
                            "atMost",
                            children[separator]);
        }
        for (int i = first; i < children.length; i++) {
            DataType type = children[i].dataType();
            if (i == separator) {
                continue;
            }
            if (type instanceof ArrayType) {
                children[i] =
                        pass(bound(name, 1, between, type, isRepeated), "joined", children[i]);
            } else if (type instanceof StringType && !isShort(children[i])) {
                children[i] = pass(bound(name, 1, between, null, isRepeated), "text", children[i]);
            }
        }
    }

    private void regexReplace(Expression[] children, boolean isRepeated) {
        if (!(children[2] instanceof Literal literal)) {
            throw new IllegalArgumentException("regexp_replace needs its replacement written out");
        }
        Object value = literal.value();
        String replacement = value == null ? "" : value.toString();
        long groups = 0;
        for (int i = 0; i < replacement.length(); i++) {
            groups += replacement.charAt(i) == '$' ? 1 : 0;
        }
        long bytes = Math.max(0, literalBytes(children[2]));
        children[0] =
                pass(
                        bound("regexp_replace", 1 + groups + bytes, bytes, null, isRepeated),
                        "text",
                        children[0]);
    }

    private Expression format(Expression node, Expression[] children, boolean isRepeated) {
        Expression arguments =
                CreateStruct$.MODULE$.apply(
                        Scala.seq(Arrays.copyOfRange(children, 1, children.length)));
        Bound bound = bound("format_string", 1, 0, arguments.dataType(), isRepeated);
        return call(bound, "format", node.dataType(), new Expression[] {children[0], arguments});
    }

    /** Count all bytes of a text, all elements of an array. */
    private Expression charged(Expression value, String name, long factor, boolean isRepeated) {
        DataType type = value.dataType();
        String method =
                type instanceof StringType
                        ? "text"
                        : type instanceof BinaryType
                                ? "binary"
                                : type instanceof ArrayType ? "array" : null;
        if (method == null || isShort(value)) {
            return value;
        }
        return pass(bound(name, factor, 0, null, isRepeated), method, value);
    }

    private Expression whole(Expression value, String name, boolean isRepeated) {
        DataType type = value.dataType();
        if (!isNested(type) && !(type instanceof VariantType)) {
            return value;
        }
        return pass(bound(name, JSON_COPIES, 0, type, isRepeated), "json", value);
    }

    private Expression number(
            Expression value, String method, String name, long factor, boolean isRepeated) {
        if (!(value.dataType() instanceof IntegerType)) {
            return value;
        }
        return pass(bound(name, factor, 0, null, isRepeated), method, value);
    }

    private Bound bound(String name, long factor, long plus, DataType type, boolean isRepeated) {
        shares.count++;
        return new Bound(name, factor, plus, type, isRepeated, shares);
    }

    private static Expression pass(Bound bound, String method, Expression value) {
        return bound.equals(boundOf(value))
                ? value
                : call(bound, method, value.dataType(), new Expression[] {value});
    }

    private static Expression call(
            Bound bound, String method, DataType type, Expression[] arguments) {
        return new Invoke(
                new Literal(bound, new ObjectType(Bound.class)),
                method,
                type,
                Scala.seq(arguments),
                Scala.seq(),
                true,
                true,
                true);
    }

    private static Expression with(Expression node, Expression[] children) {
        return node.withNewChildren(Scala.seq(children));
    }

    private static boolean isBound(Expression node) {
        return boundOf(node) != null;
    }

    /** Return the bound whose method is called; null when the node is another one. */
    private static Bound boundOf(Expression node) {
        return node instanceof Invoke call
                        && call.targetObject() instanceof Literal target
                        && target.value() instanceof Bound bound
                ? bound
                : null;
    }

    /** Written out, or a number as text. */
    private static boolean isShort(Expression value) {
        return value instanceof Literal
                || isBound(value)
                || value instanceof Cast
                        && Scala.list(value.children()).get(0).dataType() instanceof NumericType;
    }

    private static long literalBytes(Expression value) {
        if (!(value instanceof Literal literal)) {
            return -1;
        }
        return literal.value() instanceof UTF8String text ? text.numBytes() : 0;
    }

    private static boolean isRepeating(Expression node) {
        DataType type = Scala.list(node.children()).get(0).dataType();
        return (type instanceof ArrayType || type instanceof MapType)
                && !isBound(Scala.list(node.children()).get(0));
    }

    private static boolean isNested(DataType type) {
        return type instanceof StructType || type instanceof ArrayType || type instanceof MapType;
    }

    /** Fields of all structs in a type. */
    private static int width(DataType type) {
        if (type instanceof StructType struct) {
            int fields = 0;
            for (StructField field : struct.fields()) {
                fields += 1 + width(field.dataType());
            }
            return fields;
        }
        if (type instanceof ArrayType array) {
            return width(array.elementType());
        }
        return type instanceof MapType map ? width(map.valueType()) : 0;
    }
}
