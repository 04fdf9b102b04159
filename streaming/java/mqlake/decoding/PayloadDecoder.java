package mqlake.decoding;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import mqlake.Vocabulary;
import mqlake.spark.Failures;

import org.apache.spark.unsafe.types.VariantVal;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.zip.InflaterInputStream;

/**
 * Decodes payloads by one schema, which it carries as text: rules/schemas/layouts.py writes it. So
 * an expression with a decoder is complete: it can be sent to an executor or read from the log.
 *
 * <p>Safe to use from any thread. Two decoders of the same text are equal: rules share what they
 * decode.
 */
public final class PayloadDecoder implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final int MOST_BYTES = 4 * 1024 * 1024;
    private static final int MOST_KNOWN = 4096;
    private static final int HASH_BYTES = 16;
    private static final Known KNOWN = new Known();

    /** By hash of their text, the last used ones. */
    private static final class Known extends LinkedHashMap<String, PayloadDecoder> {
        Known() {
            super(64, 0.75f, true);
        }

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, PayloadDecoder> eldest) {
            return size() > MOST_KNOWN;
        }
    }

    /** A form of payloads. */
    interface Format {
        /** Decode a payload, or raise Undecodable. */
        VariantVal decode(byte[] payload);
    }

    private final String definition;
    private transient volatile Format format;
    private transient volatile String label;

    private PayloadDecoder(String definition) {
        this.definition = definition;
    }

    /**
     * Make a layout known by the hash of its text; return the hash.
     *
     * @throws IllegalArgumentException It is not one that rules/schemas/layouts.py has written.
     */
    public static String remember(String definition) {
        String hash = hash(definition);
        synchronized (KNOWN) {
            if (KNOWN.get(hash) == null) {
                PayloadDecoder decoder = new PayloadDecoder(definition);
                decoder.format();
                KNOWN.put(hash, decoder);
            }
        }
        return hash;
    }

    /**
     * Return the decoder of a layout that is known.
     *
     * @throws IllegalArgumentException It is not.
     */
    public static PayloadDecoder named(String hash) {
        synchronized (KNOWN) {
            PayloadDecoder decoder = KNOWN.get(hash);
            if (decoder == null) {
                throw new IllegalArgumentException("no layout of a schema is known as " + hash);
            }
            return decoder;
        }
    }

    private static String hash(String text) {
        try {
            byte[] digest =
                    MessageDigest.getInstance("SHA-256")
                            .digest(text.getBytes(StandardCharsets.UTF_8));
            StringBuilder digits = new StringBuilder();
            for (int i = 0; i < HASH_BYTES; i++) {
                digits.append(Integer.toHexString(0x100 | (digest[i] & 0xff)).substring(1));
            }
            return digits.toString();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    /**
     * Return a payload's value.
     *
     * @throws RuntimeException It is not of this schema; as when an expression of SQL raises an
     *     error.
     */
    public VariantVal decode(byte[] payload) {
        Format format = format();
        try {
            return format.decode(payload);
        } catch (Undecodable error) {
            throw failure(error.getMessage());
        } catch (RuntimeException error) { // of the builder: the value is too large, say
            throw failure(Failures.firstLine(error));
        }
    }

    private RuntimeException failure(String reason) {
        return Failures.raised("the payload does not decode by " + label + ": " + reason);
    }

    private Format format() {
        Format known = format;
        if (known != null) {
            return known;
        }
        JsonNode layout = read(definition);
        label = layout.get("label").asText();
        known =
                switch (layout.get("format").asText()) {
                    case "avro" -> new AvroDecoder(layout);
                    case "protobuf" -> new ProtobufDecoder(layout);
                    case Vocabulary.SPARKPLUG_B -> new SparkplugDecoder();
                    default ->
                            throw new IllegalArgumentException(
                                    "the format of a schema is not known");
                };
        format = known;
        return known;
    }

    private static JsonNode read(String definition) {
        try {
            byte[] packed = Base64.getDecoder().decode(definition);
            byte[] text =
                    new InflaterInputStream(new ByteArrayInputStream(packed))
                            .readNBytes(MOST_BYTES + 1);
            if (text.length > MOST_BYTES) {
                throw new IllegalArgumentException("the schema is too large");
            }
            return new ObjectMapper().readTree(new String(text, StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalArgumentException("not a schema's layout", error);
        }
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PayloadDecoder decoder && decoder.definition.equals(definition);
    }

    @Override
    public int hashCode() {
        return definition.hashCode();
    }

    /** Shown in plans. */
    @Override
    public String toString() {
        return "decoder of " + label;
    }
}
