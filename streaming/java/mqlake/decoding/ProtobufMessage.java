package mqlake.decoding;

import java.util.ArrayList;
import java.util.List;

/**
 * Values of a message by the index of their fields, as the wire has them: all whole numbers are
 * long.
 */
final class ProtobufMessage {
    private final Object[] values;

    ProtobufMessage(int fields) {
        values = new Object[fields];
    }

    int size() {
        return values.length;
    }

    boolean has(int field) {
        return values[field] != null;
    }

    /** Return a value; null when it is not there. */
    Object get(int field) {
        return values[field];
    }

    void set(int field, Object value) {
        values[field] = value;
    }

    /** Add a value of a repeated field. */
    void add(int field, Object value) {
        List<Object> all = has(field) ? all(field) : new ArrayList<>();
        all.add(value);
        values[field] = all;
    }

    /**
     * Return the values of a repeated field, which are all of one class; none when it is not there.
     */
    @SuppressWarnings("unchecked")
    <T> List<T> all(int field) {
        return values[field] == null ? List.of() : (List<T>) values[field];
    }

    String text(int field) {
        return (String) values[field];
    }

    byte[] bytes(int field) {
        return (byte[]) values[field];
    }

    ProtobufMessage message(int field) {
        return (ProtobufMessage) values[field];
    }

    /** Return a whole number; 0 when it is not there. */
    long number(int field) {
        return values[field] == null ? 0 : (Long) values[field];
    }

    /** Return a boolean; false when it is not there. */
    boolean flag(int field) {
        return values[field] != null && (Boolean) values[field];
    }

    double real(int field) {
        return (Double) values[field];
    }

    float single(int field) {
        return (Float) values[field];
    }
}
