package mqlake.rules;

import mqlake.spark.Failures;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.MutableProjection;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.Arrays;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * An expression over a message and what evaluates it: one evaluator for each lane, because neither
 * expressions nor generated code are thread-safe.
 *
 * <p>At first Catalyst interprets the expression, which takes no preparation. To make code of it
 * takes some 10 ms and saves 1 or 2 us each time, so that is for what is much used, on a thread of
 * its own: hundreds of rules are in force at once, and those that are seldom asked cost neither
 * time nor memory for code.
 */
final class LaneCode extends SharedColumn {
    private static final Logger LOG = LoggerFactory.getLogger(LaneCode.class);

    /** Evaluations after which code is made: by then it would have paid. */
    private static int many = 10000;

    /** What to make code of; each is in it once. */
    private static final LinkedBlockingQueue<LaneCode> USED = new LinkedBlockingQueue<>();

    private static Thread generating;

    private final Expression expression;
    private final boolean isWorthCode;
    private final Object lock = new Object();

    /** By number of the lane. */
    private volatile MutableProjection[] evaluators = new MutableProjection[0];

    /** Evaluators are generated code from now on. */
    private volatile boolean isGenerated;

    /** Not exact, as lanes count at the same time; it need not be. */
    private int evaluations;

    private boolean isQueued;

    /** One that is not worth code is interpreted however often it is used. */
    LaneCode(Expression expression, boolean isWorthCode) {
        this.expression = expression;
        this.isWorthCode = isWorthCode;
    }

    boolean isGenerated() {
        return isGenerated;
    }

    /**
     * Evaluate the expression on a lane's row.
     *
     * @return The value as Catalyst has it. On its way others may be evaluated on the same lane:
     *     what stands in the lane's result belongs to the one that was done last.
     */
    @Override
    Object evaluate(Lane lane) {
        MutableProjection[] current = evaluators;
        MutableProjection evaluator = lane.number < current.length ? current[lane.number] : null;
        if (evaluator == null) {
            evaluator = evaluator(lane.number);
        }
        if (isWorthCode && evaluations < many) {
            evaluations++;
            if (evaluations >= many) {
                wantCode();
            }
        }
        evaluator.target(lane.result);
        evaluator.apply(lane.row);
        return lane.result.genericGet(0);
    }

    private MutableProjection evaluator(int number) {
        synchronized (lock) {
            MutableProjection[] old = evaluators;
            if (number < old.length && old[number] != null) {
                return old[number];
            }
            MutableProjection[] longer = new MutableProjection[Math.max(old.length, number + 1)];
            System.arraycopy(old, 0, longer, 0, old.length);
            longer[number] = newEvaluator(number, isGenerated);
            evaluators = longer;
            return longer[number];
        }
    }

    private MutableProjection newEvaluator(int number, boolean generated) {
        Expression copy = RuleCompiler.copy(expression);
        MutableProjection evaluator =
                generated
                        ? RuleCompiler.generate(new Expression[] {copy})
                        : RuleCompiler.interpret(copy);
        // For what is random: each lane has its own sequence.
        evaluator.initialize(number);
        return evaluator;
    }

    private void wantCode() {
        synchronized (USED) {
            if (isQueued) {
                return;
            }
            isQueued = true;
            USED.add(this);
            if (generating == null) {
                generating =
                        new Thread("mqlake-rules-code") {
                            @Override
                            public void run() {
                                makeCode();
                            }
                        };
                generating.setDaemon(true);
                generating.setContextClassLoader(LaneCode.class.getClassLoader());
                generating.start();
            }
        }
    }

    private static void makeCode() {
        while (true) {
            try {
                USED.take().generate();
            } catch (InterruptedException error) {
                return;
            } catch (Throwable error) {
                // Too large for a method, say: it is interpreted as before.
                LOG.warn("no code for an expression: " + Failures.firstLine(error));
            }
        }
    }

    /** Put generated code in the place of all evaluators there are. */
    void generate() {
        int made = 0;
        MutableProjection[] generated = new MutableProjection[0];
        while (true) {
            MutableProjection[] current = evaluators;
            generated = Arrays.copyOf(generated, Math.max(1, current.length));
            for (; made < generated.length; made++) {
                generated[made] = newEvaluator(made, true);
            }
            synchronized (lock) {
                if (evaluators.length <= made) {
                    isGenerated = true;
                    evaluators = generated;
                    return;
                }
            }
        }
    }
}
