package mqlake.log;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;

/**
 * The log topic of one partition in which the records of a query wait for targets that do not take
 * them.
 *
 * <p>A record is there as it was, with a header more: `undelivered`,
 * `<run>/<sender>/<partition>/<log topic>`.
 */
final class Undelivered {
    private static final String HEADER = "undelivered";

    final TopicPartition place;
    private final Map<String, String> client;
    private final String run;
    private final String sender;
    private final String replaced;

    /** Records before it are of earlier runs, and ours. */
    private volatile long begunAt = Long.MAX_VALUE;

    /**
     * @param run Of the query.
     * @param sender Of this run there may be others, in other JVMs.
     * @param replaced The run before it in this JVM: what is still written for it, nobody needs.
     */
    Undelivered(
            Map<String, String> client,
            String logTopic,
            String run,
            String sender,
            String replaced) {
        this.place = new TopicPartition(logTopic, 0);
        this.client = client;
        this.run = run;
        this.sender = sender;
        this.replaced = replaced;
    }

    /** Take over what earlier runs have left before an offset. */
    void takeOver(long offset) {
        begunAt = offset;
    }

    /** Return a record as it waits. */
    ProducerRecord<byte[], byte[]> waiting(Sent sent) {
        RecordHeaders headers = new RecordHeaders(sent.record.headers().toArray());
        String text = run + '/' + sender + '/' + sent.target.partition + '/' + sent.target.topic;
        headers.add(HEADER, text.getBytes(StandardCharsets.UTF_8));
        return new ProducerRecord<>(
                place.topic(), Integer.valueOf(0), sent.record.key(), sent.record.value(), headers);
    }

    /** Reads what waits. */
    final class Reader {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private Iterator<ConsumerRecord<byte[], byte[]>> found;
        private ConsumerRecord<byte[], byte[]> current;
        private String[] words;
        private long position;

        /**
         * @param offset Where to begin; negative: at the beginning.
         */
        Reader(long offset) {
            Properties properties = ClientOptions.of(client);
            properties.put("enable.auto.commit", "false");
            properties.put("auto.offset.reset", "earliest");
            properties.put("allow.auto.create.topics", "false");
            properties.put("fetch.max.bytes", String.valueOf(4 * 1024 * 1024));
            // A broker that stands still may be asked first: there is time for another one.
            properties.put("request.timeout.ms", "5000");
            properties.put("default.api.timeout.ms", "30000");
            consumer =
                    new KafkaConsumer<>(
                            properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.assign(Collections.singletonList(place));
            if (offset < 0) {
                consumer.seekToBeginning(Collections.singletonList(place));
                position = consumer.position(place);
            } else {
                consumer.seek(place, offset);
                position = offset;
            }
        }

        /** Return where the log topic ends now. */
        long end() {
            return consumer.endOffsets(Collections.singletonList(place)).get(place);
        }

        /** Go to the next record, waiting a moment for it; false without one. */
        boolean next() {
            if (found == null || !found.hasNext()) {
                found = consumer.poll(Duration.ofMillis(200)).records(place).iterator();
                if (!found.hasNext()) {
                    position = consumer.position(place);
                    return false;
                }
            }
            current = found.next();
            position = current.offset() + 1;
            Header header = current.headers().lastHeader(HEADER);
            words =
                    header == null || header.value() == null
                            ? new String[0]
                            : new String(header.value(), StandardCharsets.UTF_8).split("/", 4);
            return true;
        }

        long offset() {
            return current.offset();
        }

        /** Return the offset behind the last record that was read. */
        long position() {
            return position;
        }

        /** Whether we are to send it: earlier runs have left it, or we have. */
        boolean isOurs() {
            if (words.length != 4) {
                return false;
            }
            return words[0].equals(run) ? words[1].equals(sender) : offset() < begunAt;
        }

        /** Whether somebody else sends it, who may be at work. */
        boolean isOfOthers() {
            return words.length == 4 && !isOurs() && !words[0].equals(replaced);
        }

        /** Return when it came there, in UTC epoch milliseconds. */
        long timestampMs() {
            return current.timestamp();
        }

        /** Return whom it is for; null when it is no record of a sender. */
        TopicPartition target() {
            try {
                return words.length == 4
                        ? new TopicPartition(words[3], Integer.parseInt(words[2]))
                        : null;
            } catch (NumberFormatException error) {
                return null;
            }
        }

        /** Return it as it was. */
        ProducerRecord<byte[], byte[]> record() {
            RecordHeaders headers = new RecordHeaders(current.headers().toArray());
            headers.remove(HEADER);
            return new ProducerRecord<>(
                    words[3], Integer.valueOf(words[2]), current.key(), current.value(), headers);
        }

        void close() {
            consumer.close(Duration.ofSeconds(1));
        }
    }
}
