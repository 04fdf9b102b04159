package mqlake.spark;

import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/** A sink that appends the rows of a query whose output mode is `update`. */
public interface AppendedUpdates extends WriteBuilder, SupportsStreamingUpdateAsAppend {}
