package mqlake.streaming;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.util.ArrayData;

/**
 * What the rules of a table make of a record. A rule that throws gives a dead letter, and no other rule
 * notices.
 */
public final class RuleEvaluation {
    private static final Row[] NOTHING = new Row[0];
    private static final byte[] EMPTY = new byte[0];
    private static final byte RECORD_VERSION = 1;
    private static final int MAX_CHAIN = 16;
    /** Characters of an error that are kept. */
    private static final int MAX_ERROR = 1000;

    private final String eventsTopic;
    private final String outputsTopic;
    private final String deadLettersTopic;

    public RuleEvaluation(String eventsTopic, String outputsTopic, String deadLettersTopic) {
        this.eventsTopic = eventsTopic;
        this.outputsTopic = outputsTopic;
        this.deadLettersTopic = deadLettersTopic;
    }

    /** Return the records to write: (log topic, partition, key, value, headers). */
    public Row[] evaluate(
            RuleTable table, String logTopic, int partition, long offset, long timestampMs,
            byte[] key, byte[] value, String[] headerNames, byte[][] headerValues) {
        int slash = key == null ? -1 : RuleFilter.slash(key);
        if (slash < 0) {
            return NOTHING;
        }
        Lane lane = Lane.take();
        try {
            MessageRow row = lane.row;
            row.begin();
            row.key = key;
            row.slash = slash;
            row.value = value;
            row.partition = partition;
            row.offset = offset;
            row.timestampMs = timestampMs;
            for (int i = 0; i < headerNames.length; i++) {
                row.header(headerNames[i], headerValues[i]);
            }
            String topicName;
            if (eventsTopic.equals(logTopic)) {
                row.event = MessageRow.Event.read(value);
                if (row.event == null) {
                    return NOTHING;
                }
                topicName = row.event.topicName;
            } else {
                if (row.mqtt == null || row.mqtt.length != 3 || row.mqtt[0] != RECORD_VERSION) {
                    return NOTHING; // not ours: somebody else wrote to the topic
                }
                topicName = new String(key, slash + 1, key.length - slash - 1, StandardCharsets.UTF_8);
            }
            String tenant = new String(key, 0, slash, StandardCharsets.UTF_8);
            table.match(tenant, topicName, logTopic, partition, offset, lane.candidates);
            if (lane.candidates.isEmpty()) {
                return NOTHING;
            }
            ArrayList<Row> rows = new ArrayList<Row>();
            Writer writer = new Writer(row, topicName, rows);
            for (int i = 0; i < lane.candidates.size(); i++) {
                evaluate((RuleVersion) lane.candidates.get(i), lane, writer);
            }
            return rows.isEmpty() ? NOTHING : (Row[]) rows.toArray(new Row[rows.size()]);
        } finally {
            lane.giveBack();
        }
    }

    private static void evaluate(RuleVersion rule, Lane lane, Writer writer) {
        RuleCounters counters = rule.counters;
        counters.matched.increment();
        // A plain field suffices for sampling: it need not be exact.
        boolean isTimed = (lane.row.offset % RuleCounters.SAMPLE) == 0;
        long begin = isTimed ? System.nanoTime() : 0;
        int count = writer.rows.size();
        try {
            if (writer.isLoop(rule.rule)) {
                throw new IllegalStateException(
                        "loop: the message has come through " + writer.chainText());
            }
            if (rule.code == null) {
                throw new IllegalStateException("the rule does not compile");
            }
            ArrayData found = rule.code.evaluate(lane);
            int index = 0;
            for (int i = 0; found != null && i < found.numElements(); i++) {
                if (!found.isNullAt(i)) {
                    writer.output(rule, index++, found.getUTF8String(i).getBytes());
                }
            }
            if (index == 0) {
                counters.noResult.increment();
            } else {
                counters.passed.increment();
                counters.outputs.add(index);
            }
        } catch (Exception error) { // Scala's are not declared
            failed(rule, error, count, writer);
        } catch (StackOverflowError error) {
            failed(rule, error, count, writer);
        } catch (LinkageError error) {
            failed(rule, error, count, writer);
        }
        if (isTimed) {
            counters.evaluationNs.add((System.nanoTime() - begin) * RuleCounters.SAMPLE);
        }
    }

    private static void failed(RuleVersion rule, Throwable error, int count, Writer writer) {
        rule.counters.failed.increment();
        while (writer.rows.size() > count) { // a rule gives all of its rows or none
            writer.rows.remove(writer.rows.size() - 1);
        }
        String text = RuleCompiler.firstLine(error);
        writer.deadLetter(rule, text.length() > MAX_ERROR ? text.substring(0, MAX_ERROR) : text);
    }

    /** Writes what comes of one record. */
    private final class Writer {
        final ArrayList<Row> rows;
        private final MessageRow row;
        private final String position;
        private final byte[] topic;
        private final byte[] clientId;
        private final byte[] ts;
        private final byte[] chain;
        private final String[] rules;

        Writer(MessageRow row, String topicName, ArrayList<Row> rows) {
            this.row = row;
            this.rows = rows;
            this.position = (row.event != null ? "e:" : "i:") + row.partition + ":" + row.offset + ":";
            this.topic = topicName.getBytes(StandardCharsets.UTF_8);
            this.ts = Long.toString(row.timestampMs).getBytes(StandardCharsets.US_ASCII);
            this.chain = row.chain;
            this.rules = chain == null || chain.length == 0
                    ? new String[0] : new String(chain, StandardCharsets.UTF_8).split(",");
            if (row.event != null) {
                int length = row.key.length - row.slash - 1;
                this.clientId = new byte[length];
                System.arraycopy(row.key, row.slash + 1, this.clientId, 0, length);
            } else {
                this.clientId = row.clientId == null ? EMPTY : row.clientId;
            }
        }

        boolean isLoop(String rule) {
            for (int i = 0; i < rules.length; i++) {
                if (rules[i].equals(rule)) {
                    return true;
                }
            }
            return rules.length >= MAX_CHAIN;
        }

        String chainText() {
            return new String(chain, StandardCharsets.UTF_8);
        }

        void output(RuleVersion rule, int index, byte[] outputRow) {
            ArrayList<Row> headers = new ArrayList<Row>(7);
            headers.add(header("rule", rule.versionHeader));
            headers.add(header("output", (position + index).getBytes(StandardCharsets.US_ASCII)));
            headers.add(header("ts", ts));
            headers.add(header("topic", topic));
            headers.add(header("client_id", clientId));
            if (row.id != null) {
                headers.add(header("id", row.id));
            }
            if (rules.length > 0) {
                headers.add(header("chain", chain));
            }
            add(outputsTopic, row.partition, rule, outputRow, headers);
        }

        void deadLetter(RuleVersion rule, String error) {
            ArrayList<Row> headers = new ArrayList<Row>(6);
            headers.add(header("rule", rule.versionHeader));
            headers.add(header("output", (position + 0).getBytes(StandardCharsets.US_ASCII)));
            headers.add(header("stage", "evaluate".getBytes(StandardCharsets.US_ASCII)));
            headers.add(header("error", error.getBytes(StandardCharsets.UTF_8)));
            headers.add(header("topic", topic));
            headers.add(header("client_id", clientId));
            add(deadLettersTopic, 0, rule, row.value == null ? EMPTY : row.value, headers);
        }

        private void add(
                String logTopic, int partition, RuleVersion rule, byte[] value,
                ArrayList<Row> headers) {
            rows.add(RowFactory.create(new Object[] {
                logTopic, Integer.valueOf(partition), rule.key, value,
                headers.toArray(new Row[headers.size()])}));
        }
    }

    static Row header(String name, byte[] value) {
        return RowFactory.create(new Object[] {name, value});
    }
}
