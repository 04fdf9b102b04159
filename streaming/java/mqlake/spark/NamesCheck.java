package mqlake.spark;

import org.apache.spark.sql.catalyst.analysis.MultiAlias;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAlias;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedExtractValue;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator;
import org.apache.spark.sql.catalyst.analysis.UnresolvedHaving;
import org.apache.spark.sql.catalyst.analysis.UnresolvedInlineTable;
import org.apache.spark.sql.catalyst.analysis.UnresolvedOrdinal;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedStar;
import org.apache.spark.sql.catalyst.analysis.UnresolvedStarExceptOrReplace;
import org.apache.spark.sql.catalyst.analysis.UnresolvedSubqueryColumnAliases;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTVFAliases;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AnyValue;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.expressions.aggregate.Last;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.trees.TreeNode;

import scala.Option;
import scala.Product;
import scala.collection.Iterable;
import scala.jdk.javaapi.CollectionConverters;

import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/**
 * Looks through what Spark's parser has made of a text, for everything that it names: all kinds of
 * nodes and all functions are on lists, and relations are those that it may read.
 *
 * <p>It goes through all that nodes are made of, not their children alone: a query of WITH, say, is
 * no child of the query that has it.
 */
public final class NamesCheck {
    /** Kinds of a query; commands are on no list. */
    private static final Set<Class<?>> PLANS =
            Set.of(
                    UnresolvedRelation.class,
                    UnresolvedTableValuedFunction.class,
                    UnresolvedTVFAliases.class,
                    UnresolvedInlineTable.class,
                    UnresolvedSubqueryColumnAliases.class,
                    UnresolvedHaving.class,
                    UnresolvedWith.class,
                    RelationTimeTravel.class,
                    Aggregate.class,
                    Distinct.class,
                    Except.class,
                    Filter.class,
                    Generate.class,
                    GlobalLimit.class,
                    Intersect.class,
                    Join.class,
                    LateralJoin.class,
                    LimitAll.class,
                    LocalLimit.class,
                    LocalRelation.class,
                    Offset.class,
                    OneRowRelation.class,
                    Project.class,
                    Sort.class,
                    SubqueryAlias.class,
                    Union.class,
                    WithWindowDefinition.class);

    /** Kinds of an expression; functions are checked by name. */
    private static final Set<Class<?>> EXPRESSIONS =
            Set.of(
                    UnresolvedAlias.class,
                    UnresolvedAttribute.class,
                    UnresolvedExtractValue.class,
                    UnresolvedFunction.class,
                    UnresolvedGenerator.class,
                    UnresolvedNamedLambdaVariable.class,
                    UnresolvedOrdinal.class,
                    UnresolvedStar.class,
                    UnresolvedStarExceptOrReplace.class,
                    UnresolvedWindowExpression.class,
                    Add.class,
                    AggregateExpression.class,
                    Alias.class,
                    And.class,
                    AnyValue.class,
                    AttributeReference.class,
                    BitwiseAnd.class,
                    BitwiseNot.class,
                    BitwiseOr.class,
                    BitwiseXor.class,
                    CaseWhen.class,
                    Cast.class,
                    Coalesce.class,
                    Concat.class,
                    CreateNamedStruct.class,
                    Cube.class,
                    CurrentDate.class,
                    CurrentRow$.class,
                    CurrentTimestamp.class,
                    Divide.class,
                    EqualNullSafe.class,
                    EqualTo.class,
                    Exists.class,
                    First.class,
                    GreaterThan.class,
                    GreaterThanOrEqual.class,
                    GroupingSets.class,
                    ILike.class,
                    In.class,
                    InSubquery.class,
                    IntegralDivide.class,
                    IsNotNull.class,
                    IsNull.class,
                    LambdaFunction.class,
                    Last.class,
                    LateralSubquery.class,
                    LessThan.class,
                    LessThanOrEqual.class,
                    Like.class,
                    ListQuery.class,
                    Literal.class,
                    Lower.class,
                    MultiAlias.class,
                    Multiply.class,
                    NamedArgumentExpression.class,
                    Not.class,
                    Or.class,
                    Overlay.class,
                    RLike.class,
                    Remainder.class,
                    Rollup.class,
                    ScalarSubquery.class,
                    SortOrder.class,
                    SpecifiedWindowFrame.class,
                    StringLocate.class,
                    StringTrim.class,
                    StringTrimLeft.class,
                    StringTrimRight.class,
                    Substring.class,
                    Subtract.class,
                    TimestampAdd.class,
                    TimestampDiff.class,
                    UnaryMinus.class,
                    UnaryPositive.class,
                    UnboundedFollowing$.class,
                    UnboundedPreceding$.class,
                    UnspecifiedFrame$.class,
                    WindowExpression.class,
                    WindowSpecDefinition.class);

    /**
     * Names that Spark takes for functions where no column has them (LiteralFunctionResolution),
     * and tell of the session.
     */
    private static final List<String> TELLING =
            List.of(
                    "current_user",
                    "user",
                    "session_user",
                    "current_catalog",
                    "current_database",
                    "current_schema",
                    "current_path");

    /** Hidden column of files, which tells of the machine. */
    private static final String HIDDEN = "_metadata";

    private final Set<String> functions;
    private final Set<String> relations;
    private final boolean mayHint;

    /**
     * @param functions Functions by name, lower case, with points between its parts.
     * @param relations Relations by name, lower case, likewise.
     * @param mayHint Whether hints are allowed, which tell the optimizer what to do.
     */
    public NamesCheck(Set<String> functions, Set<String> relations, boolean mayHint) {
        this.functions = functions;
        this.relations = relations;
        this.mayHint = mayHint;
    }

    /**
     * Check what the parser has made.
     *
     * @throws IllegalArgumentException It names what is on no list.
     */
    public void check(TreeNode<?> parsed) {
        check(parsed, relations);
    }

    private void check(TreeNode<?> node, Set<String> known) {
        checkKind(node);
        checkNames(node, known);
        if (node instanceof UnresolvedWith with) {
            // A query of WITH knows those before it; by its own name it would read a table.
            Set<String> inside = new HashSet<>(known);
            for (var named : Scala.list(with.cteRelations())) {
                check(named._2(), inside);
                inside.add(lower(named._1()));
            }
            check(with.child(), inside);
        } else {
            checkParts(node, known);
        }
    }

    private void checkParts(Product product, Set<String> known) {
        for (int i = 0; i < product.productArity(); i++) {
            checkPart(product.productElement(i), known);
        }
    }

    private void checkPart(Object part, Set<String> known) {
        if (part instanceof TreeNode<?> node) {
            check(node, known);
        } else if (part instanceof Option<?> option) {
            if (option.isDefined()) {
                checkPart(option.get(), known);
            }
        } else if (part instanceof Iterable<?> parts) {
            CollectionConverters.asJava(parts).forEach(one -> checkPart(one, known));
        } else if (part instanceof Product product) {
            checkParts(product, known);
        }
    }

    private void checkKind(TreeNode<?> node) {
        boolean isListed =
                node instanceof LogicalPlan
                        ? PLANS.contains(node.getClass())
                                || mayHint && node instanceof UnresolvedHint
                        : EXPRESSIONS.contains(node.getClass());
        if (!isListed) {
            throw refused("holds", node.nodeName());
        }
    }

    private void checkNames(TreeNode<?> node, Set<String> known) {
        if (node instanceof UnresolvedRelation relation) {
            List<String> parts = Scala.list(relation.multipartIdentifier());
            if (!isOf(known, parts) || relation.isStreaming() || !relation.options().isEmpty()) {
                throw refused("reads", String.join(".", parts));
            }
        } else if (node instanceof UnresolvedFunction function) {
            checkFunction(Scala.list(function.nameParts()));
        } else if (node instanceof UnresolvedTableValuedFunction function) {
            checkFunction(Scala.list(function.name()));
        } else if (node instanceof UnresolvedGenerator generator) {
            checkFunction(List.of(generator.name().unquotedString()));
        } else if (node instanceof UnresolvedAttribute attribute) {
            // Compared as Spark does: U+017F is an S to it.
            List<String> parts = Scala.list(attribute.nameParts());
            boolean tells = TELLING.stream().anyMatch(parts.get(0)::equalsIgnoreCase);
            if (tells && parts.size() == 1 || parts.stream().anyMatch(HIDDEN::equalsIgnoreCase)) {
                throw refused("asks for", attribute.name());
            }
        } else if (node instanceof UnresolvedStar star && star.target().isDefined()) {
            if (Scala.list(star.target().get()).stream().anyMatch(HIDDEN::equalsIgnoreCase)) {
                throw refused("asks for", HIDDEN);
            }
        } else if (node instanceof RelationTimeTravel travel && travel.timestamp().isDefined()) {
            if (holdsQuery(travel.timestamp().get())) {
                throw refused("holds", "a query in the time of a table");
            }
        } else if (node instanceof UnresolvedWith with && with.allowRecursion()) {
            throw refused("holds", "WITH RECURSIVE");
        }
    }

    private static boolean holdsQuery(Expression expression) {
        return expression instanceof PlanExpression
                || Scala.list(expression.children()).stream().anyMatch(NamesCheck::holdsQuery);
    }

    private void checkFunction(List<String> parts) {
        if (!isOf(functions, parts)) {
            throw refused("calls", String.join(".", parts));
        }
    }

    /** Tell whether a name is in a set; none is of which a part holds a point. */
    private static boolean isOf(Set<String> names, List<String> parts) {
        return parts.stream().noneMatch(part -> part.indexOf('.') >= 0)
                && names.contains(lower(String.join(".", parts)));
    }

    private static String lower(String name) {
        return name.toLowerCase(Locale.ROOT);
    }

    private static IllegalArgumentException refused(String does, String what) {
        return new IllegalArgumentException(
                "the statement " + does + " " + what + ", which was not given to it");
    }
}
