package mqlake.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.View;

import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

import java.util.List;

/**
 * Three walls around statements of which a part is a user's, for all sessions of Spark.
 *
 * <p>The first is what they name, as Spark's parser reads them (ConfinedParser). The second is what
 * the analyzer has found for those names: rows come from relations that were given, or are made on
 * the spot. It knows no names, so it holds where the first one has overlooked a way to name a
 * table. The third is the order in which a row is asked (OwnRows).
 */
public final class Confinement extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    private static final List<Class<? extends LogicalPlan>> MADE =
            List.of(OneRowRelation.class, LocalRelation.class, Range.class, CTERelationRef.class);

    /** Called by Spark with a session's extensions (`spark.sql.extensions`). */
    @Override
    public BoxedUnit apply(SparkSessionExtensions session) {
        session.injectParser(ConfinedParser::new);
        OwnRows.inject(session);
        session.injectCheckRule(
                one ->
                        plan -> {
                            if (isConfined(plan)) {
                                check(plan);
                            }
                            return BoxedUnit.UNIT;
                        });
        return BoxedUnit.UNIT;
    }

    private static boolean isConfined(LogicalPlan plan) {
        return isAlias(plan, ConfinedParser.CONFINED)
                || Scala.list(plan.children()).stream().anyMatch(Confinement::isConfined);
    }

    /** Refuse rows that come from elsewhere than from what was given. */
    private static void check(LogicalPlan plan) {
        if (isAlias(plan, ConfinedParser.GIVEN) || plan instanceof View view && view.isTempView()) {
            return;
        }
        List<LogicalPlan> children = Scala.list(plan.children());
        if (children.isEmpty() && !MADE.contains(plan.getClass())) {
            throw new IllegalArgumentException(
                    "the statement reads " + plan.nodeName() + ", which was not given to it");
        }
        children.forEach(Confinement::check);
        Scala.list(plan.subqueries()).forEach(Confinement::check);
    }

    private static boolean isAlias(LogicalPlan plan, String qualifier) {
        return plan instanceof SubqueryAlias alias
                && Scala.list(alias.identifier().qualifier()).contains(qualifier);
    }
}
