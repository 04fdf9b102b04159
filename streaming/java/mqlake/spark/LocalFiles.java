package mqlake.spark;

import mqlake.Vocabulary;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.permission.FsPermission;

import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;

/**
 * Hadoop's local file system, durable, and without a process for each file.
 *
 * <p>A file is on the disk when it is closed, a new name when the call that made it returns. Spark
 * and Delta count on that: what they note has been written before. Hadoop leaves it to the kernel,
 * which may write a commit before the files that it names, or its name before its content.
 *
 * <p>Without its native library Hadoop runs chmod for every file it creates; at the size of our
 * batches that was most of their cost. It also writes a checksum file beside each file, which
 * nobody would read here.
 */
public final class LocalFiles extends LocalFileSystem {

    public LocalFiles() {
        super(new Raw());
    }

    @Override
    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setWriteChecksum(false);
    }

    /** Return when the names in a folder are on the disk. */
    public static void syncFolder(File folder) throws IOException {
        try (FileChannel channel = FileChannel.open(folder.toPath(), StandardOpenOption.READ)) {
            channel.force(true);
        }
    }

    /** The file system below, which knows no checksums. */
    public static final class Raw extends RawLocalFileSystem {
        private String[] expendable = new String[0];

        @Override
        public void initialize(URI name, Configuration conf) throws IOException {
            super.initialize(name, conf);
            expendable = conf.getTrimmedStrings(Vocabulary.EXPENDABLE_OPTION);
        }

        @Override
        protected OutputStream createOutputStreamWithMode(
                Path path, boolean append, FsPermission permission) throws IOException {
            OutputStream stream = super.createOutputStreamWithMode(path, append, permission);
            File file = pathToFile(path);
            return isExpendable(file) ? stream : new Synced(stream, file);
        }

        @Override
        public boolean rename(Path from, Path to) throws IOException {
            boolean done = super.rename(from, to);
            File file = pathToFile(to);
            if (done && !isExpendable(file)) {
                syncFolder(file.getParentFile());
            }
            return done;
        }

        @Override
        protected boolean mkOneDirWithMode(Path path, File file, FsPermission permission)
                throws IOException {
            boolean done = super.mkOneDirWithMode(path, file, permission);
            if (done && !isExpendable(file)) {
                syncFolder(file.getParentFile());
            }
            return done;
        }

        @Override
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

        private boolean isExpendable(File file) {
            for (String folder : expendable) {
                if (file.getPath().startsWith(folder + File.separator)) {
                    return true;
                }
            }
            return false;
        }
    }

    /** A stream that ends on the disk. */
    private static final class Synced extends OutputStream implements Syncable {
        private final OutputStream stream;
        private final File file;
        private boolean closed;

        Synced(OutputStream stream, File file) {
            this.stream = stream;
            this.file = file;
        }

        @Override
        public void write(int octet) throws IOException {
            stream.write(octet);
        }

        @Override
        public void write(byte[] data, int offset, int length) throws IOException {
            stream.write(data, offset, length);
        }

        @Override
        public void flush() throws IOException {
            stream.flush();
        }

        @Override
        public void hflush() throws IOException {
            ((Syncable) stream).hflush();
        }

        @Override
        public void hsync() throws IOException {
            ((Syncable) stream).hsync();
        }

        @Override
        public void close() throws IOException {
            if (closed) {
                return;
            }
            closed = true;
            try {
                hsync();
            } finally {
                stream.close();
            }
            // What begins with a dot gets its name, and that is synced, when it is complete.
            if (!file.getName().startsWith(".")) {
                syncFolder(file.getParentFile());
            }
        }
    }
}
