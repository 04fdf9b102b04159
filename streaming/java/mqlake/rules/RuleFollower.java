package mqlake.rules;

import mqlake.Vocabulary;
import mqlake.log.LogFollower;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Keeps the rules of this JVM up to date from the log topic of rules: its activations.
 *
 * <p>There is one per JVM and log. Record formats are those of mqlake/records/rules.py.
 */
public final class RuleFollower extends LogFollower<RuleTable> {
    private static final Logger LOG = LoggerFactory.getLogger(RuleFollower.class);
    private static final ConcurrentHashMap<String, RuleFollower> FOLLOWERS =
            new ConcurrentHashMap<>();
    private static final int COMPILING_THREADS = 2;

    /**
     * Wait for a change before it is in doubt; it is more than who makes it waits before giving it
     * up.
     */
    private static final long CHANGE_MS = 20000;

    /** Between two looks whether the log has answered what is in doubt. */
    private static final long LOOK_MS = 1000;

    /** While the whole topic is read: key to the last value; null afterwards. */
    private LinkedHashMap<String, byte[]> waiting;

    /** The table that was there before the topic was read once more; it may still have counts. */
    private volatile RuleTable previous;

    private final long changeMs;
    private final boolean isEvaluated;
    private final Signature signature;

    /** A change that did not come; barriers up to it wait no more. */
    private volatile long givenUp = -1;

    RuleFollower(Map<String, String> config, String logTopic, long changeMs, boolean isEvaluated) {
        super(config, logTopic);
        this.changeMs = changeMs;
        this.isEvaluated = isEvaluated;
        signature = new Signature(config);
    }

    /**
     * Return the follower of one log in this JVM, started at the first call; it compiles the rules.
     */
    public static RuleFollower of(Map<String, String> config, String logTopic) {
        return of(config, logTopic, true);
    }

    /**
     * Likewise one for who evaluates stateful versions: the others it knows, but has no code of
     * them.
     */
    public static RuleFollower ofRuns(Map<String, String> config, String logTopic) {
        return of(config, logTopic, false);
    }

    private static RuleFollower of(
            Map<String, String> config, String logTopic, boolean isEvaluated) {
        String name =
                (isEvaluated ? "" : "runs of ") + logTopic + "@" + config.get("bootstrap.servers");
        RuleFollower follower = FOLLOWERS.get(name);
        if (follower != null) {
            return follower;
        }
        synchronized (FOLLOWERS) {
            follower = FOLLOWERS.get(name);
            if (follower == null) {
                follower = new RuleFollower(config, logTopic, CHANGE_MS, isEvaluated);
                follower.start("mqlake-rules");
                FOLLOWERS.put(name, follower);
            }
            return follower;
        }
    }

    /**
     * Return the table once the topic was read to its end.
     *
     * @throws IllegalStateException Not within a minute.
     */
    public RuleTable table() {
        return read();
    }

    /**
     * Wait until the table has what came of a change; not for ever, the change may never come. It
     * is given up when it is late and the table has all that the log had by then: a table that is
     * merely behind, on a machine with too much to do, would evaluate by versions that no longer
     * count.
     */
    public void awaitDecided(long change) {
        if (table().decided >= change || givenUp >= change) {
            return;
        }
        long deadline = now() + changeMs;
        long lookup = Long.MAX_VALUE;
        synchronized (lock) {
            while (table().decided < change && givenUp < change) {
                long left = deadline - now();
                if (left <= 0 && lookup == Long.MAX_VALUE) {
                    lookup = wantLookup();
                }
                if (lookupsDone >= lookup && applied() >= end - 1) {
                    LOG.warn("change " + change + " of rules did not come in " + changeMs + " ms");
                    givenUp = change;
                    lock.notifyAll();
                    return;
                }
                pause(left > 0 ? left : LOOK_MS);
            }
        }
    }

    /** Give all rules of this JVM what their tables have counted for them. */
    static void giveCounts() {
        Iterator<RuleFollower> each = FOLLOWERS.values().iterator();
        while (each.hasNext()) {
            RuleFollower follower = each.next();
            RuleTable current = follower.table;
            RuleTable old = follower.previous;
            if (old != null) {
                old.giveCounts();
            }
            if (current != null) {
                current.giveCounts();
            }
        }
    }

    @Override
    protected RuleTable newTable() {
        waiting = new LinkedHashMap<>();
        return new RuleTable(isEvaluated);
    }

    @Override
    protected void apply(ConsumerRecord<byte[], byte[]> record, RuleTable target) {
        if (record.key() == null) {
            return;
        }
        String key = new String(record.key(), StandardCharsets.UTF_8);
        if (!signature.isOurs(record)) {
            LOG.warn(
                    "record "
                            + key
                            + " of "
                            + topic
                            + " at "
                            + record.offset()
                            + " is not signed by the rule controller, refused");
            return;
        }
        if (waiting != null) {
            waiting.put(key, record.value());
        } else {
            apply(key, record.value(), target);
        }
    }

    private void apply(String key, byte[] value, RuleTable target) {
        try {
            target.apply(key, value);
        } catch (IOException error) {
            LOG.warn("record " + key + " of " + topic + " is not JSON, ignored");
        } catch (RuntimeException error) {
            LOG.warn("record " + key + " of " + topic + " is of another form, ignored", error);
        }
    }

    /** Compile what is there by several threads: after a start it may be hundreds of rules. */
    @Override
    protected void caughtUp(RuleTable target) {
        previous = table;
        ArrayList<CompiledRule> held = isEvaluated ? compileAll() : new ArrayList<>();
        Iterator<Map.Entry<String, byte[]>> each = waiting.entrySet().iterator();
        waiting = null;
        while (each.hasNext()) {
            Map.Entry<String, byte[]> entry = each.next();
            apply(entry.getKey(), entry.getValue(), target);
        }
        LOG.info(held.size() + " rules compiled");
    }

    /** Return what was compiled: the compiler forgets what nobody holds. */
    private ArrayList<CompiledRule> compileAll() {
        HashSet<String> texts = new HashSet<>();
        Iterator<Map.Entry<String, byte[]>> each = waiting.entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry<String, byte[]> entry = each.next();
            if (entry.getKey().startsWith(Vocabulary.ACTIVATION_PREFIX)) {
                try {
                    texts.addAll(Arrays.asList(Activation.expressions(entry.getValue())));
                } catch (Exception error) {
                    LOG.debug("not compiled", error); // said when it is applied
                }
            }
        }
        final Iterator<String> all = texts.iterator();
        final ArrayList<CompiledRule> compiled = new ArrayList<>();
        Thread[] threads = new Thread[Math.min(COMPILING_THREADS, texts.size())];
        for (int i = 0; i < threads.length; i++) {
            threads[i] =
                    new Thread("mqlake-rules-" + i) {
                        @Override
                        public void run() {
                            while (true) {
                                String text;
                                synchronized (all) {
                                    if (!all.hasNext()) {
                                        return;
                                    }
                                    text = all.next();
                                }
                                try {
                                    CompiledRule rule = RuleCompiler.compile(text);
                                    synchronized (compiled) {
                                        compiled.add(rule);
                                    }
                                } catch (IllegalArgumentException error) {
                                    LOG.debug("not compiled", error); // said when it is applied
                                }
                            }
                        }
                    };
            threads[i].setDaemon(true);
            threads[i].start();
        }
        for (int i = 0; i < threads.length; i++) {
            try {
                threads[i].join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
        return compiled;
    }
}
