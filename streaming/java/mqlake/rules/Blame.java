package mqlake.rules;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.HashMap;

/**
 * Who has made a rule fail in the present minute, and where: nobody has it paused alone.
 *
 * <p>Names are chosen freely where nobody has to log in, so addresses are counted beside them. For
 * one thread at a time.
 */
public final class Blame {
    /** Failures within a minute that speak against the rule: of one user, or client without one. */
    static final int MAX_OF_PUBLISHER = 10;

    /** Of one address; of a network of 64 bits in IPv6, which one customer has. */
    static final int MAX_OF_ADDRESS = 50;

    /** Of one topic, for a rule whose filters match many. */
    static final int MAX_OF_TOPIC = 50;

    /**
     * Dead letters of one publisher within a minute that are all written; then one of
     * LETTER_SAMPLE.
     */
    static final int MAX_LETTERS = 1000;

    /** Of all publishers together. */
    static final int MAX_ALL_LETTERS = 10000;

    static final int LETTER_SAMPLE = 100;

    /** Names, addresses and topics told apart within a minute, of each; further ones are as one. */
    private static final int MAX_TOLD_APART = 1000;

    private static final long MINUTE_MS = 60000;

    private final HashMap<String, int[]> publishers = new HashMap<>();
    private final HashMap<String, int[]> addresses = new HashMap<>();
    private final HashMap<String, int[]> topics = new HashMap<>();
    private int all;
    private long minute;

    private boolean isOfRule;

    /** Tell whether the last failure speaks against the rule. */
    public boolean isOfRule() {
        return isOfRule;
    }

    /**
     * Take note of a failure; tell whether a dead letter is to tell of it.
     *
     * @param publisher user, else client
     * @param address of the client; null where none is known
     * @param topic null for a rule that reads no other
     */
    public boolean note(String publisher, String address, String topic, long nowMs) {
        if (nowMs / MINUTE_MS != minute) {
            minute = nowMs / MINUTE_MS;
            clear();
        }
        all++;
        int times = count(publishers, publisher);
        // All are counted, also where one alone has decided.
        boolean isWithin = times <= MAX_OF_PUBLISHER;
        isWithin &= address == null || count(addresses, network(address)) <= MAX_OF_ADDRESS;
        isWithin &= topic == null || count(topics, topic) <= MAX_OF_TOPIC;
        isOfRule = isWithin;
        return times <= MAX_LETTERS && all <= MAX_ALL_LETTERS || all % LETTER_SAMPLE == 0;
    }

    void clear() {
        publishers.clear();
        addresses.clear();
        topics.clear();
        all = 0;
    }

    private static int count(HashMap<String, int[]> counts, String name) {
        String key = counts.size() < MAX_TOLD_APART || counts.containsKey(name) ? name : "";
        return ++counts.computeIfAbsent(key, any -> new int[1])[0];
    }

    /** Return an IPv4 address as it is, of an IPv6 address the first 64 bits. */
    private static String network(String address) {
        if (address.indexOf(':') < 0) {
            return address;
        }
        try {
            byte[] bytes =
                    InetAddress.getByName(address).getAddress(); // of numbers: nobody is asked
            if (bytes.length == 4) {
                return address;
            }
            StringBuilder found = new StringBuilder();
            for (int i = 0; i < 8; i++) {
                found.append(bytes[i]).append(':');
            }
            return found.toString();
        } catch (UnknownHostException error) {
            return address;
        }
    }
}
