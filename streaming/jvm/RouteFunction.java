package mqlake.streaming;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF6;

/**
 * Spark function: (key, `mqtt` header, `client_id` header, partition, offset, timestamp ms) of an inbound
 * record to its deliveries, an array of (log topic, `source` header). Payload and other headers do not
 * pass through it.
 *
 * A barrier is delivered to its gateway once its routes are applied, else not at all; a question to
 * the gateway that is asked. The record formats are those of mqlake/records.py.
 */
public final class RouteFunction implements UDF6 {
    private static final long serialVersionUID = 1L;
    private static final Row[] NOBODY = new Row[0];
    private static final byte[] BARRIER = "\0barrier/".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] QUESTION = "\0question/".getBytes(StandardCharsets.US_ASCII);
    private static final int FLAG_RETAIN = 4;

    private final Map<String, String> consumerConfig;
    private final String routesTopic;
    private final String deliveryPrefix;
    private final String inboundTopic;
    private transient volatile RouteFollower follower;
    private transient volatile Positions positions;

    public RouteFunction(
            Map<String, String> consumerConfig, String routesTopic, String deliveryPrefix,
            String inboundTopic) {
        this.consumerConfig = new java.util.HashMap<String, String>(consumerConfig);
        this.routesTopic = routesTopic;
        this.deliveryPrefix = deliveryPrefix;
        this.inboundTopic = inboundTopic;
    }

    /** The raw signature: Janino writes no bridge methods. */
    public Object call(
            Object keyBytes,
            Object mqtt,
            Object clientId,
            Object partition,
            Object offset,
            Object timestampMs) {
        byte[] key = (byte[]) keyBytes;
        RouteFollower routes = follower;
        if (routes == null) {
            routes = RouteFollower.of(consumerConfig, routesTopic);
            positions = Positions.of("router", inboundTopic);
            follower = routes;
        }
        positions.reach(((Integer) partition).intValue(), ((Long) offset).longValue());
        if (key == null) {
            return NOBODY;
        }
        String position = partition + ":" + offset + ":" + timestampMs;
        if (begins(key, BARRIER)) {
            return answer(key, position, routes);
        }
        if (begins(key, QUESTION)) {
            String gateway =
                    new String(
                            key,
                            QUESTION.length,
                            key.length - QUESTION.length,
                            StandardCharsets.US_ASCII);
            return deliver(gateway, position, routes);
        }
        int slash = 0;
        while (slash < key.length && key[slash] != '/') {
            slash++;
        }
        if (slash == key.length) {
            return NOBODY; // not ours: somebody else wrote to the topic
        }
        String tenant = new String(key, 0, slash, StandardCharsets.UTF_8);
        String topicName = new String(key, slash + 1, key.length - slash - 1, StandardCharsets.UTF_8);
        String publisher =
                clientId == null ? "" : new String((byte[]) clientId, StandardCharsets.UTF_8);
        LinkedHashMap<String, ArrayList<String>> found =
                routes.table()
                        .match(
                                tenant,
                                topicName,
                                isRetained((byte[]) mqtt),
                                publisher,
                                ((Integer) partition).intValue(),
                                ((Long) offset).longValue());
        if (found == null) {
            return NOBODY;
        }
        Row[] deliveries = new Row[found.size()];
        int count = 0;
        Iterator<Map.Entry<String, ArrayList<String>>> each = found.entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry<String, ArrayList<String>> entry =
                    (Map.Entry<String, ArrayList<String>>) each.next();
            String logTopic = deliveryPrefix + (String) entry.getKey();
            if (routes.exists(logTopic)) {
                deliveries[count++] =
                        delivery(logTopic, position, (ArrayList<String>) entry.getValue());
            }
        }
        return count == deliveries.length ? deliveries : (Row[]) Arrays.copyOf(deliveries, count);
    }

    private Row[] answer(byte[] key, String position, RouteFollower routes) {
        String[] parts =
                new String(key, BARRIER.length, key.length - BARRIER.length, StandardCharsets.US_ASCII)
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
        return deliver(parts[0], position, routes);
    }

    private Row[] deliver(String gateway, String position, RouteFollower routes) {
        String logTopic = deliveryPrefix + gateway;
        return routes.exists(logTopic) ? new Row[] {delivery(logTopic, position, null)} : NOBODY;
    }

    private static Row delivery(
            String logTopic, String position, ArrayList<String> sharedFilters) {
        String source = position;
        if (sharedFilters != null) {
            StringBuilder lines = new StringBuilder(position);
            for (int i = 0; i < sharedFilters.size(); i++) {
                lines.append('\n').append((String) sharedFilters.get(i));
            }
            source = lines.toString();
        }
        return RowFactory.create(
                new Object[] {logTopic, source.getBytes(StandardCharsets.UTF_8)});
    }

    /** The header is three bytes: record version, protocol level, flags; records of others have none. */
    private static boolean isRetained(byte[] mqtt) {
        return mqtt != null && mqtt.length == 3 && (mqtt[2] & FLAG_RETAIN) != 0;
    }

    private static boolean begins(byte[] key, byte[] prefix) {
        if (key.length < prefix.length) {
            return false;
        }
        for (int i = 0; i < prefix.length; i++) {
            if (key[i] != prefix[i]) {
                return false;
            }
        }
        return true;
    }
}
