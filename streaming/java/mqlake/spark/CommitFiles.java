package mqlake.spark;

import io.delta.storage.HadoopFileSystemLogStore;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Iterator;

/**
 * Delta's commits on a local disk, for several writing processes.
 *
 * <p>A commit is written under another name, synced, and then linked to its own: the kernel gives a
 * name once, so of two processes that want the same version one gets it, and nobody sees half a
 * commit. Delta's own store for local files looks first whether the name is free, and writes then.
 */
public final class CommitFiles extends HadoopFileSystemLogStore {
    private static final String OWNER_ALONE = "rw-------";

    public CommitFiles(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
            throws IOException {
        File target = file(path);
        File written = file(createTempPath(path));
        try {
            fill(written, actions);
            if (overwrite) {
                Files.move(written.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
            } else {
                // FileAlreadyExistsException tells Delta that another has the version.
                Files.createLink(target.toPath(), written.toPath());
            }
        } finally {
            Files.deleteIfExists(written.toPath());
        }
        LocalFiles.syncFolder(target.getParentFile());
    }

    /** What Delta writes by itself, its checkpoints, is to be renamed when it is complete. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return true;
    }

    private static void fill(File file, Iterator<String> lines) throws IOException {
        Files.createFile(
                file.toPath(),
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString(OWNER_ALONE)));
        try (FileOutputStream stream = new FileOutputStream(file)) {
            while (lines.hasNext()) {
                stream.write((lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
            }
            stream.getFD().sync();
        }
    }

    private static File file(Path path) {
        return new File(path.toUri().getPath());
    }
}
