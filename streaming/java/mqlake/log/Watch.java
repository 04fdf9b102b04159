package mqlake.log;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.Collections;

/**
 * Notices when a target of a {@link LogSender} does not answer while the rest of the log does, and
 * that too much is held for those that are away. It waits for nothing but one question to the log.
 */
final class Watch implements Runnable {
    private static final Logger LOG = LoggerFactory.getLogger(Watch.class);

    private static final long LOOK_MS = 500;

    /** A target that has not taken a record for so long is away, if the rest of the log answers. */
    private static final long PATIENCE_MS = 5000;

    private final LogSender sender;

    private Watch(LogSender sender) {
        this.sender = sender;
    }

    static void begin(LogSender sender) {
        Thread thread = new Thread(new Watch(sender), "mqlake-watch-" + sender.query);
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void run() {
        while (sender.failure == null) {
            try {
                Thread.sleep(LOOK_MS);
                Positions.tick();
                look();
            } catch (InterruptedException error) {
                return;
            } catch (RuntimeException error) {
                if (sender.failure == null) {
                    LOG.warn(
                            "not looked whether what " + sender.query + " sends arrives: " + error);
                }
            }
        }
    }

    private void look() {
        Target[] targets = sender.targets();
        boolean asked = false;
        boolean answers = false;
        for (int i = 0; i < targets.length; i++) {
            if (!isSlow(targets[i])) {
                continue;
            }
            // When nothing answers, there is nowhere to wait.
            answers =
                    asked
                            ? answers
                            : sender.limits
                                            .answering(
                                                    Collections.singleton(sender.undelivered.place))
                                            .size()
                                    == 1;
            asked = true;
            // The question may have taken its time, in which the target has answered.
            if (answers && isSlow(targets[i])) {
                sender.setAside(targets[i], "no acknowledgement for " + PATIENCE_MS + " ms");
            }
        }
        checkHeld(targets);
    }

    private boolean isSlow(Target target) {
        synchronized (sender) {
            Sent oldest = target.pending.peekFirst();
            return target.state == Target.FLOWING
                    && !target.isAwaited
                    && oldest != null
                    && oldest.sinceMs < System.currentTimeMillis() - PATIENCE_MS;
        }
    }

    /**
     * What the producer holds of targets that are away is durable elsewhere: a new one has none of
     * it.
     */
    private void checkHeld(Target[] targets) {
        long held = 0;
        long largest = 0;
        synchronized (sender) {
            for (int i = 0; i < targets.length; i++) {
                if (targets[i].state != Target.FLOWING) {
                    held += targets[i].pendingBytes;
                    largest = Math.max(largest, targets[i].largestPending());
                }
            }
        }
        // A single one may be larger.
        if (held > Math.max(LogSender.MOST_HELD_BYTES, largest)) {
            sender.fail(
                    new IllegalStateException(
                            "the producer holds " + held + " bytes for targets that are away"),
                    null);
        }
    }
}
