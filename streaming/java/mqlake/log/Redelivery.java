package mqlake.log;

import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;

/**
 * Sends what waits for targets of a {@link LogSender}, when they are back, and deletes what nobody
 * waits for.
 *
 * <p>The producer keeps on trying what it had for a target; when the target has that, it is back.
 * Of one for which it had nothing the leader is asked. Then what waits is read in order and sent,
 * one record until one is acknowledged, and the last of it while nobody else may send to the
 * target: from then on records go to it again.
 */
final class Redelivery implements Runnable {
    private static final Logger LOG = LoggerFactory.getLogger(Redelivery.class);

    private static final long LOOK_MS = 500;
    private static final long LOOK_UP_MS = 1000;

    /** A log topic that was not there so often in a row is gone. */
    private static final int LOOKS_GONE = 5;

    /** Of what is sent again and not there yet. */
    private static final long WINDOW_BYTES = 1024 * 1024;

    /**
     * A target that takes nothing for so long is left for another time; with others beside it
     * sooner.
     */
    private static final long PROGRESS_MS = 2000;

    private static final long PROGRESS_OF_MANY_MS = 100;

    /** Then all that are back are looked at anew, for one that is slow delays the others. */
    private static final long ROUND_MS = 10000;

    private static final long READ_MS = 30000;

    /** When so few records are left, nobody else may send, for so long. */
    private static final long LAST_RECORDS = 1000;

    private static final long ALONE_MS = 1000;

    private final LogSender sender;
    private final Undelivered undelivered;
    private final TaskBatch batch;

    /** Up to where everything was looked at. */
    private long scanned;

    private long deleted;
    private long lookedUpMs;

    /** Whether others have records there: then nothing is deleted before the next run. */
    private boolean shared;

    private Redelivery(LogSender sender) {
        this.sender = sender;
        this.undelivered = sender.undelivered;
        this.batch = sender.begin();
    }

    /** Find out what earlier runs have left, then look after it on a thread. */
    static void begin(LogSender sender) {
        Redelivery redelivery = new Redelivery(sender);
        redelivery.findOut();
        Thread thread = new Thread(redelivery, "mqlake-redelivery-" + sender.query);
        thread.setDaemon(true);
        thread.start();
    }

    private void findOut() {
        Undelivered.Reader reader = undelivered.new Reader(-1);
        try {
            deleted = reader.position();
            long end = reader.end();
            undelivered.takeOver(end);
            sender.waitingEnd(end);
            long until = System.currentTimeMillis() + READ_MS;
            while (reader.position() < end) {
                if (!reader.next()) {
                    if (System.currentTimeMillis() > until) {
                        throw new IllegalStateException(
                                undelivered.place
                                        + " was not read to its end, but to "
                                        + reader.position());
                    }
                    continue;
                }
                until = System.currentTimeMillis() + READ_MS;
                note(reader);
                TopicPartition place = reader.isOurs() ? reader.target() : null;
                if (place != null) {
                    waits(sender.target(place), reader);
                }
            }
            scanned = reader.position();
        } finally {
            reader.close();
        }
        long until = System.currentTimeMillis() + READ_MS;
        while (!sender.knows(undelivered.place.topic())) {
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException(undelivered.place + " is not known where to write");
            }
        }
    }

    private static void waits(Target target, Undelivered.Reader reader) {
        target.state = Target.AWAY;
        if (target.first < 0) {
            target.first = reader.offset();
            target.oldestMs = reader.timestampMs();
        }
        target.last = reader.offset();
        target.undelivered++;
        target.undeliveredBytes += LogLimits.size(reader.record());
    }

    private void note(Undelivered.Reader reader) {
        shared = shared || reader.isOfOthers();
    }

    @Override
    public void run() {
        while (sender.failure == null) {
            try {
                Thread.sleep(LOOK_MS);
                look();
            } catch (InterruptedException error) {
                return;
            } catch (Exception error) {
                if (sender.failure == null) {
                    LOG.warn("not looked after what " + sender.query + " could not send: " + error);
                }
            }
        }
    }

    private void look() throws IOException {
        // When a target is away there may be no broker to ask.
        sender.knows(undelivered.place.topic());
        lookUp();
        HashMap<TopicPartition, Target> back = back();
        if (!back.isEmpty()) {
            sendAgain(back);
        }
        // What is left out is told before it is deleted.
        batch.awaitAcknowledged();
        cleanUp();
        sender.tellLeftOut(batch);
    }

    private ArrayList<Target> notFlowing() {
        ArrayList<Target> found = new ArrayList<>();
        Target[] targets = sender.targets();
        for (int i = 0; i < targets.length; i++) {
            if (targets[i].state != Target.FLOWING) {
                found.add(targets[i]);
            }
        }
        return found;
    }

    /**
     * Find out whether the log topics of targets that do not answer still exist, and what they
     * take.
     */
    private void lookUp() throws IOException {
        ArrayList<Target> targets = notFlowing();
        long now = System.currentTimeMillis();
        if (targets.isEmpty() || now - lookedUpMs < LOOK_UP_MS) {
            return;
        }
        lookedUpMs = now;
        HashSet<String> logTopics = new HashSet<>();
        for (int i = 0; i < targets.size(); i++) {
            logTopics.add(targets.get(i).topic);
        }
        LogLimits.Missing missing = sender.limits.missing(logTopics);
        for (int i = 0; i < targets.size(); i++) {
            Target target = targets.get(i);
            if (missing.gone().contains(target.topic)) {
                if (target.state == Target.AWAY && ++target.looksGone >= LOOKS_GONE) {
                    giveUp(target);
                }
            } else if (!missing.unknown().contains(target.topic)) {
                target.looksGone = 0;
                target.mostBytes = sender.limits.mostBytes(target.topic, 0);
                checkPending(target);
                if (target.state == Target.GONE) {
                    synchronized (target) {
                        sender.flow(target);
                    }
                }
            }
        }
    }

    /** The producer would split what has become too large, and try for ever. */
    private void checkPending(Target target) {
        long largest;
        synchronized (sender) {
            largest = target.takesSingles() ? target.pendingBytes : target.largestPending();
        }
        if (largest > target.mostBytes) {
            sender.fail(
                    new IllegalStateException(
                            target
                                    + " takes no more than "
                                    + target.mostBytes
                                    + " bytes any more, "
                                    + largest
                                    + " are on their way"),
                    null);
        }
    }

    /** Leave out what waits for a log topic that is gone, and what comes for it. */
    private void giveUp(Target target) throws IOException {
        long lost;
        synchronized (target) {
            synchronized (sender) {
                if (target.onTheWay > 0) {
                    return; // The next look finds where it is.
                }
                lost = target.undelivered;
                target.state = Target.GONE;
                sender.notifyAll();
            }
        }
        sender.leaveOutGone(batch, target, lost);
        batch.awaitAcknowledged();
        synchronized (sender) {
            target.nothingWaits();
        }
    }

    /** Return the targets that take records, as far as is known. */
    private HashMap<TopicPartition, Target> back() {
        HashMap<TopicPartition, Target> back = new HashMap<>();
        HashSet<TopicPartition> unproven = new HashSet<>();
        ArrayList<Target> targets = notFlowing();
        for (int i = 0; i < targets.size(); i++) {
            Target target = targets.get(i);
            TopicPartition place = new TopicPartition(target.topic, target.partition);
            synchronized (sender) {
                if (target.state == Target.AWAY
                        && target.looksGone == 0
                        && target.pending.isEmpty()
                        && target.notBeforeMs <= System.currentTimeMillis()
                        && (target.answers || target.undelivered > 0)) {
                    back.put(place, target);
                    if (!target.answers) {
                        unproven.add(place);
                    }
                }
            }
        }
        if (!unproven.isEmpty()) {
            Set<TopicPartition> answering = sender.limits.answering(unproven);
            unproven.removeAll(answering);
            back.keySet().removeAll(unproven);
        }
        return back;
    }

    /** Send what waits for these targets; those that have all of it are sent to as before. */
    private void sendAgain(HashMap<TopicPartition, Target> back) throws IOException {
        long from = sender.waitingEnd();
        synchronized (sender) {
            Iterator<Target> each = back.values().iterator();
            while (each.hasNext()) {
                long first = each.next().first;
                from = first < 0 ? from : Math.min(from, first);
            }
        }
        Undelivered.Reader reader = undelivered.new Reader(from);
        try {
            int count = 0;
            long until = System.currentTimeMillis() + ROUND_MS;
            while (!back.isEmpty()
                    && sender.failure == null
                    && System.currentTimeMillis() < until) {
                boolean found = step(reader, back);
                if (!found || ++count % LAST_RECORDS == 0 || isRead(reader, back)) {
                    finish(reader, back);
                }
            }
        } finally {
            scanned = from <= scanned ? Math.max(scanned, reader.position()) : scanned;
            reader.close();
        }
    }

    private boolean isRead(Undelivered.Reader reader, HashMap<TopicPartition, Target> back) {
        synchronized (sender) {
            Iterator<Target> each = back.values().iterator();
            while (each.hasNext()) {
                if (each.next().last < reader.position()) {
                    return true;
                }
            }
            return false;
        }
    }

    /** Send a record again; false when there is none. */
    private boolean step(Undelivered.Reader reader, HashMap<TopicPartition, Target> back)
            throws IOException {
        if (!reader.next()) {
            return false;
        }
        note(reader);
        Target target = reader.isOurs() ? back.get(reader.target()) : null;
        if (target != null
                && isToSend(target, reader.offset())
                && !send(target, reader, back.size() > 1)) {
            back.remove(reader.target());
        }
        return true;
    }

    private boolean isToSend(Target target, long offset) {
        synchronized (sender) {
            return target.first >= 0 && offset >= target.first;
        }
    }

    private boolean send(Target target, Undelivered.Reader reader, boolean hasOthers)
            throws IOException {
        ProducerRecord<byte[], byte[]> record = reader.record();
        Sent sent =
                new Sent(sender, batch, target, record, LogLimits.size(record), reader.offset());
        boolean isTooLarge = sent.bytes > target.mostBytes;
        if (!hasRoom(target, isTooLarge ? 0 : sent.bytes, hasOthers)) {
            return false;
        }
        sender.waitedFor(sent);
        synchronized (sender) {
            target.oldestMs = reader.timestampMs();
        }
        if (isTooLarge) {
            sender.leaveOut(batch, target, record.key(), sent.bytes);
        } else if (!sender.sendOn(sent)) {
            sender.waitsAgain(sent);
            sender.forget(sent);
            return false;
        }
        return true;
    }

    /** Wait until a target has taken enough of what was sent; false when it takes nothing. */
    private boolean hasRoom(Target target, long bytes, boolean hasOthers) throws IOException {
        long patience = hasOthers ? PROGRESS_OF_MANY_MS : PROGRESS_MS;
        synchronized (sender) {
            long before = target.pendingBytes;
            long until = System.currentTimeMillis() + patience;
            while (target.pendingBytes > 0
                    && (!target.answers
                            || target.takesSingles()
                            || target.pendingBytes + bytes > WINDOW_BYTES)) {
                sender.pause(patience);
                if (target.pendingBytes < before) {
                    before = target.pendingBytes;
                    until = System.currentTimeMillis() + patience;
                } else if (System.currentTimeMillis() >= until) {
                    return false;
                }
            }
            // What was refused meanwhile waits where it was: nothing may pass it.
            return target.notBeforeMs <= System.currentTimeMillis();
        }
    }

    /** Let those targets go on for which nearly everything was read. */
    private void finish(Undelivered.Reader reader, HashMap<TopicPartition, Target> back)
            throws IOException {
        Object[] each = back.keySet().toArray();
        for (int i = 0; i < each.length; i++) {
            Target target = back.get(each[i]);
            if (target != null && left(target, reader) <= LAST_RECORDS) {
                synchronized (target) {
                    finish(target, each[i], reader, back);
                }
            }
        }
    }

    /** Send the last of it, with the target's monitor held. */
    private void finish(
            Target target,
            Object place,
            Undelivered.Reader reader,
            HashMap<TopicPartition, Target> back)
            throws IOException {
        awaitNothingOnTheWay(target);
        long until = System.currentTimeMillis() + ALONE_MS;
        while (left(target, reader) > 0 && back.containsKey(place)) {
            if (System.currentTimeMillis() >= until) {
                return; // Not now: its senders wait.
            }
            sender.check();
            step(reader, back);
        }
        // One that has taken nothing may refuse what it has got.
        if (target.state == Target.AWAY && target.answers && back.remove(place) != null) {
            sender.flow(target);
        }
    }

    /** Return how many records there are at most that are not read and may be for a target. */
    private long left(Target target, Undelivered.Reader reader) {
        synchronized (sender) {
            return target.last + 1 - reader.position();
        }
    }

    private void awaitNothingOnTheWay(Target target) throws IOException {
        synchronized (sender) {
            while (target.onTheWay > 0) {
                sender.pause();
            }
        }
    }

    /** Delete what is there and nobody waits for. */
    private void cleanUp() throws IOException {
        long place = sender.waitingEnd();
        synchronized (sender) {
            Target[] targets = sender.targets();
            for (int i = 0; i < targets.length; i++) {
                if (targets[i].state != Target.GONE && targets[i].isSentAgain()) {
                    return;
                }
                place = targets[i].first < 0 ? place : Math.min(place, targets[i].first);
            }
        }
        if (place <= deleted || shared) {
            return;
        }
        scan(place);
        sender.check();
        if (shared) {
            return;
        }
        try {
            sender.limits.deleteBefore(undelivered.place, Math.min(place, scanned));
            deleted = Math.min(place, scanned);
        } catch (Exception error) {
            LOG.warn("undelivered records are not deleted: " + error);
        }
    }

    /** Look whether others have records between those that nobody needs. */
    private void scan(long place) {
        if (scanned >= place) {
            return;
        }
        Undelivered.Reader reader = undelivered.new Reader(scanned);
        try {
            long until = System.currentTimeMillis() + ROUND_MS;
            while (reader.position() < place && System.currentTimeMillis() < until) {
                if (reader.next()) {
                    note(reader);
                }
            }
            scanned = reader.position();
        } finally {
            reader.close();
        }
    }
}
