package mqlake.spark;

/**
 * The bytes that a rule may make of one message, counted before memory is taken: when memory has
 * run out, the JVM ends, and with it all rules and the routing.
 *
 * <p>A budget is a thread's and open while it evaluates a rule. What is evaluated without one,
 * constants of a rule that is compiled, has a fixed share for each of its functions (Bound).
 */
public final class Budget {
    /** What a rule makes of one message. */
    static final long MOST_BYTES = 32L * 1024 * 1024;

    private static final ThreadLocal<Budget> OF_THREAD =
            new ThreadLocal<>() {
                @Override
                protected Budget initialValue() {
                    return new Budget();
                }
            };

    private boolean isOpen;
    private long left;

    private Budget() {}

    /** Return this thread's budget. */
    public static Budget current() {
        return OF_THREAD.get();
    }

    /** Begin anew: what is taken until the end counts together. */
    public void begin() {
        isOpen = true;
        left = MOST_BYTES;
    }

    public void end() {
        isOpen = false;
    }

    boolean isOpen() {
        return isOpen;
    }

    /** Return what is left. */
    long left() {
        return left;
    }

    /**
     * Take bytes from what is left.
     *
     * @param what Makes them, for people.
     * @throws RuntimeException There are not so many left.
     */
    void take(long bytes, String what) {
        if (bytes > left) {
            throw Failures.raised(
                    what
                            + " brings the values that the rule makes of this message to "
                            + (MOST_BYTES - left + bytes)
                            + " bytes, "
                            + MOST_BYTES
                            + " are allowed");
        }
        left -= bytes;
    }
}
