package mqlake.spark;

import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.SetTransaction;
import org.apache.spark.sql.streaming.OutputMode;

import scala.Option;
import scala.Some;

import java.util.ArrayList;
import java.util.List;

/**
 * Appends the batches of one run of a query to a table of Delta, each batch once.
 *
 * <p>A commit names the query and the batch, as those of Delta's own sink do. That sink asks before
 * each batch which one was the last, and Delta computes the state of the whole table for the
 * answer. Here it is asked once: the batch with which a run begins may be there, those behind it
 * cannot.
 */
public final class BatchAppend implements VoidFunction2<Dataset<Row>, Long> {
    /** Property of the thread that runs a streaming query. */
    private static final String QUERY_ID = "sql.streaming.queryId";

    private final String path;

    /** Identifier of the query whose batch was the last one; null: not known. */
    private String known;

    private long last;

    /**
     * @param path Of the table.
     */
    public BatchAppend(String path) {
        this.path = path;
    }

    /** Append a batch of the query that runs in this thread. */
    @Override
    public void call(Dataset<Row> rows, Long batch) {
        append(rows, rows.sparkSession().sparkContext().getLocalProperty(QUERY_ID), batch);
    }

    /**
     * Append a batch, unless it is there.
     *
     * @param rows With the table's columns; null takes the place of one that is missing.
     * @param query Identifier of the query; one with another checkpoint counts its batches anew.
     */
    public void append(Dataset<Row> rows, String query, long batch) {
        OptimisticTransaction transaction =
                DeltaLog.forTable(rows.sparkSession(), path).startTransaction();
        if (query.equals(known)) {
            // As if it had been asked: Delta refuses the commit when another run has made one.
            transaction.readTxn().addOne(query);
        } else {
            last = transaction.txnVersion(query);
        }
        if (batch <= last) {
            known = query;
            return;
        }
        known = null; // Until it is certain that the commit is there.
        List<Action> actions = new ArrayList<>();
        actions.add(new SetTransaction(query, batch, new Some<>(System.currentTimeMillis())));
        Dataset<Row> written = rows.to(transaction.metadata().schema());
        actions.addAll(Scala.list(transaction.writeFiles(written)));
        transaction.commit(
                Scala.seq(actions.toArray(Action[]::new)),
                new DeltaOperations.StreamingUpdate(
                        OutputMode.Append(), query, batch, Option.empty()));
        last = batch;
        known = query;
    }
}
