package mqlake.spark;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;

import scala.Option;
import scala.collection.immutable.Seq;

import java.util.ArrayList;
import java.util.List;

/**
 * One transaction that writes a small table anew.
 *
 * <p>Which files the table has stands in the file that Delta writes beside each commit: to compute
 * it takes longer than to write a small table.
 */
public final class SmallTable {
    private static final DeltaOperations.Operation OVERWRITE =
            new DeltaOperations.Write(
                    SaveMode.Overwrite,
                    Option.empty(),
                    Option.empty(),
                    Option.empty(),
                    Option.empty(),
                    Option.empty(),
                    Option.empty(),
                    Option.empty(),
                    Option.empty());

    private final OptimisticTransaction transaction;
    private final Seq<AddFile> files;

    private SmallTable(OptimisticTransaction transaction, Seq<AddFile> files) {
        this.transaction = transaction;
        this.files = files;
    }

    /**
     * Begin a transaction.
     *
     * @param name Of the table in the catalog.
     * @param mostBytes Size of the table's files together.
     * @return null for a larger table, and for one whose size is not told beside its newest commit.
     */
    public static SmallTable begin(SparkSession spark, String name, long mostBytes) {
        DeltaLog log = DeltaLog.forTableWithSnapshot(spark, new TableIdentifier(name))._1();
        OptimisticTransaction transaction = log.startTransaction();
        Option<VersionChecksum> checksum = transaction.snapshot().checksumOpt();
        if (checksum.isEmpty() || checksum.get().tableSizeBytes() > mostBytes) {
            return null;
        }
        // Delta refuses the commit when another one changes anything meanwhile.
        transaction.readWholeTable();
        Option<Seq<AddFile>> told = checksum.get().allFiles(); // Not if they are many.
        return new SmallTable(transaction, told.isEmpty() ? transaction.filterFiles() : told.get());
    }

    /** Return what the table has. */
    public Dataset<Row> rows() {
        return transaction
                .deltaLog()
                .createDataFrame(transaction.snapshot(), files, false, Option.empty());
    }

    /**
     * Put rows in place of all that the table has.
     *
     * @param rows With the table's columns.
     */
    public void write(Dataset<Row> rows) {
        List<Action> actions = new ArrayList<>();
        Dataset<Row> written = rows.to(transaction.metadata().schema());
        actions.addAll(Scala.list(transaction.writeFiles(written)));
        for (AddFile file : Scala.list(files)) {
            actions.add(file.remove());
        }
        transaction.commit(Scala.seq(actions.toArray(Action[]::new)), OVERWRITE);
    }
}
