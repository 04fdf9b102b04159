package mqlake.streaming;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system without a process for each file.
 *
 * Without its native library Hadoop runs chmod for every file it creates; at the size of our batches that
 * was most of their cost. It also writes a checksum file beside each file, which nobody would read here.
 */
public final class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setWriteChecksum(false);
    }

    /** The file system below, which knows no checksums. */
    public static final class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            EnumSet<PosixFilePermission> permissions = EnumSet.noneOf(PosixFilePermission.class);
            PosixFilePermission[] all = PosixFilePermission.values(); // owner r, w, x, group r, …
            for (int bit = 0; bit < all.length; bit++) {
                if ((permission.toShort() & (0400 >> bit)) != 0) {
                    permissions.add(all[bit]);
                }
            }
            Files.setPosixFilePermissions(pathToFile(path).toPath(), permissions);
        }
    }
}
