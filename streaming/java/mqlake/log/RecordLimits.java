package mqlake.log;

/** How large records of a log topic may be. */
public interface RecordLimits {
    /**
     * Return the most bytes of key, value and headers together, with what the log adds.
     *
     * @param bytes Of a record: when that is more, the answer is not older than some seconds.
     */
    int mostBytes(String logTopic, long bytes);
}
