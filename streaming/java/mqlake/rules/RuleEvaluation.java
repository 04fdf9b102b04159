package mqlake.rules;

import mqlake.Vocabulary;
import mqlake.log.LogLimits;
import mqlake.log.RecordLimits;
import mqlake.spark.Budget;
import mqlake.spark.Failures;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

import java.nio.charset.StandardCharsets;
import java.time.InstantSource;
import java.util.ArrayList;

/**
 * What the rules of a table make of a record. A rule that throws gives a dead letter, and no other
 * rule notices.
 */
public final class RuleEvaluation {
    private static final Row[] NOTHING = new Row[0];
    private static final byte[] EMPTY = new byte[0];

    private static final byte[] EVALUATE =
            Vocabulary.STAGE_EVALUATE.getBytes(StandardCharsets.US_ASCII);

    /** Bytes that all rules together may write for one record: it becomes one row of Spark's. */
    private static final long MOST_BYTES = 32L * 1024 * 1024;

    public static final String FAILED_TOPIC = MessageRow.Event.topicName(Vocabulary.RULE_FAILED);

    private final String eventsTopic;
    private final String outputsTopic;
    private final int outputPartitions;
    private final String deadLettersTopic;
    private final RecordLimits limits;
    private final InstantSource clock;

    public RuleEvaluation(
            String eventsTopic,
            String outputsTopic,
            int outputPartitions,
            String deadLettersTopic,
            RecordLimits limits,
            InstantSource clock) {
        this.eventsTopic = eventsTopic;
        this.outputsTopic = outputsTopic;
        this.outputPartitions = outputPartitions;
        this.deadLettersTopic = deadLettersTopic;
        this.limits = limits;
        this.clock = clock;
    }

    /** Return the records to write: (log topic, partition, key, value, headers). */
    public Row[] evaluate(
            RuleTable table,
            String logTopic,
            int partition,
            long offset,
            long timestampMs,
            byte[] key,
            byte[] value,
            String[] headerNames,
            byte[][] headerValues) {
        Lane lane = Lane.take();
        try {
            MessageRow row = lane.row;
            if (!row.begin(
                    eventsTopic.equals(logTopic),
                    partition,
                    offset,
                    timestampMs,
                    key,
                    value,
                    headerNames,
                    headerValues)) {
                return NOTHING; // not ours: somebody else wrote to the topic
            }
            String topicName = row.topicName();
            String tenant = new String(key, 0, row.slash, StandardCharsets.UTF_8);
            table.match(tenant, topicName, logTopic, lane);
            if (lane.candidates.isEmpty()) {
                return NOTHING;
            }
            ArrayList<Row> rows = new ArrayList<>();
            Writer writer = new Writer(row, tenant, topicName, rows);
            for (int i = 0; i < lane.candidates.size(); i++) {
                evaluate(lane.candidates.get(i), lane, table, writer);
            }
            if (row.takesLong()) {
                watch(lane.candidates);
            }
            return rows.isEmpty() ? NOTHING : rows.toArray(new Row[rows.size()]);
        } finally {
            lane.giveBack();
        }
    }

    private static void watch(ArrayList<RuleVersion> rules) {
        for (int i = 0; i < rules.size(); i++) {
            rules.get(i).counters.evaluation.watch();
        }
    }

    private void evaluate(RuleVersion rule, Lane lane, RuleTable table, Writer writer) {
        RuleCounters counters = rule.counters;
        counters.matched.increment();
        boolean isLoop = writer.isLoop(rule.rule);
        if (isLoop && lane.row.event != null) {
            // Of what a rule has itself brought about it hears nothing: that would never end.
            counters.noResult.increment();
            return;
        }
        long begin = counters.evaluation.begin(lane.row.offset);
        int count = writer.rows.size();
        Budget budget = Budget.current();
        budget.begin();
        try {
            if (isLoop) {
                throw new IllegalStateException(
                        "loop: the message has come through " + writer.chainText());
            }
            Places.begin(
                    lane.number, rule, lane.row.event != null, lane.row.partition, lane.row.offset);
            if (rule.code == null) {
                throw new IllegalStateException("the rule does not compile");
            }
            ArrayData found = rule.code.evaluate(lane);
            int index = 0;
            for (int i = 0; found != null && i < found.numElements(); i++) {
                if (!found.isNullAt(i)) {
                    UTF8String output = found.getUTF8String(i);
                    writer.need(output.numBytes());
                    writer.output(rule, index++, output.getBytes());
                }
            }
            if (index == 0) {
                counters.noResult.increment();
            } else {
                counters.passed.increment();
                counters.outputs.add(index);
            }
        } catch (Exception error) { // Scala's are not declared
            failed(rule, error, count, table, writer);
        } catch (StackOverflowError error) {
            failed(rule, error, count, table, writer);
        } catch (LinkageError error) {
            failed(rule, error, count, table, writer);
        } finally {
            Places.end(lane.number);
            budget.end();
        }
        counters.evaluation.end(lane.row.offset, begin);
    }

    private void failed(
            RuleVersion rule, Throwable error, int count, RuleTable table, Writer writer) {
        long nowMs = clock.millis();
        String topic = rule.isWide ? writer.topicName : null;
        long before = rule.counters.fail(rule.change, writer.row, topic, nowMs);
        writer.takeBack(count); // a rule gives all of its rows or none
        String text = Failures.reason(error);
        if (before != RuleCounters.LEFT_OUT) {
            writer.deadLetter(rule, RuleCounters.letterText(text, before));
        }
        if (!writer.isOfFailure() && table.isRead(rule.tenant, FAILED_TOPIC)) {
            long told = rule.counters.toTell(nowMs);
            if (told > 0) {
                writer.failure(rule, text, told, nowMs);
            }
        }
    }

    /** Writes what comes of one record. */
    private final class Writer {
        final ArrayList<Row> rows;
        private final MessageRow row;
        private final String position;
        private final String tenant;
        private final String topicName;
        private final byte[] topic;
        private final byte[] clientId;
        private final byte[] ts;
        private final byte[] chain;
        private final String[] rules;
        private long written;

        Writer(MessageRow row, String tenant, String topicName, ArrayList<Row> rows) {
            this.row = row;
            this.tenant = tenant;
            this.topicName = topicName;
            this.rows = rows;
            String source =
                    row.event != null ? Vocabulary.SOURCE_EVENTS : Vocabulary.SOURCE_INBOUND;
            this.position = source + ":" + row.partition + ":" + row.offset + ":";
            this.topic = topicName.getBytes(StandardCharsets.UTF_8);
            this.ts = Long.toString(row.timestampMs).getBytes(StandardCharsets.US_ASCII);
            this.chain = row.chain;
            this.rules =
                    chain == null || chain.length == 0
                            ? new String[0]
                            : new String(chain, StandardCharsets.UTF_8).split(",");
            this.clientId = row.clientIdBytes();
        }

        /** Fail a rule whose output would make the row of this record too long. */
        void need(long bytes) {
            if (written + bytes > MOST_BYTES) {
                throw new IllegalStateException(
                        "the outputs of all rules for this message have "
                                + (written + bytes)
                                + " bytes, "
                                + MOST_BYTES
                                + " are allowed");
            }
        }

        boolean isLoop(String rule) {
            for (int i = 0; i < rules.length; i++) {
                if (rules[i].equals(rule)) {
                    return true;
                }
            }
            return rules.length >= Vocabulary.MAX_CHAIN;
        }

        /**
         * Whether the record itself tells of a failure: a failure over it is not told, or two would
         * go on.
         */
        boolean isOfFailure() {
            return row.event != null && row.event.name.equals(Vocabulary.RULE_FAILED);
        }

        String chainText() {
            return new String(chain, StandardCharsets.UTF_8);
        }

        void output(RuleVersion rule, int index, byte[] outputRow) {
            ArrayList<Row> headers = new ArrayList<>(8);
            headers.add(header(Vocabulary.HEADER_RULE, rule.versionHeader));
            headers.add(
                    header(
                            Vocabulary.HEADER_OUTPUT,
                            (position + index).getBytes(StandardCharsets.US_ASCII)));
            headers.add(header(Vocabulary.HEADER_TS, ts));
            headers.add(header(Vocabulary.HEADER_TOPIC, topic));
            headers.add(header(Vocabulary.HEADER_CLIENT_ID, clientId));
            if (row.id != null) {
                headers.add(header(Vocabulary.HEADER_ID, row.id));
            }
            if (rules.length > 0) {
                headers.add(header(Vocabulary.HEADER_CHAIN, chain));
            }
            if (row.traceparent != null) {
                headers.add(header(Vocabulary.HEADER_TRACEPARENT, row.traceparent));
            }
            long bytes = size(rule.key, outputRow, headers);
            int most = limits.mostBytes(outputsTopic, bytes);
            if (bytes > most) {
                throw new IllegalStateException(
                        "output "
                                + index
                                + " has "
                                + bytes
                                + " bytes, "
                                + outputsTopic
                                + " takes "
                                + most);
            }
            // These never get more: outputs of the messages of a topic stay in one.
            add(outputsTopic, row.partition % outputPartitions, rule.key, outputRow, headers);
        }

        private long size(byte[] key, byte[] value, ArrayList<Row> headers) {
            long bytes = LogLimits.size(key, value);
            for (int i = 0; i < headers.size(); i++) {
                Row header = headers.get(i);
                bytes += LogLimits.headerSize((String) header.get(0), (byte[]) header.get(1));
            }
            return bytes;
        }

        void takeBack(int count) {
            while (rows.size() > count) {
                written -= ((byte[]) rows.remove(rows.size() - 1).get(3)).length;
            }
        }

        /** Without its payload when there is no room for it, in the row or in the log. */
        void deadLetter(RuleVersion rule, String error) {
            byte[] payload = row.value == null ? EMPTY : row.value;
            if (written + payload.length > MOST_BYTES) {
                error =
                        error
                                + " (the payload of "
                                + payload.length
                                + " bytes is left out: other rules wrote too much for this"
                                + " message)";
                payload = EMPTY;
            }
            ArrayList<Row> headers = letterHeaders(rule, error);
            long bytes = size(rule.key, payload, headers);
            int most = limits.mostBytes(deadLettersTopic, bytes);
            if (bytes > most) {
                headers =
                        letterHeaders(
                                rule,
                                error + withoutPayload(payload.length, deadLettersTopic, most));
                payload = EMPTY;
            }
            add(deadLettersTopic, 0, rule.key, payload, headers);
        }

        private ArrayList<Row> letterHeaders(RuleVersion rule, String error) {
            ArrayList<Row> headers = new ArrayList<>(6);
            headers.add(header(Vocabulary.HEADER_RULE, rule.versionHeader));
            headers.add(
                    header(
                            Vocabulary.HEADER_OUTPUT,
                            (position + 0).getBytes(StandardCharsets.US_ASCII)));
            headers.add(header(Vocabulary.HEADER_STAGE, EVALUATE));
            headers.add(header(Vocabulary.HEADER_ERROR, error.getBytes(StandardCharsets.UTF_8)));
            headers.add(header(Vocabulary.HEADER_TOPIC, topic));
            headers.add(header(Vocabulary.HEADER_CLIENT_ID, clientId));
            return headers;
        }

        /**
         * Write an event that tells of so many failures, with what the message has come through.
         */
        void failure(RuleVersion rule, String error, long count, long nowMs) {
            String client = new String(clientId, StandardCharsets.UTF_8);
            String json =
                    failureJson(
                            tenant,
                            client,
                            rule.rule,
                            rule.version,
                            error,
                            topicName,
                            count,
                            nowMs);
            String through =
                    rules.length == 0
                            ? rule.rule
                            : isLoop(rule.rule) ? chainText() : chainText() + "," + rule.rule;
            ArrayList<Row> headers = new ArrayList<>(1);
            headers.add(header(Vocabulary.HEADER_CHAIN, through.getBytes(StandardCharsets.UTF_8)));
            add(
                    eventsTopic,
                    0,
                    (tenant + "/" + client).getBytes(StandardCharsets.UTF_8),
                    json.getBytes(StandardCharsets.UTF_8),
                    headers);
        }

        private void add(
                String logTopic, int partition, byte[] key, byte[] value, ArrayList<Row> headers) {
            written += value.length;
            rows.add(
                    RowFactory.create(
                            new Object[] {
                                logTopic,
                                Integer.valueOf(partition),
                                key,
                                value,
                                headers.toArray(new Row[headers.size()])
                            }));
        }
    }

    /** Say that a dead letter is without what it is about. */
    public static String withoutPayload(int length, String logTopic, int most) {
        return " (the payload of "
                + length
                + " bytes is left out: "
                + logTopic
                + " takes "
                + most
                + ")";
    }

    /** Return the value of an event that tells of so many failures. */
    public static String failureJson(
            String tenant,
            String client,
            String rule,
            int version,
            String error,
            String topicName,
            long count,
            long nowMs) {
        return "{\"v\":1,\"event\":\""
                + Vocabulary.RULE_FAILED
                + "\",\"ts\":"
                + nowMs
                + ",\"tenant\":"
                + quoted(tenant)
                + ",\"client_id\":"
                + quoted(client)
                + ",\"rule\":"
                + quoted(rule)
                + ",\"rule_version\":"
                + version
                + ",\"stage\":\"evaluate\",\"error\":"
                + quoted(error)
                + ",\"topic\":"
                + quoted(topicName)
                + ",\"count\":"
                + count
                + "}";
    }

    /** Return a text as JSON has it. */
    static String quoted(String text) {
        StringBuilder json = new StringBuilder(text.length() + 2).append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < 32) {
                json.append('\\')
                        .append('u')
                        .append(String.format("%04x", new Object[] {Integer.valueOf(c)}));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }

    static Row header(String name, byte[] value) {
        return RowFactory.create(new Object[] {name, value});
    }
}
