package mqlake.log;

import mqlake.Vocabulary;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Appends the rows of a query to the log so that no gap can come to be: a record is there before
 * any that was sent later to the same partition, or it is told why it never will be.
 *
 * <p>The producer never gives up. A target that does not answer holds nobody else up: {@link Watch}
 * notices, its records go to the log topic of undelivered ones, and {@link Redelivery} sends them
 * from there when it is back. Left out are those that are too large, and those for log topics that
 * do not exist. Any other refusal ends the sender: nothing leaves it any more, and the query begins
 * again from its checkpoint with a new one, for which that target is away and is tried with one
 * record at a time.
 *
 * <p>{@link LogSenders} has one for each run of a query in this JVM.
 */
public final class LogSender {
    private static final Logger LOG = LoggerFactory.getLogger(LogSender.class);

    private static final int MIB = 1024 * 1024;

    /** Of records that are nowhere in the log yet; a single one may be larger. */
    private static final long MOST_BYTES = 32L * MIB;

    /** Of these for one target. */
    private static final long MOST_TARGET_BYTES = 4L * MIB;

    /** What the producer may hold of targets that are away; their records are durable elsewhere. */
    static final long MOST_HELD_BYTES = 32L * MIB;

    /** Of the producer. */
    static final int BATCH_BYTES = 65536;

    private static final long METADATA_MS = 1000;

    /** A target that has refused a record is tried again after so long. */
    private static final long REFUSED_MS = 5000;

    final String query;
    final LogLimits limits;
    final Undelivered undelivered;
    private final String eventsTopic;
    private final String awaitedTopic;
    private final Producer<byte[], byte[]> producer;

    /** Of the tasks that run. */
    final Set<TaskBatch> open = ConcurrentHashMap.newKeySet();

    // Guarded by this.
    private final HashMap<TopicPartition, Target> targets = new HashMap<>();

    /** Those that are away until they have taken a record. */
    private final Set<TopicPartition> suspects;

    private long bytesOnTheWay;
    private int waiters;

    /** What is handed to the log topic of undelivered records from now on is not before this. */
    private long waitingEnd;

    volatile Exception failure;

    /**
     * @param producer From {@link #connect}.
     */
    LogSender(
            String query,
            LogLimits limits,
            String events,
            String awaited,
            Undelivered undelivered,
            Set<TopicPartition> suspects,
            Producer<byte[], byte[]> producer) {
        this.query = query;
        this.limits = limits;
        this.eventsTopic = events;
        this.awaitedTopic = awaited;
        this.undelivered = undelivered;
        this.suspects = suspects;
        this.producer = producer;
    }

    /** Return a producer that never gives up a record. */
    static Producer<byte[], byte[]> connect(String query, Map<String, String> client) {
        Properties properties = ClientOptions.of(client);
        properties.put("client.id", "mqlake-" + query);
        properties.put("acks", "all");
        properties.put("enable.idempotence", "true");
        // What comes while a request is on its way makes the next one: the more there is, the fewer
        // they are.
        properties.put("max.in.flight.requests.per.connection", "1");
        properties.put("linger.ms", "0");
        properties.put("batch.size", String.valueOf(BATCH_BYTES));
        properties.put("delivery.timeout.ms", String.valueOf(Integer.MAX_VALUE));
        properties.put("max.block.ms", String.valueOf(METADATA_MS));
        properties.put("max.request.size", String.valueOf(LogLimits.MOST_BYTES));
        properties.put(
                "buffer.memory",
                String.valueOf(LogLimits.MOST_BYTES + MOST_BYTES + MOST_HELD_BYTES + 8L * MIB));
        return new KafkaProducer<>(
                properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** Add a line for each target whose records wait, as {@link LogSenders#waiting} says. */
    void addWaiting(StringBuilder lines) {
        Target[] all = targets();
        synchronized (this) {
            for (int i = 0; i < all.length; i++) {
                Target target = all[i];
                if (target.undelivered > 0) {
                    lines.append(query).append(' ').append(target.topic).append(' ');
                    lines.append(target.partition).append(' ').append(target.undelivered);
                    lines.append(' ').append(target.undeliveredBytes).append(' ');
                    lines.append(target.oldestMs).append('\n');
                }
            }
        }
    }

    /**
     * Have the producer know a log topic, as it forgets those that it does not send to for minutes.
     */
    boolean knows(String logTopic) {
        try {
            producer.partitionsFor(logTopic);
            return true;
        } catch (InterruptException error) {
            throw error;
        } catch (KafkaException error) {
            return false;
        }
    }

    public TaskBatch begin() {
        return new TaskBatch(this);
    }

    /** Return a target; one that is not there is away at first. */
    Target target(TopicPartition place) {
        Target target;
        synchronized (this) {
            target = targets.get(place);
            if (target != null) {
                return target;
            }
        }
        boolean isAwaited = place.topic().equals(awaitedTopic);
        target = new Target(place.topic(), place.partition(), isAwaited);
        try {
            target.mostBytes = limits.lookUp(place.topic());
        } catch (UnknownTopicOrPartitionException error) {
            // Perhaps not known yet to the broker that was asked: the next send finds out.
            target.mostBytes = limits.mostBytes(undelivered.place.topic(), 0);
            target.state = isAwaited ? Target.FLOWING : Target.AWAY;
        }
        synchronized (this) {
            target.state = suspects.contains(place) && !isAwaited ? Target.AWAY : target.state;
            Target other = targets.get(place);
            if (other == null) {
                targets.put(place, target);
                return target;
            }
            return other;
        }
    }

    Target[] targets() {
        synchronized (this) {
            return targets.values().toArray(new Target[targets.size()]);
        }
    }

    /** Send a record of so many bytes. */
    void send(
            TaskBatch batch,
            Target target,
            byte[] key,
            byte[] value,
            RecordHeaders headers,
            long bytes)
            throws IOException {
        if (bytes > target.mostBytes) {
            target.mostBytes = limits.mostBytes(target.topic, bytes);
            if (bytes > target.mostBytes) {
                leaveOut(batch, target, key, bytes);
                return;
            }
        }
        Sent sent =
                new Sent(
                        this,
                        batch,
                        target,
                        new ProducerRecord<>(
                                target.topic,
                                Integer.valueOf(target.partition),
                                key,
                                value,
                                headers),
                        bytes,
                        -1);
        synchronized (this) {
            while (!hasRoom(target, bytes)) {
                pause();
            }
            bytesOnTheWay += bytes;
            sent.range = batch.add();
        }
        boolean isSent = false;
        try {
            synchronized (target) {
                check();
                send(sent);
            }
            isSent = true;
        } finally {
            if (!isSent) {
                forget(sent);
                settle(sent);
            }
        }
    }

    /** Send a record where those of its target go now, with the target's monitor held. */
    private void send(Sent sent) throws IOException {
        Target target = sent.target;
        if (target.state == Target.AWAY) {
            sendToWait(sent);
        } else if (target.state == Target.GONE) {
            leaveOutGone(sent.batch, target, 1);
            settle(sent);
        } else if (!sendOn(sent)) {
            check();
            setAside(target, String.valueOf(sent.refused));
            forget(sent);
        }
    }

    private boolean hasRoom(Target target, long bytes) {
        if (bytesOnTheWay > 0 && bytesOnTheWay + bytes > MOST_BYTES) {
            return false;
        }
        return target.state != Target.FLOWING
                || target.pendingBytes == 0
                || target.pendingBytes + bytes <= MOST_TARGET_BYTES && !target.takesSingles();
    }

    /** Hand a record to the producer; false when it does not take it. */
    boolean sendOn(Sent sent) throws IOException {
        synchronized (this) {
            sent.target.pending.add(sent);
            sent.target.pendingBytes += sent.bytes;
            sent.sinceMs = System.currentTimeMillis();
        }
        sent.handing = Thread.currentThread();
        try {
            producer.send(sent.record, sent);
        } catch (InterruptException error) {
            throw new InterruptedIOException("stopped while it waited for the log");
        } catch (KafkaException error) {
            sent.refused = error;
        } catch (IllegalStateException error) {
            check(); // It is closed.
            throw error;
        } finally {
            sent.handing = null;
        }
        return sent.refused == null;
    }

    /** The log has a record, or has refused it. */
    void sent(Sent sent, Exception error) {
        if (error instanceof RecordTooLargeException) {
            leaveOut(
                    sent.batch,
                    sent.target,
                    sent.record.key(),
                    Vocabulary.TOO_LARGE,
                    sent.bytes + " bytes to " + sent.target + ": " + error.getMessage());
        } else if (error != null && sent.handing == Thread.currentThread()) {
            sent.refused = error;
            return;
        } else if (error != null) {
            // What was sent behind it may get there.
            if (!waitsOn(sent, error)) {
                fail(error, sent.target);
            }
            return;
        }
        synchronized (this) {
            sent.target.answers = true;
            forget(sent);
            settle(sent);
        }
    }

    /**
     * Leave a refused record where it waits; false when it does not, or something was sent behind
     * it.
     */
    private boolean waitsOn(Sent sent, Exception error) {
        Target target = sent.target;
        synchronized (this) {
            // Until a target answers it is sent one at a time.
            if (sent.waitedAt < 0 || target.answers || target.pending.size() != 1) {
                return false;
            }
            waitsAgain(sent);
            target.notBeforeMs = System.currentTimeMillis() + REFUSED_MS;
        }
        forget(sent);
        LOG.warn("records of " + query + " for " + target + " wait on: " + error);
        return true;
    }

    /** Count a record that waits as sent again, before it is. */
    void waitedFor(Sent sent) {
        synchronized (this) {
            sent.target.undelivered--;
            sent.target.undeliveredBytes -= sent.bytes;
            sent.target.first = sent.waitedAt + 1;
        }
    }

    /** It was not sent. */
    void waitsAgain(Sent sent) {
        synchronized (this) {
            sent.target.undelivered++;
            sent.target.undeliveredBytes += sent.bytes;
            sent.target.first = sent.waitedAt;
        }
    }

    /**
     * Let the records of a target wait in the log from now on, with those that it has not
     * acknowledged.
     */
    void setAside(Target target, String why) {
        if (target.isAwaited) {
            fail(new IllegalStateException(target + ": " + why), null);
            return;
        }
        synchronized (target) {
            Sent[] pending;
            synchronized (this) {
                if (target.state != Target.FLOWING) {
                    return;
                }
                target.state = Target.AWAY;
                target.answers = false;
                pending = target.pending.toArray(new Sent[0]);
                notifyAll();
            }
            LOG.warn(
                    "records of "
                            + query
                            + " for "
                            + target
                            + " wait in "
                            + undelivered.place.topic()
                            + ": "
                            + why);
            for (Sent sent : pending) {
                sendToWait(sent);
            }
        }
    }

    private void sendToWait(Sent sent) {
        synchronized (this) {
            Target target = sent.target;
            target.first = target.first < 0 ? waitingEnd : target.first;
            target.oldestMs =
                    target.undelivered == 0 ? System.currentTimeMillis() : target.oldestMs;
            target.onTheWay++;
            target.undelivered++;
            target.undeliveredBytes += sent.bytes;
        }
        Sent.Waiting waiting = new Sent.Waiting(sent);
        try {
            producer.send(undelivered.waiting(sent), waiting);
        } catch (RuntimeException error) {
            waiting.onCompletion(null, error);
        }
    }

    /** The log has a record among the undelivered, or has refused it. */
    void waits(Sent sent, RecordMetadata metadata, Exception error) {
        Target target = sent.target;
        if (error instanceof RecordTooLargeException) {
            leaveOut(
                    sent.batch,
                    target,
                    sent.record.key(),
                    Vocabulary.TOO_LARGE,
                    sent.bytes + " bytes for " + target + ", which is away: " + error.getMessage());
        } else if (error != null) {
            fail(error, null);
            return;
        }
        boolean isPlaced = true;
        synchronized (this) {
            target.onTheWay--;
            if (error != null) {
                target.undelivered--;
                target.undeliveredBytes -= sent.bytes;
            } else if (metadata.offset() < waitingEnd) {
                isPlaced = false;
            } else {
                target.last = metadata.offset();
                waitingEnd = target.last + 1;
            }
        }
        if (!isPlaced) {
            // The log has lost its end, or cannot say where the record is: a new run finds out.
            fail(
                    new IllegalStateException(
                            undelivered.place + " has a record at " + metadata.offset()),
                    null);
            return;
        }
        settle(sent);
    }

    void forget(Sent sent) {
        synchronized (this) {
            // Nearly always the first: a partition is acknowledged in order.
            if (sent.target.pending.remove(sent)) {
                sent.target.pendingBytes -= sent.bytes;
                wake();
            }
        }
    }

    private void settle(Sent sent) {
        synchronized (this) {
            if (!sent.settled) {
                sent.settled = true;
                bytesOnTheWay -= sent.bytes;
                sent.batch.settle(sent.range);
            }
            wake();
        }
    }

    private void wake() {
        if (waiters > 0) {
            notifyAll();
        }
    }

    /** Wait for a change, with the monitor held. */
    void pause() throws IOException {
        pause(1000);
    }

    void pause(long mostMs) throws IOException {
        check();
        waiters++;
        try {
            wait(mostMs);
        } catch (InterruptedException error) {
            throw new InterruptedIOException("stopped while it waited for the log");
        } finally {
            waiters--;
        }
        check();
    }

    /** Wait until all that a batch has sent is in the log, and told what was left out of it. */
    void await(TaskBatch batch) throws IOException {
        do {
            awaitSent(batch);
        } while (tell(batch, batch));
    }

    private void awaitSent(TaskBatch batch) throws IOException {
        synchronized (this) {
            while (batch.left > 0) {
                pause();
            }
        }
    }

    /** Tell what tasks have left out, by events of another batch: their batches may be long. */
    void tellLeftOut(TaskBatch by) throws IOException {
        for (TaskBatch batch : open) {
            tell(batch, by);
        }
    }

    /** Tell what a batch has left out so far; false when there is nothing to tell. */
    private boolean tell(TaskBatch batch, TaskBatch by) throws IOException {
        try {
            batch.telling.lockInterruptibly();
        } catch (InterruptedException error) {
            throw new InterruptedIOException("stopped while it waited for the log");
        }
        try {
            LeftOut.Taken taken = batch.leftOut.take();
            for (LeftOut.Event event : taken.events()) {
                send(
                        by,
                        target(new TopicPartition(eventsTopic, 0)),
                        event.key(),
                        event.value(),
                        new RecordHeaders(),
                        LogLimits.size(event.key(), event.value()));
            }
            awaitSent(by);
            batch.told(taken.added());
            return taken.events().length > 0;
        } finally {
            batch.telling.unlock();
        }
    }

    /** Find out whether anything may leave. */
    void check() throws IOException {
        if (failure != null) {
            throw new IOException("the log did not take a record of " + query, failure);
        }
        if (Thread.currentThread().isInterrupted()) {
            throw new InterruptedIOException("stopped while it waited for the log");
        }
    }

    void leaveOut(TaskBatch batch, Target target, byte[] key, long bytes) {
        leaveOut(
                batch,
                target,
                key,
                Vocabulary.TOO_LARGE,
                bytes + " bytes, " + target.topic + " takes " + target.mostBytes);
    }

    private void leaveOut(
            TaskBatch batch, Target target, byte[] key, String reason, String detail) {
        if (target.topic.equals(eventsTopic)) {
            LOG.warn(
                    query
                            + " leaves out an event, "
                            + reason
                            + ": "
                            + detail); // no event tells of it
        } else {
            batch.leftOut.add(key, reason, detail);
        }
    }

    void leaveOutGone(TaskBatch batch, Target target, long count) {
        if (target.topic.equals(eventsTopic)) {
            LOG.warn(
                    query
                            + " leaves out "
                            + count
                            + " events: there is no log topic "
                            + eventsTopic);
        } else {
            batch.leftOut.add(
                    Vocabulary.DEFAULT_TENANT,
                    target.topic,
                    "no_log_topic",
                    "there is no log topic " + target.topic,
                    count);
        }
    }

    /** Return where the records that wait end, as far as is known. */
    long waitingEnd() {
        synchronized (this) {
            return waitingEnd;
        }
    }

    /** Records wait up to there since earlier runs. */
    void waitingEnd(long end) {
        synchronized (this) {
            waitingEnd = end;
        }
    }

    /** Let records go to a target again, with its monitor held. */
    void flow(Target target) {
        synchronized (this) {
            target.state = Target.FLOWING;
            target.nothingWaits();
            suspects.remove(new TopicPartition(target.topic, target.partition));
            notifyAll();
        }
        LOG.info("records of " + query + " for " + target + " go to it again");
    }

    /** Return those that were away when this ended, or have refused a record. */
    Set<TopicPartition> suspects() {
        synchronized (this) {
            return new HashSet<>(suspects);
        }
    }

    /**
     * Let nothing leave any more: records behind a failed one must not pass it.
     *
     * @param suspect Has refused the record; null when the target does not matter.
     */
    void fail(Exception error, Target suspect) {
        synchronized (this) {
            if (failure != null) {
                return;
            }
            failure = error;
            Target[] all = targets();
            for (int i = 0; i < all.length; i++) {
                if (all[i].state == Target.AWAY || all[i] == suspect) {
                    suspects.add(new TopicPartition(all[i].topic, all[i].partition));
                }
            }
            notifyAll();
        }
        LOG.warn("a sender of " + query + " ends: " + error);
        producer.close(Duration.ZERO);
    }
}
