package mqlake.rules;

/** Computes a column that rules share, once for a message. */
abstract class SharedColumn {
    /** Return the value for a lane's row, as Catalyst has it. */
    abstract Object evaluate(Lane lane);
}
