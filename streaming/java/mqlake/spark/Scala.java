package mqlake.spark;

import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

import java.util.List;

/**
 * Scala's collections as Java has them, and the other way round: Catalyst's expressions are made of
 * them.
 */
public final class Scala {
    private Scala() {}

    /** Return a view of a sequence. */
    public static <T> List<T> list(Seq<T> sequence) {
        return CollectionConverters.asJava(sequence);
    }

    /** Return a sequence of its own. */
    @SafeVarargs
    public static <T> scala.collection.immutable.Seq<T> seq(T... items) {
        return sequence(List.of(items));
    }

    /** Return a sequence of what a list holds. */
    public static <T> scala.collection.immutable.Seq<T> sequence(List<T> items) {
        return scala.collection.immutable.List.from(CollectionConverters.asScala(items));
    }
}
