package mqlake.spark;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Ends the JVM when a thread of it dies of the JVM's own errors.
 *
 * <p>Spark goes on without such a thread: when it is a dispatcher's, queries stand still and say
 * nothing. A stack that is too deep is left out: it is the end of one task, also of one that is
 * merely stopped.
 */
public final class FatalErrors implements Thread.UncaughtExceptionHandler {
    /** Of the JVM when it ends so: EX_SOFTWARE of sysexits.h. */
    public static final int EXIT_CODE = 70;

    private static final Logger LOG = LoggerFactory.getLogger(FatalErrors.class);

    /** Look at what ends threads from now on. */
    public static void watch() {
        Thread.setDefaultUncaughtExceptionHandler(new FatalErrors());
    }

    @Override
    public void uncaughtException(Thread thread, Throwable error) {
        LOG.error("thread " + thread.getName() + " has died", error);
        if (error instanceof VirtualMachineError && !(error instanceof StackOverflowError)) {
            Runtime.getRuntime().halt(EXIT_CODE);
        }
    }
}
