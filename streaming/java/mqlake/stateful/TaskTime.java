package mqlake.stateful;

import mqlake.rules.RuleCounters;

import org.apache.spark.SparkContext;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Counts for each stateful rule the processor time of the tasks of its query: what they read,
 * evaluate, sort, join and keep. The threads that plan its batches are not counted.
 */
public final class TaskTime extends SparkListener {
    /**
     * Local property of the thread that starts a query: `<tenant>/<rule>`. Its own thread inherits
     * it.
     */
    public static final String RULE = "mqlake.rule";

    private final Map<Integer, RuleCounters> ofStages = new ConcurrentHashMap<>();

    /** Count from now on. */
    public static void watch(SparkContext spark) {
        spark.addSparkListener(new TaskTime());
    }

    @Override
    public void onStageSubmitted(SparkListenerStageSubmitted stage) {
        Properties properties = stage.properties();
        String rule = properties == null ? null : properties.getProperty(RULE);
        if (rule != null) {
            ofStages.put(stage.stageInfo().stageId(), RuleCounters.of(rule));
        }
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd task) {
        RuleCounters counters = ofStages.get(task.stageId());
        TaskMetrics took = task.taskMetrics(); // none of a task that was lost
        if (counters != null && took != null) {
            counters.evaluation.add(took.executorCpuTime() + took.executorDeserializeCpuTime());
        }
    }

    @Override
    public void onStageCompleted(SparkListenerStageCompleted stage) {
        ofStages.remove(stage.stageInfo().stageId());
    }
}
