package mqlake.rules;

import mqlake.Vocabulary;
import mqlake.log.ClientOptions;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

/** Writes the counters of this JVM's rules to the log each second, those that have changed. */
public final class RuleMetrics implements Runnable {
    private static final Logger LOG = LoggerFactory.getLogger(RuleMetrics.class);
    private static final ConcurrentHashMap<String, RuleMetrics> STARTED = new ConcurrentHashMap<>();
    private static final byte[] VERSION =
            String.valueOf(Vocabulary.RECORD_VERSION).getBytes(StandardCharsets.US_ASCII);
    private static final long INTERVAL_MS = 1000;
    private static final long PAUSE_MS = 10000;

    /** Whether another JVM evaluates the same, and counts it. */
    private static volatile boolean isBeside;

    private final Map<String, String> config;
    private final String logTopic;
    private final String prefix =
            Vocabulary.ENGINE + "/" + UUID.randomUUID().toString().substring(0, 8) + "/rules/";

    private RuleMetrics(Map<String, String> config, String logTopic) {
        this.config = config;
        this.logTopic = logTopic;
    }

    /** Start the thread of this JVM and log unless it runs. */
    public static void start(Map<String, String> config, String logTopic) {
        RuleMetrics metrics = new RuleMetrics(config, logTopic);
        String name = logTopic + "@" + config.get("bootstrap.servers");
        if (STARTED.putIfAbsent(name, metrics) == null) {
            Thread thread = new Thread(metrics, "mqlake-rule-metrics");
            thread.setDaemon(true);
            thread.setContextClassLoader(RuleMetrics.class.getClassLoader());
            thread.start();
        }
    }

    /** Write nothing until {@link #takeOver}: another JVM evaluates the same, and counts it. */
    public static void standBeside() {
        isBeside = true;
    }

    /** Count from now on; what was evaluated before, the other one has counted. */
    public static void takeOver() {
        RuleFollower.giveCounts();
        RuleCounters.resetAll();
        isBeside = false;
    }

    @Override
    public void run() {
        while (true) {
            try {
                write();
            } catch (InterruptedException error) {
                return;
            } catch (Exception error) {
                LOG.warn("metrics of rules not written", error);
            }
            try {
                Thread.sleep(PAUSE_MS);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private void write() throws InterruptedException {
        Properties properties = ClientOptions.of(config);
        properties.put("linger.ms", "5");
        properties.put("buffer.memory", "2097152");
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(
                        properties, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            while (true) {
                RuleFollower.giveCounts();
                if (!isBeside) {
                    writeChanged(producer);
                }
                Thread.sleep(INTERVAL_MS);
            }
        } finally {
            producer.close(java.time.Duration.ofSeconds(1));
        }
    }

    private void writeChanged(KafkaProducer<byte[], byte[]> producer) {
        for (Map.Entry<String, RuleCounters> entry : RuleCounters.ALL.entrySet()) {
            RuleCounters counters = entry.getValue();
            String value = counters.next();
            if (!counters.written.equals(value)) {
                producer.send(record(entry.getKey(), value));
                counters.written = value == null ? "" : value;
            }
        }
    }

    private ProducerRecord<byte[], byte[]> record(String rule, String value) {
        return new ProducerRecord<>(
                logTopic,
                Integer.valueOf(0),
                (prefix + rule).getBytes(StandardCharsets.UTF_8),
                value == null ? null : value.getBytes(StandardCharsets.UTF_8),
                Collections.singletonList(new RecordHeader(Vocabulary.HEADER_VERSION, VERSION)));
    }
}
