package mqlake.routing;

import mqlake.Vocabulary;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Map;
import java.util.Random;

/**
 * Times the route function by itself, and prints what it finds: figure, unit and value on a line,
 * with tabs between.
 *
 * <p>Filters as devices have them, `site/line/device/metric`: one in ten with `+`, one in twenty
 * with `#`, one in fifty of a share group. Times are of the processor, not of the clock: the
 * machine may have other work.
 */
public final class RouteBench {
    private static final String TENANT = "acme";
    private static final String[] METRICS =
            new String[] {
                "temperature",
                "humidity",
                "pressure",
                "vibration",
                "voltage",
                "current",
                "state",
                "alarm"
            };
    private static final int LITERAL = 0;
    private static final int LAST_PLUS = 1;
    private static final int MIDDLE_PLUS = 2;
    private static final int REST = 3;
    private static final int SITES = 50;
    private static final int LINES = 200;
    private static final int GATEWAYS = 4;

    /** Topics that come again and again, some much more often than others. */
    private static final int KNOWN_TOPICS = 50000;

    private static final int CHANGES = 10000;
    private static final int WARM_UPS = 4;
    private static final int ROUNDS = 5;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final long OFFSET = 1000000;
    private static final long TIMESTAMP_MS = 1763719200000L;
    private static final byte[] MQTT = new byte[] {1, 5, 1};

    private static final RouteTable TABLE = new RouteTable();

    /** Of a round. */
    private static int messages;

    /** So that no work is for nothing. */
    private static long found;

    private static final RouteFunction FUNCTION =
            new RouteFunction(
                    Map.of(),
                    "mqlake.routes",
                    "mqlake.delivery.",
                    "mqlake.inbound",
                    "mqlake.routes_in_force",
                    4);

    public static void main(String[] arguments) {
        int filters = Integer.parseInt(arguments[0]);
        messages = Integer.parseInt(arguments[1]);
        Random random = new Random(7);
        long before = used();
        for (int i = 0; i < filters; i++) {
            change(filter(i), i % GATEWAYS, 1);
        }
        print("memory of a filter", "bytes", (used() - before) / (double) filters);
        byte[][] known = known(random, filters);
        byte[][] fresh = fresh(random, filters);
        double[] knownNs = new double[ROUNDS];
        double[] freshNs = new double[ROUNDS];
        for (int round = -WARM_UPS; round < ROUNDS; round++) {
            double ns = match(known);
            knownNs[Math.max(round, 0)] = ns;
            freshNs[Math.max(round, 0)] = match(fresh);
        }
        print("match of a topic seen before", "us", median(knownNs) / 1000);
        print("match of a new topic", "us", median(freshNs) / 1000);
        changes("change of a filter", filters, LITERAL);
        changes("change of a filter with +", filters, LAST_PLUS);
        changes("change of a filter with #", filters, REST);
        deliveries("message for 1 gateway", 1);
        deliveries("message for 10 gateways", 10);
        if (found == 0) {
            throw new IllegalStateException("nothing was found");
        }
    }

    private static String line(int number) {
        return "site-" + number % SITES + "/line-" + number / SITES % LINES;
    }

    private static String device(int number) {
        return line(number) + "/device-" + number;
    }

    /** Return one of twenty kinds; all but three of them are literal. */
    private static int kind(int i) {
        return (int) (i * 7919L % 20);
    }

    private static String filter(int i) {
        String metric = METRICS[i % 8];
        int kind = kind(i);
        String plain;
        if (kind == LAST_PLUS) {
            plain = device(i) + "/+";
        } else if (kind == MIDDLE_PLUS) {
            plain = line(i) + "/+/" + metric;
        } else if (kind == REST) {
            plain = i % 10 == 0 ? line(i) + "/#" : device(i) + "/#";
        } else {
            plain = device(i) + "/" + metric;
        }
        return i % 50 == 9 ? "$share/workers/" + plain : plain;
    }

    private static byte[][] known(Random random, int filters) {
        byte[][] topics = new byte[KNOWN_TOPICS][];
        double[] sums = new double[KNOWN_TOPICS];
        double sum = 0;
        for (int i = 0; i < topics.length; i++) {
            int device = random.nextInt(filters);
            topics[i] = TopicFilters.key(TENANT, device(device) + "/" + METRICS[device % 8]);
            sum += 1.0 / (i + 1);
            sums[i] = sum;
        }
        byte[][] keys = new byte[messages][];
        for (int i = 0; i < keys.length; i++) {
            int at = Arrays.binarySearch(sums, random.nextDouble() * sum);
            keys[i] = topics[Math.min(at < 0 ? -at - 1 : at, KNOWN_TOPICS - 1)].clone();
        }
        return keys;
    }

    /** Topics that come once each, and so are in no cache. */
    private static byte[][] fresh(Random random, int filters) {
        byte[][] keys = new byte[messages][];
        for (int i = 0; i < keys.length; i++) {
            int device = i % filters;
            keys[i] =
                    TopicFilters.key(
                            TENANT, device(device) + "/" + METRICS[(device + i / filters) % 8]);
        }
        for (int i = keys.length - 1; i > 0; i--) {
            int other = random.nextInt(i + 1);
            byte[] kept = keys[i];
            keys[i] = keys[other];
            keys[other] = kept;
        }
        return keys;
    }

    private static double match(byte[][] keys) {
        long begin = THREADS.getCurrentThreadCpuTime();
        for (int i = 0; i < keys.length; i++) {
            found +=
                    TABLE.match(keys[i], RouteTable.NOT_RETAINED, keys[i], 0, i, RouteTable.NEWEST)
                            .gateways
                            .length;
        }
        return (THREADS.getCurrentThreadCpuTime() - begin) / (double) keys.length;
    }

    private static void change(String filter, int gateway, int members) {
        TABLE.apply(
                "gateway-" + gateway,
                TENANT,
                filter,
                members,
                Vocabulary.STRATEGY_ROUND_ROBIN,
                0,
                0,
                0);
    }

    private static void changes(String name, int filters, int kind) {
        ArrayList<String> chosen = new ArrayList<>();
        for (int i = 0; chosen.size() < CHANGES; i++) {
            if (kind(i) == kind) {
                chosen.add(filter(i % filters));
            }
        }
        double[] ns = new double[ROUNDS];
        for (int round = -WARM_UPS; round < ROUNDS; round++) {
            long begin = THREADS.getCurrentThreadCpuTime();
            for (int i = 0; i < chosen.size(); i++) {
                change(chosen.get(i), GATEWAYS, 1);
                change(chosen.get(i), GATEWAYS, 0);
            }
            long end = THREADS.getCurrentThreadCpuTime();
            ns[Math.max(round, 0)] = (end - begin) / (2.0 * chosen.size());
        }
        print(name, "us", median(ns) / 1000);
    }

    /** The whole function on messages of one topic that so many gateways want. */
    private static void deliveries(String name, int gateways) {
        for (int i = 0; i < gateways; i++) {
            change("deliveries/" + gateways, i, 1);
        }
        byte[] key = TopicFilters.key(TENANT, "deliveries/" + gateways);
        double[] ns = new double[ROUNDS];
        for (int round = -WARM_UPS; round < ROUNDS; round++) {
            long begin = THREADS.getCurrentThreadCpuTime();
            for (int i = 0; i < messages; i++) {
                found += deliver(key, i);
            }
            long end = THREADS.getCurrentThreadCpuTime();
            ns[Math.max(round, 0)] = (end - begin) / (double) messages;
        }
        print(name, "us", median(ns) / 1000);
    }

    /** Return how many get a message. */
    private static int deliver(byte[] key, int i) {
        return FUNCTION.message(
                        key, MQTT, key, 3, OFFSET + i, TIMESTAMP_MS + i, RouteTable.NEWEST, TABLE)
                .length;
    }

    private static double median(double[] values) {
        Arrays.sort(values);
        return values[values.length / 2];
    }

    private static void print(String name, String unit, double value) {
        System.out.println(name + "\t" + unit + "\t" + value);
    }

    private static long used() {
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
