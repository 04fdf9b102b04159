package mqlake.decoding;

/** Bytes that are not what a schema says; without a stack trace, as publishers can send many. */
final class Undecodable extends RuntimeException {
    private static final long serialVersionUID = 1L;

    Undecodable(String message) {
        super(message, null, false, false);
    }
}
