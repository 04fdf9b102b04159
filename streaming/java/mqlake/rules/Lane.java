package mqlake.rules;

import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;

import java.util.ArrayList;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What one thread needs to evaluate rules on one record: a row, and a number by which every rule
 * has an evaluator for it. There are as many as there were threads at once.
 */
public final class Lane {
    private static final ConcurrentLinkedDeque<Lane> FREE = new ConcurrentLinkedDeque<>();
    private static final AtomicInteger COUNT = new AtomicInteger();

    public final int number = COUNT.getAndIncrement();
    public final MessageRow row = new MessageRow(this);
    final GenericInternalRow result = new GenericInternalRow(1);
    final ArrayList<RuleVersion> candidates = new ArrayList<>();

    private Lane() {}

    /** Take a lane; the last one given back, so that few are in use. */
    public static Lane take() {
        Lane lane = FREE.pollFirst();
        return lane == null ? new Lane() : lane;
    }

    public void giveBack() {
        row.forget();
        result.setNullAt(0);
        candidates.clear();
        FREE.addFirst(this);
    }
}
