package mqlake.routing;

import mqlake.Vocabulary;
import mqlake.log.LogSink;
import mqlake.log.Positions;
import mqlake.log.TaskBatch;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.spark.sql.catalyst.InternalRow;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Makes deliveries of an inbound record, and sends them: the record with a `source` header more,
 * for each gateway that has subscribers.
 *
 * <p>A barrier is delivered to its gateway once its routes are applied, else not at all; a question
 * to the gateway that is asked. The record formats are those of mqlake/records/messages.py.
 */
public final class RouteFunction implements LogSink.Sending {
    private static final long serialVersionUID = 1L;
    private static final Delivery[] NOBODY = new Delivery[0];
    private static final byte[] BARRIER =
            Vocabulary.BARRIER_PREFIX.getBytes(StandardCharsets.US_ASCII);
    private static final byte[] QUESTION =
            Vocabulary.QUESTION_PREFIX.getBytes(StandardCharsets.US_ASCII);

    /** Of the header of a message; a longer one names share groups. */
    private static final int MQTT_LENGTH = 3;

    /** Microseconds of a millisecond: Spark counts in these. */
    private static final long MICROS = 1000;

    private static final byte[] NO_BYTES = new byte[0];

    /** A record for a log topic, with its key and the value of its `source` header. */
    record Delivery(String logTopic, byte[] key, byte[] source) {}

    private final Map<String, String> consumerConfig;
    private final String routesTopic;
    private final String deliveryPrefix;
    private final String inboundTopic;
    private final String inForceTopic;

    /** Of the retained messages; those of partitions that were added later are of the same. */
    private final int shards;

    /** Gateway to its log topic, made once. */
    private final ConcurrentHashMap<String, String> logTopics = new ConcurrentHashMap<>();

    private transient volatile RouteFollower follower;
    private transient volatile RoutesInForce inForce;
    private transient volatile Positions positions;

    public RouteFunction(
            Map<String, String> consumerConfig,
            String routesTopic,
            String deliveryPrefix,
            String inboundTopic,
            String inForceTopic,
            int shards) {
        this.consumerConfig = new HashMap<>(consumerConfig);
        this.routesTopic = routesTopic;
        this.deliveryPrefix = deliveryPrefix;
        this.inboundTopic = inboundTopic;
        this.inForceTopic = inForceTopic;
        this.shards = shards;
    }

    /** Send what comes of (key, value, headers, partition, offset, timestamp). */
    @Override
    public void send(TaskBatch batch, InternalRow row) throws IOException {
        byte[] key = row.isNullAt(0) ? null : row.getBinary(0);
        RecordHeaders headers =
                row.isNullAt(2) ? new RecordHeaders() : TaskBatch.headers(row.getArray(2));
        Delivery[] deliveries =
                deliveries(
                        key,
                        value(headers, Vocabulary.HEADER_MQTT),
                        value(headers, Vocabulary.HEADER_CLIENT_ID),
                        row.getInt(3),
                        row.getLong(4),
                        Math.floorDiv(row.getLong(5), MICROS));
        if (deliveries.length == 0) {
            return;
        }
        byte[] value = row.isNullAt(1) ? null : row.getBinary(1);
        for (Delivery delivery : deliveries) {
            // Each has its own: the producer keeps them, and lets nobody add to them.
            RecordHeaders own = new RecordHeaders(headers);
            own.add(Vocabulary.HEADER_SOURCE, delivery.source);
            batch.send(delivery.logTopic, 0, delivery.key, value, own);
        }
    }

    /** Return the first of the headers of a name; null without one. */
    private static byte[] value(RecordHeaders headers, String name) {
        for (Header header : headers) {
            if (header.key().equals(name)) {
                return header.value();
            }
        }
        return null;
    }

    private Delivery[] deliveries(
            byte[] key,
            byte[] mqtt,
            byte[] clientId,
            int partition,
            long offset,
            long timestampMs) {
        RouteFollower routes = follower;
        if (routes == null) {
            routes = RouteFollower.of(consumerConfig, routesTopic);
            positions = Positions.of(Vocabulary.QUERY_ROUTER, inboundTopic);
            inForce = RoutesInForce.of(consumerConfig, inForceTopic);
            follower = routes;
        }
        positions.reach(partition, offset);
        long routesInForce = inForce.at(partition, offset);
        if (key == null) {
            return NOBODY;
        }
        if (begins(key, BARRIER)) {
            return answer(key, partition, position(partition, offset, timestampMs), routes);
        }
        if (begins(key, QUESTION)) {
            String gateway =
                    new String(
                            key,
                            QUESTION.length,
                            key.length - QUESTION.length,
                            StandardCharsets.US_ASCII);
            return deliver(gateway, key, position(partition, offset, timestampMs), routes);
        }
        int slash = 0;
        while (slash < key.length && key[slash] != '/') {
            slash++;
        }
        if (slash == key.length) {
            return NOBODY; // not ours: somebody else wrote to the topic
        }
        return message(
                key, mqtt, clientId, partition, offset, timestampMs, routesInForce, routes.table());
    }

    /** Return the deliveries of a message; the sink leaves out those to gateways that are gone. */
    Delivery[] message(
            byte[] key,
            byte[] mqtt,
            byte[] publisher,
            int partition,
            long offset,
            long timestampMs,
            long routesInForce,
            RouteTable table) {
        byte[] by = publisher == null ? NO_BYTES : publisher;
        int shard =
                has(mqtt, Vocabulary.FLAG_RETAIN) ? partition % shards : RouteTable.NOT_RETAINED;
        RouteTable.Recipients recipients;
        if (mqtt != null && mqtt.length > MQTT_LENGTH) {
            byte[] groups = Arrays.copyOfRange(mqtt, MQTT_LENGTH, mqtt.length);
            recipients = table.matchGroups(key, groups, by, partition, offset, routesInForce);
        } else if (has(mqtt, Vocabulary.FLAG_UNSHARED)) {
            recipients = table.matchUnshared(key, shard);
        } else {
            recipients = table.match(key, shard, by, partition, offset, routesInForce);
        }
        String[] gateways = recipients.gateways;
        if (gateways.length == 0) {
            return NOBODY;
        }
        byte[] position = position(partition, offset, timestampMs);
        Delivery[] deliveries = new Delivery[gateways.length];
        for (int i = 0; i < gateways.length; i++) {
            deliveries[i] =
                    delivery(logTopic(gateways[i]), key, position, recipients.sharedFilters(i));
        }
        return deliveries;
    }

    private String logTopic(String gateway) {
        String logTopic = logTopics.get(gateway); // without the garbage of computeIfAbsent
        if (logTopic == null) {
            logTopic = deliveryPrefix + gateway;
            logTopics.put(gateway, logTopic);
        }
        return logTopic;
    }

    private Delivery[] answer(byte[] key, int partition, byte[] position, RouteFollower routes) {
        String[] parts =
                new String(
                                key,
                                BARRIER.length,
                                key.length - BARRIER.length,
                                StandardCharsets.US_ASCII)
                        .split("/");
        if (parts.length != 5) {
            return NOBODY;
        }
        long routesOffset;
        long routeNumber;
        try {
            routesOffset = Long.parseLong(parts[3]);
            routeNumber = Long.parseLong(parts[4]);
        } catch (NumberFormatException error) {
            return NOBODY;
        }
        // -1 and 0: there is no such route to wait for.
        if (routesOffset >= 0 && !routes.awaitApplied(routesOffset)
                || routeNumber > 0 && !routes.awaitApplied(parts[0], parts[1], routeNumber)) {
            return NOBODY;
        }
        Delivery[] deliveries = deliver(parts[0], key, position, routes);
        RouteTable table = routes.table();
        long shared =
                Math.max(
                        table.sharedRoute(routesOffset),
                        table.sharedRoute(parts[0], parts[1], routeNumber));
        if (shared < 0 || !inForce.advance(partition, shared)) {
            return deliveries;
        }
        Delivery[] andNote = Arrays.copyOf(deliveries, deliveries.length + 1);
        // Of each partition the last note is kept, however long nothing changes.
        byte[] place = String.valueOf(partition).getBytes(StandardCharsets.US_ASCII);
        byte[] line = ("\n" + shared).getBytes(StandardCharsets.ISO_8859_1);
        andNote[deliveries.length] = delivery(inForceTopic, place, position, line);
        return andNote;
    }

    private Delivery[] deliver(String gateway, byte[] key, byte[] position, RouteFollower routes) {
        String logTopic = deliveryPrefix + gateway;
        return routes.exists(logTopic)
                ? new Delivery[] {delivery(logTopic, key, position, null)}
                : NOBODY;
    }

    private static Delivery delivery(
            String logTopic, byte[] key, byte[] position, byte[] sharedFilters) {
        byte[] source = position;
        if (sharedFilters != null) {
            source = Arrays.copyOf(position, position.length + sharedFilters.length);
            System.arraycopy(sharedFilters, 0, source, position.length, sharedFilters.length);
        }
        return new Delivery(logTopic, key, source);
    }

    /** Return the position as text: `<partition>:<offset>:<timestamp>`. */
    private static byte[] position(int partition, long offset, long timestampMs) {
        String text = partition + ":" + offset + ":" + timestampMs;
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    /**
     * The header is three bytes: record version, protocol level, flags; records of others have
     * none.
     */
    private static boolean has(byte[] mqtt, int flag) {
        return mqtt != null && mqtt.length == MQTT_LENGTH && (mqtt[2] & flag) != 0;
    }

    private static boolean begins(byte[] key, byte[] prefix) {
        return key.length >= prefix.length
                && Arrays.equals(key, 0, prefix.length, prefix, 0, prefix.length);
    }
}
