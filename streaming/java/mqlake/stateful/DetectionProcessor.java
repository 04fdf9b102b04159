package mqlake.stateful;

import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.ExpiredTimerInfo;
import org.apache.spark.sql.streaming.ListState;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;

import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * Looks for something in the messages of each key, in the order of their time.
 *
 * <p>A message waits in `pending` until the watermark has passed it; only then is it certain which
 * one comes next. So what is told does not depend on how the messages came, or how they were cut
 * into batches. A key has one timer at most: for the first message that waits, the moment at which
 * something is to be told without a message, or the moment at which the key is forgotten, whichever
 * comes first.
 *
 * <p>What a detection tells is written down in docs/rules.md; rules/detections.py says the same in
 * SQL, and tests compare the two.
 */
public final class DetectionProcessor extends StatefulProcessor<Row, Row, Row> {
    private static final long serialVersionUID = 1L;

    private final DetectionOptions options;
    private transient ListState<Row> pending;
    private transient ValueState<Row> state;

    DetectionProcessor(DetectionOptions options) {
        this.options = options;
    }

    @Override
    public void init(OutputMode outputMode, TimeMode timeMode) {
        pending =
                getHandle().getListState("pending", Encoders.row(options.input), TTLConfig.NONE());
        state =
                getHandle()
                        .getValueState(
                                "memory", // as checkpoints have it
                                Encoders.row(DetectionState.schema(options.input)),
                                TTLConfig.NONE());
    }

    @Override
    public Iterator<Row> handleInputRows(Row key, Iterator<Row> rows, TimerValues timers) {
        long first = Long.MAX_VALUE;
        while (rows.hasNext()) {
            Row row = rows.next();
            first = Math.min(first, DetectionOptions.toMs(options.time(row)));
            pending.appendValue(row);
        }
        DetectionState known = read();
        if (first < known.wake) {
            if (known.wake != DetectionState.NEVER) {
                getHandle().deleteTimer(known.wake);
            }
            getHandle().registerTimer(first);
            known.wake = first;
            state.update(known.toRow());
        }
        return CollectionConverters.asScala(Collections.emptyIterator());
    }

    @Override
    public Iterator<Row> handleExpiredTimer(Row key, TimerValues timers, ExpiredTimerInfo expired) {
        long watermark = timers.getCurrentWatermarkInMs() * 1000L;
        DetectionState known = read();
        ArrayList<Row> told = new ArrayList<>();
        long waiting = DetectionState.NEVER;
        for (Row due : takeDue(watermark)) {
            long time = options.time(due);
            known.passTo(time, options, told);
            known.take(due, time, options, told);
        }
        Iterator<Row> rest = pending.get();
        while (rest.hasNext()) {
            waiting = Math.min(waiting, DetectionOptions.toMs(options.time(rest.next())));
        }
        // What is due at the watermark itself: every message of that moment is known.
        known.passTo(watermark + 1, options, told);
        known.wake = Math.min(waiting, known.nextMoment(options));
        if (known.wake != DetectionState.NEVER) {
            getHandle().registerTimer(known.wake);
        }
        if (known.isEmpty()) {
            state.clear();
        } else {
            state.update(known.toRow());
        }
        return CollectionConverters.asScala(told.iterator());
    }

    /** Return in order the messages that the watermark has passed, and keep the others. */
    private List<Row> takeDue(long watermark) {
        ArrayList<Row> due = new ArrayList<>();
        ArrayList<Row> rest = new ArrayList<>();
        Iterator<Row> each = pending.get();
        while (each.hasNext()) {
            Row row = each.next();
            (options.time(row) <= watermark ? due : rest).add(row);
        }
        if (!due.isEmpty()) {
            if (rest.isEmpty()) {
                pending.clear();
            } else {
                pending.put(rest.toArray(new Row[0]));
            }
        }
        due.sort(options);
        return due;
    }

    private DetectionState read() {
        Row row = state.exists() ? state.get() : null;
        return row == null ? new DetectionState() : new DetectionState(row);
    }
}
