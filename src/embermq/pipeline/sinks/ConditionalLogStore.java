package embermq;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;

/**
 * Delta's log in S3 for several drivers. Delta's own store looks whether a commit is there, then writes it, and relies on
 * no other driver in between. Here the storage itself refuses a file that is there (If-None-Match of a PUT), as late as
 * the file is complete.
 */
public class ConditionalLogStore extends io.delta.storage.S3SingleDriverLogStore {
    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        StringBuilder lines = new StringBuilder();
        while (actions.hasNext()) {
            lines.append((String) actions.next()).append('\n');
        }
        FSDataOutputStreamBuilder file = path.getFileSystem(configuration).createFile(path);
        file.must("fs.option.create.conditional.overwrite", true);
        try {
            FSDataOutputStream stream = (FSDataOutputStream) file.build();
            stream.write(lines.toString().getBytes(StandardCharsets.UTF_8));
            stream.close();
        } catch (RemoteFileChangedException refused) {
            throw new java.nio.file.FileAlreadyExistsException(path.toString());
        } catch (FileAlreadyExistsException refused) {
            throw new java.nio.file.FileAlreadyExistsException(path.toString());
        }
    }
}
