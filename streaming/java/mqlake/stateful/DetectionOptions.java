package mqlake.stateful;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.StructType;

import java.io.Serializable;
import java.sql.Timestamp;
import java.util.Comparator;
import java.util.Map;

/**
 * What is looked for, and where in a row it is; as a comparator, the order of the messages of a
 * key.
 *
 * <p>Named as in rules/language/plan.py. Times and durations are microseconds.
 */
final class DetectionOptions implements Serializable, Comparator<Row> {
    private static final long serialVersionUID = 1L;

    final StructType input;
    final long duration;
    final long keep;
    final int least;
    final int last;
    private final String kind;
    private final String[] words;
    private final int time;
    private final int[] order;
    private final int condition;
    private final int value;
    private final double high;
    private final double low;

    DetectionOptions(StructType input, Map<String, String> given) {
        this.input = input;
        kind = given.get("kind");
        words = given.get("words").split(",");
        time = input.fieldIndex(given.get("event_time"));
        order = places(input, given.get("order"));
        condition = place(input, given.get("condition"));
        value = place(input, given.get("value"));
        duration = Long.parseLong(given.get("duration_ms")) * 1000L;
        keep = Long.parseLong(given.get("keep_ms")) * 1000L;
        high = Double.parseDouble(given.get("high"));
        low = Double.parseDouble(given.get("low"));
        least = Integer.parseInt(given.get("least"));
        last = Integer.parseInt(given.get("last"));
    }

    boolean isAbsence() {
        return kind.equals("absence");
    }

    boolean isDebounce() {
        return kind.equals("debounce");
    }

    boolean isHysteresis() {
        return kind.equals("hysteresis");
    }

    long time(Row row) {
        Timestamp at = (Timestamp) row.get(time);
        return Math.floorDiv(at.getTime(), 1000L) * 1000000L + at.getNanos() / 1000;
    }

    boolean holds(Row row) {
        return Boolean.TRUE.equals(row.get(condition));
    }

    /** Return 1 for a value that makes the state high, -1 for low, 0 for one that leaves it. */
    int side(Row row) {
        Object found = row.get(value);
        if (found == null) {
            return 0;
        }
        double number = ((Double) found).doubleValue();
        return number >= high ? 1 : number <= low ? -1 : 0;
    }

    /**
     * Return what is told of a message: its columns, when it is told, the state, and since when.
     */
    Row told(Row row, long at, boolean isOn, long since) {
        Object[] values = new Object[row.length() + 3];
        for (int i = 0; i < row.length(); i++) {
            values[i] = row.get(i);
        }
        values[row.length()] = timestamp(at);
        values[row.length() + 1] = words[isOn ? 0 : 1];
        values[row.length() + 2] = timestamp(since);
        return RowFactory.create(values);
    }

    @Override
    public int compare(Row one, Row other) {
        int found = Long.compare(time(one), time(other));
        for (int i = 0; found == 0 && i < order.length; i++) {
            found = Long.compare(number(one, order[i]), number(other, order[i]));
        }
        return found;
    }

    /** Return the first millisecond that is not before a time: timers know no less. */
    static long toMs(long micros) {
        return micros == DetectionState.NEVER ? micros : -Math.floorDiv(-micros, 1000L);
    }

    private static long number(Row row, int place) {
        Object found = row.get(place);
        return found == null ? -1L : ((Number) found).longValue();
    }

    private static Timestamp timestamp(long micros) {
        Timestamp made = new Timestamp(Math.floorDiv(micros, 1000000L) * 1000L);
        made.setNanos((int) (Math.floorMod(micros, 1000000L) * 1000L));
        return made;
    }

    private static int place(StructType input, String name) {
        return name.isEmpty() ? -1 : input.fieldIndex(name);
    }

    private static int[] places(StructType input, String names) {
        if (names.isEmpty()) {
            return new int[0];
        }
        String[] each = names.split(",");
        int[] found = new int[each.length];
        for (int i = 0; i < each.length; i++) {
            found[i] = input.fieldIndex(each[i]);
        }
        return found;
    }
}
