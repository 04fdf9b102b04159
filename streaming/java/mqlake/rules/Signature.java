package mqlake.rules;

import mqlake.Vocabulary;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Map;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Tells activations that the rule controller has signed; streaming/rules/signatures.py has their
 * form.
 */
public final class Signature {
    private static final String ALGORITHM = "HmacSHA256";

    /** Null: nothing is signed. */
    private final SecretKeySpec key;

    /** Take the key that stands beside the options of a Kafka client, if there is one. */
    public Signature(Map<String, String> config) {
        String text = config.get(Vocabulary.KEY_OPTION);
        key =
                text == null
                        ? null
                        : new SecretKeySpec(text.getBytes(StandardCharsets.UTF_8), ALGORITHM);
    }

    /** Tell whether a record may count; one that puts nothing in force may. */
    boolean isOurs(ConsumerRecord<byte[], byte[]> record) {
        Header header = record.headers().lastHeader(Vocabulary.HEADER_MAC);
        return isOurs(record.key(), record.value(), header == null ? null : header.value());
    }

    /** Likewise one of that key and value, with that code; null: it has none. */
    public boolean isOurs(byte[] recordKey, byte[] value, byte[] code) {
        if (key == null || value == null || !isActivation(recordKey)) {
            return true;
        }
        try {
            Mac mac = Mac.getInstance(ALGORITHM);
            mac.init(key);
            mac.update(ByteBuffer.allocate(Integer.BYTES).putInt(recordKey.length).array());
            mac.update(recordKey);
            return code != null && MessageDigest.isEqual(code, mac.doFinal(value));
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(ALGORITHM + " is not known here", error);
        }
    }

    private static boolean isActivation(byte[] recordKey) {
        String prefix = Vocabulary.ACTIVATION_PREFIX;
        return new String(recordKey, StandardCharsets.UTF_8).startsWith(prefix);
    }
}
