package mqlake.spark;

import java.lang.management.ManagementFactory;

import javax.management.JMException;
import javax.management.ObjectName;

/**
 * Has this JVM write the archive of its classes while it runs; it stands still for some seconds.
 */
public final class ClassDump {
    private ClassDump() {}

    /**
     * As `jcmd VM.cds dynamic_dump` does, without that program; for a JVM with
     * -XX:+RecordDynamicDumpInfo.
     *
     * @throws JMException This JVM has no such command.
     */
    public static void write(String file) throws JMException {
        ManagementFactory.getPlatformMBeanServer()
                .invoke(
                        new ObjectName("com.sun.management:type=DiagnosticCommand"),
                        "vmCds",
                        new Object[] {new String[] {"dynamic_dump", file}},
                        new String[] {String[].class.getName()});
    }
}
