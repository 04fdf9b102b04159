package mqlake.stateful;

import mqlake.Vocabulary;
import mqlake.log.LogLimits;
import mqlake.log.LogSenders;
import mqlake.log.TaskBatch;
import mqlake.rules.RuleCounters;
import mqlake.rules.RuleEvaluation;
import mqlake.rules.RuleFollower;
import mqlake.rules.RuleMetrics;
import mqlake.rules.RuleVersion;
import mqlake.spark.LocalFiles;

import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.spark.api.java.function.ForeachPartitionFunction;
import org.apache.spark.sql.Row;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Map;

/**
 * Writes the rows of one batch of a stateful rule to the log.
 *
 * <p>First to a file of their own beside the checkpoint: a batch that comes again, after a kill,
 * writes what it wrote before, in the same order, whatever it finds now (a sum of fractions in
 * another order, say). So whoever reads the log and drops what is not above the last place has each
 * row once.
 */
final class OutputTask implements ForeachPartitionFunction<Row> {
    private static final long serialVersionUID = 1L;

    /** Batches whose rows are kept; only the last may come again. */
    private static final long KEPT = 3;

    /** Of the headers that only an output has, at most. */
    private static final long HEADERS_BYTES = 256;

    private static final String NOT_COMPUTED =
            "the row that the rule selects of a window or a pair cannot be computed";

    private final Map<String, String> clientConfig;
    private final String spec;
    private final boolean untilEnd;
    private final long batch;

    OutputTask(Map<String, String> clientConfig, String spec, boolean untilEnd, long batch) {
        this.clientConfig = clientConfig;
        this.spec = spec;
        this.untilEnd = untilEnd;
        this.batch = batch;
    }

    @Override
    public void call(Iterator<Row> rows) throws IOException {
        StreamSpec run = StreamSpec.read(spec);
        Path folder = Path.of(run.checkpoint, "rows");
        Path file = folder.resolve(Long.toString(batch));
        if (Files.exists(file)) {
            while (rows.hasNext()) {
                rows.next(); // the state is written as they are made
            }
        } else if (!keep(rows, run, folder, file)) {
            return;
        }
        send(run, file);
        forget(folder);
    }

    /** Write rows to a file; tell whether there are any. */
    private boolean keep(Iterator<Row> rows, StreamSpec run, Path folder, Path file)
            throws IOException {
        long end = Long.MAX_VALUE;
        Path temporary = folder.resolve(batch + ".tmp");
        FileOutputStream stream = null;
        BufferedWriter writer = null;
        try {
            while (rows.hasNext()) {
                Row row = rows.next();
                if (writer == null) {
                    end = end(run);
                    Files.createDirectories(folder);
                    stream = new FileOutputStream(temporary.toFile());
                    writer =
                            new BufferedWriter(
                                    new OutputStreamWriter(stream, StandardCharsets.UTF_8));
                }
                long at = row.isNullAt(0) ? 0 : Math.floorDiv(row.getLong(0), 1000L);
                if (at <= end) {
                    writer.write(Long.toString(at));
                    if (!row.isNullAt(2) && row.getLong(2) > 0) {
                        writer.write(' ');
                        writer.write(Long.toString(row.getLong(2)));
                    }
                    writer.write('\t');
                    writer.write(row.isNullAt(1) ? "" : row.getString(1));
                    writer.write('\n');
                }
            }
            if (writer == null) {
                return false;
            }
            writer.flush();
            stream.getFD().sync();
        } finally {
            if (stream != null) {
                stream.close();
            }
        }
        Files.move(
                temporary, file, new java.nio.file.CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
        LocalFiles.syncFolder(folder.toFile());
        return true;
    }

    /** Return after which time windows are not complete, because the run ended before. */
    private long end(StreamSpec run) {
        if (!untilEnd) {
            return Long.MAX_VALUE;
        }
        RuleVersion version =
                RuleFollower.ofRuns(clientConfig, Vocabulary.RULES)
                        .table()
                        .run(run.tenant + "/" + run.rule, run.change);
        return version == null ? Long.MAX_VALUE : version.endedAtMs;
    }

    private void send(StreamSpec run, Path file) throws IOException {
        RuleMetrics.start(clientConfig, Vocabulary.METRICS);
        RuleCounters counters = RuleCounters.of(run.tenant + "/" + run.rule);
        TaskBatch sent =
                LogSenders.shared(
                                Vocabulary.STATEFUL_SENDER,
                                clientConfig,
                                Vocabulary.EVENTS,
                                Vocabulary.STATEFUL_UNDELIVERED)
                        .begin();
        LogLimits limits = LogLimits.of(clientConfig);
        String outputs = Vocabulary.OUTPUTS;
        byte[] key = TaskBatch.text(run.tenant + "/" + run.rule);
        int partition = Math.floorMod(Arrays.hashCode(key), limits.partitions(outputs));
        byte[] version = TaskBatch.text(Integer.toString(run.version));
        byte[] topic = TaskBatch.text(run.filters[0]);
        long index = 0;
        BufferedReader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8);
        try {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                int tab = line.indexOf('\t');
                int blank = line.lastIndexOf(' ', tab);
                String at = line.substring(0, blank < 0 ? tab : blank);
                byte[] chain = unnamed(blank < 0 ? "0" : line.substring(blank + 1, tab));
                RecordHeaders headers = new RecordHeaders();
                headers.add(Vocabulary.HEADER_RULE, version);
                headers.add(
                        Vocabulary.HEADER_OUTPUT,
                        TaskBatch.text(run.run + ":" + partition + ":" + batch + ":" + index++));
                headers.add(Vocabulary.HEADER_TOPIC, topic);
                headers.add(Vocabulary.HEADER_CLIENT_ID, new byte[0]);
                byte[] value = TaskBatch.text(line.substring(tab + 1));
                String error =
                        value.length == 0
                                ? NOT_COMPUTED
                                : tooLarge(limits, outputs, key, value, headers);
                if (error == null) {
                    headers.add(Vocabulary.HEADER_TS, TaskBatch.text(at));
                    if (chain.length > 0) {
                        headers.add(Vocabulary.HEADER_CHAIN, chain);
                    }
                    sent.send(outputs, partition, key, value, headers);
                    counters.outputs.increment();
                    counters.lagMs.add(
                            Math.max(0, System.currentTimeMillis() - Long.parseLong(at)));
                } else {
                    headers.add(Vocabulary.HEADER_STAGE, TaskBatch.text(Vocabulary.STAGE_EVALUATE));
                    headers.add(Vocabulary.HEADER_ERROR, TaskBatch.text(error));
                    sent.send(Vocabulary.DEAD_LETTERS, 0, key, new byte[0], headers);
                    counters.fail(run.change);
                    tell(run, counters, sent, chain, error);
                }
            }
        } finally {
            reader.close();
        }
        sent.awaitAcknowledged();
    }

    /** Return why the log does not take an output; null when it does. */
    private static String tooLarge(
            LogLimits limits, String outputs, byte[] key, byte[] value, RecordHeaders headers) {
        long bytes = LogLimits.size(key, value, headers) + HEADERS_BYTES;
        int most = limits.mostBytes(outputs, bytes);
        return bytes > most
                ? "an output has " + bytes + " bytes, " + outputs + " takes " + most
                : null;
    }

    /** Write an event that tells of failures, when a rule reads such and it is due. */
    private void tell(
            StreamSpec run, RuleCounters counters, TaskBatch sent, byte[] chain, String error)
            throws IOException {
        RuleFollower rules = RuleFollower.ofRuns(clientConfig, Vocabulary.RULES);
        boolean isOfFailure = Arrays.asList(run.filters).contains(RuleEvaluation.FAILED_TOPIC);
        if (isOfFailure || !rules.table().isRead(run.tenant, RuleEvaluation.FAILED_TOPIC)) {
            return;
        }
        long nowMs = System.currentTimeMillis();
        long told = counters.toTell(nowMs);
        if (told > 0) {
            RecordHeaders headers = new RecordHeaders();
            String before =
                    chain.length == 0 ? "" : new String(chain, StandardCharsets.US_ASCII) + ",";
            headers.add(Vocabulary.HEADER_CHAIN, TaskBatch.text(before + run.rule));
            sent.send(
                    Vocabulary.EVENTS,
                    0,
                    TaskBatch.text(run.tenant + "/"),
                    TaskBatch.text(
                            RuleEvaluation.failureJson(
                                    run.tenant,
                                    "",
                                    run.rule,
                                    run.version,
                                    error,
                                    run.filters[0],
                                    told,
                                    nowMs)),
                    headers);
        }
    }

    /**
     * Return the chain of what so many rules have brought about; which they were is not remembered.
     */
    private static byte[] unnamed(String hops) {
        StringBuilder chain = new StringBuilder();
        for (int i = Integer.parseInt(hops); i > 0; i--) {
            chain.append(
                    chain.length() == 0 ? Vocabulary.UNNAMED_RULE : "," + Vocabulary.UNNAMED_RULE);
        }
        return TaskBatch.text(chain.toString());
    }

    private void forget(Path folder) throws IOException {
        try (DirectoryStream<Path> listed = Files.newDirectoryStream(folder)) {
            for (Path path : listed) {
                String name = path.getFileName().toString();
                int dot = name.indexOf('.');
                long number = Long.parseLong(dot < 0 ? name : name.substring(0, dot));
                if (number + KEPT <= batch) {
                    Files.delete(path);
                }
            }
        }
    }
}
