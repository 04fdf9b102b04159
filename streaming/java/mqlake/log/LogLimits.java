package mqlake.log;

import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * What the log says of its topics: which there are, and how large their records may be; one for
 * each log.
 */
public final class LogLimits implements RecordLimits {
    private static final Logger LOG = LoggerFactory.getLogger(LogLimits.class);
    private static final ConcurrentHashMap<String, LogLimits> ALL = new ConcurrentHashMap<>();

    /** `max.request.size` of our producers. */
    static final int MOST_BYTES = 300 * 1024 * 1024;

    /** Of a record beside key, value and headers, at most. */
    private static final int OVERHEAD_BYTES = 128;

    /** Of a header beside name and value, at most. */
    private static final int HEADER_BYTES = 10;

    /** A limit may be changed while we run. */
    private static final long KNOWN_MS = 10000;

    private static final long ANSWER_MS = 5000;

    private final Map<String, String> client;
    private final ConcurrentHashMap<String, Limit> known = new ConcurrentHashMap<>();

    /** Of those whose limits are being asked for while the old ones count. */
    private final Set<String> asked = ConcurrentHashMap.newKeySet();

    private final ConcurrentHashMap<String, Integer> partitions = new ConcurrentHashMap<>();
    private AdminClient admin;

    private LogLimits(Map<String, String> client) {
        this.client = client;
    }

    /** Return those of a log in this JVM; asks it only when it must. */
    public static LogLimits of(Map<String, String> client) {
        String name = client.get("bootstrap.servers");
        LogLimits limits = ALL.get(name);
        if (limits == null) {
            ALL.putIfAbsent(name, new LogLimits(client));
            limits = ALL.get(name);
        }
        return limits;
    }

    /** Return what a record has to a broker; more than it counts, by some bytes. */
    public static long size(byte[] key, byte[] value) {
        return OVERHEAD_BYTES + (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
    }

    public static long size(byte[] key, byte[] value, Headers headers) {
        long bytes = size(key, value);
        for (Header header : headers) {
            bytes += headerSize(header.key(), header.value());
        }
        return bytes;
    }

    public static long size(ProducerRecord<byte[], byte[]> record) {
        return size(record.key(), record.value(), record.headers());
    }

    public static long headerSize(String name, byte[] value) {
        return HEADER_BYTES + name.length() + (value == null ? 0 : value.length);
    }

    /** So many bytes, as the log said at a time in UTC epoch milliseconds. */
    private record Limit(int bytes, long at) {}

    /**
     * Return the limit; nobody waits for the log who knows one that is large enough.
     *
     * <p>It must be known beforehand: what a broker refuses as too large the producer splits into
     * the same batch again, without end, when it was in one with others. Where the log does not say
     * it, the limit is that of our producers.
     */
    @Override
    public int mostBytes(String logTopic, long bytes) {
        Limit limit = known.get(logTopic);
        if (limit != null && bytes <= limit.bytes) {
            if (System.currentTimeMillis() - limit.at >= KNOWN_MS) {
                refresh(logTopic);
            }
            return limit.bytes;
        }
        try {
            return lookUp(logTopic);
        } catch (UnknownTopicOrPartitionException error) {
            return limit == null ? MOST_BYTES : limit.bytes;
        }
    }

    /**
     * Ask for the limit of a log topic, unless it was asked for a moment ago.
     *
     * @throws UnknownTopicOrPartitionException The broker that was asked does not know the log
     *     topic.
     */
    int lookUp(String logTopic) {
        Limit before = known.get(logTopic);
        if (before != null && System.currentTimeMillis() - before.at < KNOWN_MS) {
            return before.bytes;
        }
        int bytes = before == null ? MOST_BYTES : before.bytes;
        try {
            bytes = most(ask(logTopic).get(ANSWER_MS, TimeUnit.MILLISECONDS));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return bytes;
        } catch (Exception error) {
            if (isUnknown(error)) {
                throw new UnknownTopicOrPartitionException("there is no log topic " + logTopic);
            }
            LOG.warn("not known how large records of " + logTopic + " may be: " + error);
        }
        known.put(logTopic, new Limit(bytes, System.currentTimeMillis()));
        return bytes;
    }

    private KafkaFuture<Map<ConfigResource, Config>> ask(String logTopic) {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, logTopic);
        return admin().describeConfigs(Collections.singletonList(resource)).all();
    }

    private static int most(Map<ConfigResource, Config> found) {
        Config config = found.values().iterator().next();
        return Math.min(MOST_BYTES, Integer.parseInt(config.get("max.message.bytes").value()));
    }

    private void refresh(String logTopic) {
        if (asked.add(logTopic)) {
            ask(logTopic)
                    .whenComplete(
                            (found, error) -> {
                                if (error == null) {
                                    known.put(
                                            logTopic,
                                            new Limit(most(found), System.currentTimeMillis()));
                                }
                                asked.remove(logTopic);
                            });
        }
    }

    /** Return how many partitions a log topic had when it was first asked for. */
    public int partitions(String logTopic) throws IOException {
        Integer count = partitions.get(logTopic);
        if (count == null) {
            TopicDescription found;
            try {
                found =
                        admin().describeTopics(Collections.singletonList(logTopic))
                                .topicNameValues()
                                .get(logTopic)
                                .get(ANSWER_MS, TimeUnit.MILLISECONDS);
            } catch (InterruptedException error) {
                throw new InterruptedIOException("stopped while it waited for the log");
            } catch (Exception error) {
                throw new IOException("the log did not take a question about " + logTopic, error);
            }
            count = found.partitions().size();
            partitions.put(logTopic, count);
        }
        return count;
    }

    /**
     * Ask which of some log topics there are: those that are not, and those of which the log has
     * not told in time.
     */
    Missing missing(Collection<String> logTopics) {
        Missing missing = new Missing(new HashSet<>(), new HashSet<>());
        Map<String, KafkaFuture<TopicDescription>> futures =
                admin().describeTopics(logTopics).topicNameValues();
        long until = System.currentTimeMillis() + ANSWER_MS;
        for (String logTopic : logTopics) {
            Exception error = await(futures.get(logTopic), until);
            if (isUnknown(error)) {
                missing.gone.add(logTopic);
            } else if (error != null) {
                missing.unknown.add(logTopic);
            }
        }
        return missing;
    }

    /** Log topics that are not there, and those of which the log has not told in time. */
    record Missing(Set<String> gone, Set<String> unknown) {}

    /** Ask for the ends of partitions; tells whose leaders answer. */
    Set<TopicPartition> answering(Collection<TopicPartition> places) {
        HashMap<TopicPartition, OffsetSpec> asking = new HashMap<>();
        for (TopicPartition place : places) {
            asking.put(place, OffsetSpec.latest());
        }
        HashSet<TopicPartition> found = new HashSet<>();
        ListOffsetsResult answers = admin().listOffsets(asking);
        long until = System.currentTimeMillis() + ANSWER_MS;
        for (TopicPartition place : places) {
            if (await(answers.partitionResult(place), until) == null) {
                found.add(place);
            }
        }
        return found;
    }

    /** Return why there is no answer; null when there is one. */
    private static Exception await(KafkaFuture<?> future, long until) {
        try {
            long left = Math.max(1, until - System.currentTimeMillis());
            future.get(left, TimeUnit.MILLISECONDS);
            return null;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return error;
        } catch (Exception error) {
            return error;
        }
    }

    void deleteBefore(TopicPartition place, long offset) throws Exception {
        admin().deleteRecords(Collections.singletonMap(place, RecordsToDelete.beforeOffset(offset)))
                .all()
                .get(ANSWER_MS, TimeUnit.MILLISECONDS);
    }

    private static boolean isUnknown(Exception error) {
        return error instanceof ExecutionException
                && (error.getCause() instanceof UnknownTopicOrPartitionException
                        || error.getCause() instanceof InvalidTopicException);
    }

    private AdminClient admin() {
        synchronized (known) {
            if (admin == null) {
                Properties properties = ClientOptions.of(client);
                properties.put("default.api.timeout.ms", String.valueOf(ANSWER_MS));
                properties.put("request.timeout.ms", String.valueOf(ANSWER_MS));
                admin = AdminClient.create(properties);
            }
            return admin;
        }
    }
}
