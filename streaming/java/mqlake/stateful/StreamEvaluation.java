package mqlake.stateful;

import mqlake.Vocabulary;
import mqlake.log.LogLimits;
import mqlake.log.LogSender;
import mqlake.log.LogSenders;
import mqlake.log.TaskBatch;
import mqlake.rules.CompiledColumns;
import mqlake.rules.Lane;
import mqlake.rules.MessageRow;
import mqlake.rules.Places;
import mqlake.rules.RuleCompiler;
import mqlake.rules.RuleCounters;
import mqlake.rules.RuleEvaluation;
import mqlake.rules.RuleFilter;
import mqlake.rules.RuleFollower;
import mqlake.rules.RuleVersion;
import mqlake.spark.Budget;
import mqlake.spark.Failures;

import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskCompletionListener;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;

/**
 * Makes rows of one stream of records. A record on which an expression throws gives a dead letter,
 * one that comes too late for its window likewise; both are in the log before the batch is done.
 */
final class StreamEvaluation {
    private static final Row[] NOTHING = new Row[0];
    private static final byte[] EMPTY = new byte[0];

    private final StreamSpec stream;
    private final String name;
    private final byte[] key;
    private final RuleFollower rules;
    private final RuleCounters counters;

    /** Null when every record that matches counts. */
    private final CompiledColumns condition;

    private final CompiledColumns columns;
    private final Map<String, String> clientConfig;
    private final LogLimits limits;
    private final ThreadLocal<Letters> letters = new ThreadLocal<>();

    StreamEvaluation(Map<String, String> clientConfig, StreamSpec stream) {
        this.stream = stream;
        this.name = stream.tenant + "/" + stream.rule;
        this.key = TaskBatch.text(name);
        this.rules = RuleFollower.ofRuns(clientConfig, Vocabulary.RULES);
        this.counters = RuleCounters.of(name);
        this.condition =
                stream.condition.equals("true")
                        ? null
                        : RuleCompiler.compileColumns(new String[] {stream.condition});
        this.columns = RuleCompiler.compileColumns(stream.columns);
        this.clientConfig = clientConfig;
        this.limits = LogLimits.of(clientConfig);
        rules.awaitDecided(stream.change);
    }

    Row[] evaluate(
            int partition,
            long offset,
            long timestampMs,
            byte[] recordKey,
            byte[] value,
            String[] headerNames,
            byte[][] headerValues) {
        if (recordKey.length > 0 && recordKey[0] == 0) {
            RuleFilter.awaitChange(recordKey, rules);
            return NOTHING;
        }
        RuleVersion version = rules.table().run(name, stream.change);
        if (version == null || !version.counts(stream.logTopic, partition, offset)) {
            return NOTHING;
        }
        Lane lane = Lane.take();
        try {
            MessageRow row = lane.row;
            boolean isOurs =
                    row.begin(
                            stream.isEvents,
                            partition,
                            offset,
                            timestampMs,
                            recordKey,
                            value,
                            headerNames,
                            headerValues);
            return isOurs ? evaluate(lane, version) : NOTHING;
        } finally {
            lane.giveBack();
        }
    }

    private Row[] evaluate(Lane lane, RuleVersion version) {
        MessageRow row = lane.row;
        counters.matched.increment();
        String[] chain =
                row.chain == null || row.chain.length == 0
                        ? new String[0]
                        : new String(row.chain, StandardCharsets.UTF_8).split(",");
        boolean isLoop =
                chain.length >= Vocabulary.MAX_CHAIN || Arrays.asList(chain).contains(stream.rule);
        if (isLoop && row.event != null) {
            counters.noResult.increment(); // as in RuleEvaluation
            return NOTHING;
        }
        Row[] found = NOTHING;
        Budget budget = Budget.current();
        budget.begin();
        try {
            if (isLoop) {
                throw new IllegalStateException(
                        "loop: the message has come through "
                                + new String(row.chain, StandardCharsets.UTF_8));
            }
            Places.begin(lane.number, version, row.event != null, row.partition, row.offset);
            if (condition != null && !Boolean.TRUE.equals(condition.evaluate(lane)[0])) {
                counters.noResult.increment();
            } else {
                found = timely(row, columns.evaluate(lane), chain.length);
            }
        } catch (Exception | StackOverflowError | LinkageError error) { // Scala's are not declared
            failed(row, error, isLoop);
        } finally {
            Places.end(lane.number);
            budget.end();
        }
        return found;
    }

    private Row[] timely(MessageRow row, Object[] values, int hops) {
        Object micros = values[0];
        if (micros == null) {
            throw new IllegalStateException("the message has no time");
        }
        long eventMs = Math.floorDiv(((Long) micros).longValue(), 1000L);
        long end =
                stream.slideMs > 0
                        ? Math.floorDiv(eventMs, stream.slideMs) * stream.slideMs + stream.sizeMs
                        : eventMs + stream.sizeMs;
        long watermark = BatchWatermark.of(stream.checkpoint);
        if (end <= watermark) {
            counters.late.increment();
            RecordHeaders headers = headers(row, Vocabulary.STAGE_LATE);
            headers.add(Vocabulary.HEADER_EVENT_TIME, TaskBatch.text(Long.toString(eventMs)));
            headers.add(Vocabulary.HEADER_WATERMARK, TaskBatch.text(Long.toString(watermark)));
            letter(
                    row,
                    "its time is " + (watermark - eventMs) + " ms before the watermark",
                    headers);
            return NOTHING;
        }
        counters.passed.increment();
        Object[] external = new Object[values.length];
        for (int i = 0; i < external.length; i++) {
            Object value = values[i];
            if (value instanceof UTF8String text) {
                external[i] = text.getBytes(); // the column is declared as binary
            } else if (value instanceof Decimal decimal) {
                external[i] = decimal.toJavaBigDecimal();
            } else {
                external[i] = value;
            }
        }
        if (stream.hopsColumn >= 0) {
            external[stream.hopsColumn] = Long.valueOf(hops);
        }
        return new Row[] {RowFactory.create(external)};
    }

    private void failed(MessageRow row, Throwable error, boolean isLoop) {
        long nowMs = System.currentTimeMillis();
        String topic = stream.isWide ? row.topicName() : null;
        long before = counters.fail(stream.change, row, topic, nowMs);
        String text = Failures.reason(error);
        if (before != RuleCounters.LEFT_OUT) {
            letter(
                    row,
                    RuleCounters.letterText(text, before),
                    headers(row, Vocabulary.STAGE_EVALUATE));
        }
        boolean isOfFailure = row.event != null && row.event.name.equals(Vocabulary.RULE_FAILED);
        if (!isOfFailure && rules.table().isRead(stream.tenant, RuleEvaluation.FAILED_TOPIC)) {
            long told = counters.toTell(nowMs);
            if (told > 0) {
                failure(row, text, told, nowMs, isLoop);
            }
        }
    }

    /** Write an event that tells of so many failures, with what the message has come through. */
    private void failure(MessageRow row, String error, long count, long nowMs, boolean isLoop) {
        String client = new String(row.clientIdBytes(), StandardCharsets.UTF_8);
        String chain = row.chain == null ? "" : new String(row.chain, StandardCharsets.UTF_8);
        RecordHeaders headers = new RecordHeaders();
        headers.add(
                Vocabulary.HEADER_CHAIN,
                TaskBatch.text(
                        isLoop
                                ? chain
                                : chain.isEmpty() ? stream.rule : chain + "," + stream.rule));
        String json =
                RuleEvaluation.failureJson(
                        stream.tenant,
                        client,
                        stream.rule,
                        stream.version,
                        error,
                        row.topicName(),
                        count,
                        nowMs);
        send(
                Vocabulary.EVENTS,
                TaskBatch.text(stream.tenant + "/" + client),
                TaskBatch.text(json),
                headers);
    }

    private RecordHeaders headers(MessageRow row, String stage) {
        RecordHeaders headers = new RecordHeaders();
        String source = stream.isEvents ? Vocabulary.SOURCE_EVENTS : Vocabulary.SOURCE_INBOUND;
        headers.add(Vocabulary.HEADER_RULE, TaskBatch.text(Integer.toString(stream.version)));
        headers.add(
                Vocabulary.HEADER_OUTPUT,
                TaskBatch.text(
                        source
                                + "."
                                + stream.run
                                + "."
                                + stream.name
                                + ":"
                                + row.partition
                                + ":"
                                + row.offset
                                + ":0"));
        headers.add(Vocabulary.HEADER_STAGE, TaskBatch.text(stage));
        headers.add(Vocabulary.HEADER_TOPIC, TaskBatch.text(row.topicName()));
        headers.add(Vocabulary.HEADER_CLIENT_ID, row.clientIdBytes());
        return headers;
    }

    private void letter(MessageRow row, String error, RecordHeaders headers) {
        byte[] payload = row.value == null ? EMPTY : row.value;
        headers.add(Vocabulary.HEADER_ERROR, TaskBatch.text(error));
        long bytes = LogLimits.size(key, payload, headers);
        int most = limits.mostBytes(Vocabulary.DEAD_LETTERS, bytes);
        if (bytes > most) {
            headers.remove(Vocabulary.HEADER_ERROR);
            headers.add(
                    Vocabulary.HEADER_ERROR,
                    TaskBatch.text(
                            error
                                    + RuleEvaluation.withoutPayload(
                                            payload.length, Vocabulary.DEAD_LETTERS, most)));
            payload = EMPTY;
        }
        send(Vocabulary.DEAD_LETTERS, key, payload, headers);
    }

    private void send(String logTopic, byte[] recordKey, byte[] value, RecordHeaders headers) {
        Letters ours = letters.get();
        TaskContext context = TaskContext.get();
        if (ours == null || ours.task != context.taskAttemptId()) {
            LogSender sender =
                    LogSenders.shared(
                            Vocabulary.STATEFUL_SENDER,
                            clientConfig,
                            Vocabulary.EVENTS,
                            Vocabulary.STATEFUL_UNDELIVERED);
            ours = new Letters(context.taskAttemptId(), sender.begin());
            letters.set(ours);
            context.addTaskCompletionListener(ours);
        }
        try {
            ours.batch.send(logTopic, 0, recordKey, value, headers);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** What a task writes; the task is not done before the log has it. */
    private static final class Letters implements TaskCompletionListener {
        final long task;
        final TaskBatch batch;

        Letters(long task, TaskBatch batch) {
            this.task = task;
            this.batch = batch;
        }

        @Override
        public void onTaskCompletion(TaskContext context) {
            if (context.isFailed() || context.isInterrupted()) {
                return; // It comes again.
            }
            try {
                batch.awaitAcknowledged();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
