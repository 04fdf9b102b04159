package mqlake.streaming;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Appends records to the log, in order; one for this JVM and log. */
final class LogAppender {
    private static final ConcurrentHashMap<String, LogAppender> ALL =
            new ConcurrentHashMap<String, LogAppender>();

    private final Producer<byte[], byte[]> producer;

    private LogAppender(Producer<byte[], byte[]> producer) {
        this.producer = producer;
    }

    private static Producer<byte[], byte[]> connect(Map<String, String> config) {
        Properties properties = new Properties();
        properties.putAll(config);
        properties.put("acks", "all");
        properties.put("linger.ms", "5");
        properties.put("max.block.ms", "30000");
        properties.put("delivery.timeout.ms", "60000");
        properties.put("buffer.memory", "16777216");
        properties.put("max.request.size", "314572800");
        return new KafkaProducer<byte[], byte[]>(
                properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static LogAppender of(Map<String, String> config) {
        String name = (String) config.get("bootstrap.servers");
        LogAppender appender = (LogAppender) ALL.get(name);
        if (appender != null) {
            return appender;
        }
        synchronized (ALL) {
            appender = (LogAppender) ALL.get(name);
            if (appender == null) {
                appender = new LogAppender(connect(config));
                ALL.put(name, appender);
            }
            return appender;
        }
    }

    int partitions(String logTopic) {
        return ((List) producer.partitionsFor(logTopic)).size();
    }

    Batch begin() {
        return new Batch(producer);
    }

    /** Records that are safe together, once it is closed. */
    static final class Batch implements Callback {
        private final Producer<byte[], byte[]> producer;
        private volatile Exception error;

        Batch(Producer<byte[], byte[]> producer) {
            this.producer = producer;
        }

        void send(String logTopic, int partition, byte[] key, byte[] value, RecordHeaders headers) {
            producer.send(
                    new ProducerRecord<byte[], byte[]>(
                            logTopic, Integer.valueOf(partition), key, value, headers),
                    this);
        }

        public void onCompletion(RecordMetadata metadata, Exception failure) {
            if (failure != null) {
                error = failure;
            }
        }

        /**
         * Wait until the log has all of them.
         *
         * @throws IllegalStateException It has not taken one of them.
         */
        void close() {
            producer.flush();
            if (error != null) {
                throw new IllegalStateException("the log did not take a record", error);
            }
        }
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
