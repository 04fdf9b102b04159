package mqlake.streaming;

/** Which log topics there are. */
interface LogTopics {
    boolean exists(String logTopic);
}
