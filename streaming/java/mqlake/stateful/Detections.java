package mqlake.stateful;

import mqlake.Vocabulary;

import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

import java.util.Map;

/** Puts a detection into a streaming query; streaming/rules/detections.py is its only caller. */
public final class Detections {
    private Detections() {}

    /**
     * Return what a detection tells of a stream's messages.
     *
     * @param messages has a watermark on its event time
     * @param given options by name, see DetectionOptions; `keys` and `order` are lists with commas
     */
    public static Dataset<Row> detected(Dataset<Row> messages, Map<String, String> given) {
        StructType input = messages.schema();
        String[] names = given.get("keys").split(",");
        Column[] keys = new Column[names.length];
        StructType key = new StructType();
        for (int i = 0; i < names.length; i++) {
            keys[i] = messages.col(names[i]);
            key = key.add(names[i], input.apply(names[i]).dataType(), true);
        }
        StructType output =
                input.add(Vocabulary.AT_COLUMN, DataTypes.TimestampType, false)
                        .add(Vocabulary.STATE_COLUMN, DataTypes.StringType, false)
                        .add(Vocabulary.SINCE_COLUMN, DataTypes.TimestampType, false);
        return messages.groupBy(keys)
                .as(Encoders.row(key), Encoders.row(input))
                .transformWithState(
                        new DetectionProcessor(new DetectionOptions(input, given)),
                        TimeMode.EventTime(),
                        OutputMode.Append(),
                        Encoders.row(output));
    }
}
