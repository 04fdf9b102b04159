package mqlake.routing;

import mqlake.Vocabulary;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashSet;
import java.util.Random;

/**
 * Readers ask a table while it changes, and compare with a list of all states that it goes through.
 *
 * <p>A gateway must be found that had a filter for the topic in every state from the last change
 * that was over before the question to the last one begun before the answer; none may be found that
 * had none in any of them.
 */
public final class RouteChanges implements Runnable {
    private static final int CHANGES = 200000;
    private static final int FILTERS = 64;
    private static final int GATEWAYS = 3;
    private static final int TOPICS = 100;
    private static final int READERS = 2;
    private static final String[] LEVELS = new String[] {"a", "b", "", "$s", "ä", "+"};
    private static final String[] NAMES = new String[] {"g0", "g1", "g2"};

    private static final RouteTable TABLE = new RouteTable();
    private static final String[] filters = new String[FILTERS];
    private static final String[] topics = new String[TOPICS];

    /** By topic the filters that match it, as bits. */
    private static final long[] matching = new long[TOPICS];

    /** By change and gateway the filters that it has after it, as bits. */
    private static final long[][] states = new long[CHANGES + 1][GATEWAYS];

    private static volatile int begun;
    private static volatile int over;
    private static volatile String wrong;

    private final int seed;

    private RouteChanges(int seed) {
        this.seed = seed;
    }

    public static void main(String[] arguments) throws Exception {
        Random random = new Random(Long.parseLong(arguments[0]));
        LinkedHashSet<String> different = new LinkedHashSet<>();
        different.add("#");
        while (different.size() < FILTERS) {
            different.add(levels(random, LEVELS.length) + (random.nextInt(4) == 0 ? "/#" : ""));
        }
        different.toArray(filters);
        for (int i = 0; i < TOPICS; i++) {
            topics[i] = levels(random, LEVELS.length - 1);
            for (int j = 0; j < FILTERS; j++) {
                matching[i] |= matches(filters[j], topics[i]) ? 1L << j : 0;
            }
        }
        int[] changed = new int[CHANGES + 1];
        for (int i = 1; i <= CHANGES; i++) {
            states[i] = states[i - 1].clone();
            changed[i] = random.nextInt(FILTERS * GATEWAYS);
            states[i][changed[i] % GATEWAYS] ^= 1L << changed[i] / GATEWAYS;
        }
        Thread[] readers = new Thread[READERS];
        for (int i = 0; i < READERS; i++) {
            readers[i] = new Thread(new RouteChanges(i));
            readers[i].start();
        }
        for (int i = 1; i <= CHANGES && wrong == null; i++) {
            int filter = changed[i] / GATEWAYS;
            int gateway = changed[i] % GATEWAYS;
            begun = i;
            TABLE.apply(
                    NAMES[gateway],
                    "t",
                    filters[filter],
                    (int) (states[i][gateway] >>> filter & 1),
                    Vocabulary.STRATEGY_RANDOM,
                    0,
                    0,
                    0);
            over = i;
        }
        for (int i = 0; i < READERS; i++) {
            readers[i].join();
        }
        for (int i = 0; i < FILTERS * GATEWAYS; i++) {
            TABLE.apply(
                    NAMES[i % GATEWAYS],
                    "t",
                    filters[i / GATEWAYS],
                    0,
                    Vocabulary.STRATEGY_RANDOM,
                    0,
                    0,
                    0);
        }
        if (wrong == null && !TABLE.isEmpty()) {
            wrong = "something is left after all was taken out";
        }
        System.out.println(wrong == null ? "right" : wrong);
    }

    /** Ask until the last change is over, and once more for each topic. */
    @Override
    public void run() {
        Random random = new Random(seed);
        while (over < CHANGES && wrong == null) {
            ask(random.nextInt(TOPICS));
        }
        for (int i = 0; i < TOPICS && wrong == null; i++) {
            ask(i);
        }
    }

    private static void ask(int topic) {
        int first = over;
        byte[] key = ("t/" + topics[topic]).getBytes(StandardCharsets.UTF_8);
        String[] found =
                TABLE.match(key, RouteTable.NOT_RETAINED, key, 0, 0, RouteTable.NEWEST).gateways;
        int last = begun;
        for (int gateway = 0; gateway < GATEWAYS; gateway++) {
            long always = -1L;
            long sometimes = 0;
            for (int i = first; i <= last; i++) {
                always &= states[i][gateway];
                sometimes |= states[i][gateway];
            }
            boolean isFound = false;
            for (int i = 0; i < found.length; i++) {
                isFound |= found[i].equals(NAMES[gateway]);
            }
            if (!isFound && (always & matching[topic]) != 0
                    || isFound && (sometimes & matching[topic]) == 0) {
                wrong =
                        NAMES[gateway]
                                + (isFound ? " found" : " not found")
                                + " for "
                                + topics[topic]
                                + " in states "
                                + first
                                + " to "
                                + last;
            }
        }
    }

    private static String levels(Random random, int choices) {
        StringBuilder levels = new StringBuilder(LEVELS[random.nextInt(choices)]);
        for (int i = random.nextInt(6); i > 0; i--) {
            levels.append('/').append(LEVELS[random.nextInt(choices)]);
        }
        return levels.length() == 0 ? "/" : levels.toString();
    }

    /** The rule, level by level: mqlake/topics/matching.py. */
    private static boolean matches(String filter, String topic) {
        String[] wanted = filter.split("/", -1);
        String[] names = topic.split("/", -1);
        if (topic.startsWith("$") && (wanted[0].equals("+") || wanted[0].equals("#"))) {
            return false;
        }
        for (int i = 0; i < wanted.length; i++) {
            if (wanted[i].equals("#")) {
                return true;
            }
            if (i == names.length || !wanted[i].equals("+") && !wanted[i].equals(names[i])) {
                return false;
            }
        }
        return wanted.length == names.length;
    }
}
