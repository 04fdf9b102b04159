package mqlake.broker;

import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.scram.ScramCredential;
import org.apache.kafka.common.security.scram.ScramCredentialCallback;
import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;

import java.security.NoSuchAlgorithmException;
import java.util.List;
import java.util.Map;

import javax.security.auth.callback.Callback;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;

/**
 * Lets in by SCRAM who has the login that the broker itself has, and nobody else.
 *
 * <p>Kafka keeps such logins in its metadata, where an administrator puts them who has to be let in
 * first, or the tool that formats a new log. This one needs neither: a log of an earlier version
 * takes it, and another password, at its next start.
 */
public final class OneLogin implements AuthenticateCallbackHandler {
    private String username;
    private ScramCredential credential;

    @Override
    public void configure(
            Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> logins) {
        Map<String, ?> login = logins.get(0).getOptions();
        ScramMechanism scram = ScramMechanism.forMechanismName(mechanism);
        username = (String) login.get("username");
        try {
            credential =
                    new ScramFormatter(scram)
                            .generateCredential(
                                    (String) login.get("password"), scram.minIterations());
        } catch (NoSuchAlgorithmException e) {
            throw new KafkaException(mechanism + " is not known here", e);
        }
    }

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        String name = null;
        for (Callback callback : callbacks) {
            if (callback instanceof NameCallback asked) {
                name = asked.getDefaultName();
            } else if (callback instanceof ScramCredentialCallback asked) {
                asked.scramCredential(username.equals(name) ? credential : null);
            } else {
                throw new UnsupportedCallbackException(callback);
            }
        }
    }

    @Override
    public void close() {}
}
