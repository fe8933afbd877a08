/* A disk that forgets at the kill what was not synced: a library for LD_PRELOAD.
 *
 * A killed process leaves the kernel's page cache behind, so kill -9 proves nothing about fsync. This library keeps, for
 * every file below UNSYNCED_DIR, a journal in UNSYNCED_JOURNAL of what was written since the file's last fsync or
 * fdatasync, or the same by io_submit: place, length, size of the file before, old bytes, new bytes. After the kill, unsynced.py takes the writes
 * back, all of them or a random part, as a power failure would. A file that is renamed keeps its journal's name.
 *
 * The journal is written before the write it describes and emptied after the sync, before the caller hears of it. One
 * lock serialises all of it. Mapped memory is not watched: SQLite maps its -shm file only, and builds that anew.
 *
 * Record, little-endian: u64 offset, u64 size of the file before, u64 old length, u64 new length, u64 flags (bit 0: a
 * truncation to `offset`), old bytes, new bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FD_MAX 65536
#define TRUNCATION 1

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal_of[FD_MAX]; /* descriptor -> descriptor of its journal, 0 when not watched */

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_ftruncate)(int, off_t);
static int (*real_posix_fallocate)(int, off_t, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

static void find_real(void)
{
    if (real_fdatasync)
        return;
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_close = dlsym(RTLD_NEXT, "close");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_pread = dlsym(RTLD_NEXT, "pread64");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_posix_fallocate = dlsym(RTLD_NEXT, "posix_fallocate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
}

__attribute__((constructor)) static void begin(void) { find_real(); }

/* A fault of this library must never look like a fault of the broker. */
static void give_up(const char *doing)
{
    fprintf(stderr, "unsynced: %s: %s\n", doing, strerror(errno));
    abort();
}

static void write_all(int fd, const void *data, size_t length)
{
    const char *at = data;
    while (length) {
        ssize_t done = real_write(fd, at, length);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            give_up("writing the journal");
        }
        at += done;
        length -= (size_t)done;
    }
}

static void watch(int fd)
{
    const char *folder = getenv("UNSYNCED_DIR"), *journals = getenv("UNSYNCED_JOURNAL");
    char link[64], path[PATH_MAX], journal[PATH_MAX + 64];
    if (fd < 0 || fd >= FD_MAX || !folder || !journals)
        return;
    journal_of[fd] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = 0;
    size_t folder_length = strlen(folder);
    if (strncmp(path, folder, folder_length) || path[folder_length] != '/' || strstr(path, "-shm"))
        return;
    char *name = path + folder_length + 1;
    for (char *at = name; *at; at++)
        if (*at == '/')
            *at = '@'; /* one folder for all journals */
    snprintf(journal, sizeof journal, "%s/%s", journals, name);
    int kept = real_open(journal, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (kept < 0)
        give_up(journal);
    journal_of[fd] = kept;
}

static int journal_for(int fd) { return fd >= 0 && fd < FD_MAX ? journal_of[fd] : 0; }

static void remember(int fd, const void *data, size_t length, off_t offset, uint64_t flags)
{
    struct stat now;
    if (fstat(fd, &now))
        give_up("fstat");
    uint64_t size = (uint64_t)now.st_size, old = 0, start = (uint64_t)offset;
    uint64_t end = flags & TRUNCATION ? size : start + length;
    if (start < size)
        old = (end < size ? end : size) - start;
    char *saved = malloc(old + 1);
    if (!saved)
        give_up("malloc");
    for (uint64_t have = 0; have < old;) {
        ssize_t done = real_pread(fd, saved + have, old - have, (off_t)(start + have));
        if (done <= 0)
            give_up("reading what is overwritten");
        have += (uint64_t)done;
    }
    uint64_t head[5] = {start, size, old, length, flags};
    write_all(journal_of[fd], head, sizeof head);
    write_all(journal_of[fd], saved, old);
    write_all(journal_of[fd], data, length);
    free(saved);
}

static int open_watched(int folder, const char *path, int flags, mode_t mode)
{
    find_real();
    pthread_mutex_lock(&lock);
    int fd = folder == AT_FDCWD ? real_open(path, flags, mode) : real_openat(folder, path, flags, mode);
    int said = errno;
    if (fd >= 0 && (flags & O_ACCMODE) != O_RDONLY)
        watch(fd);
    pthread_mutex_unlock(&lock);
    errno = said;
    return fd;
}

#define MODE_OF(flags)                         \
    mode_t mode = 0;                           \
    if ((flags) & (O_CREAT | O_TMPFILE)) {     \
        va_list rest;                          \
        va_start(rest, flags);                 \
        mode = va_arg(rest, mode_t);           \
        va_end(rest);                          \
    }

int open(const char *path, int flags, ...) { MODE_OF(flags) return open_watched(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags) return open_watched(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE_OF(flags) return open_watched(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE_OF(flags) return open_watched(at, path, flags, mode); }

int close(int fd)
{
    find_real();
    pthread_mutex_lock(&lock);
    if (journal_for(fd)) {
        real_close(journal_of[fd]);
        journal_of[fd] = 0;
    }
    int result = real_close(fd);
    pthread_mutex_unlock(&lock);
    return result;
}

static ssize_t pwrite_watched(int fd, const void *data, size_t length, off_t offset)
{
    find_real();
    if (!journal_for(fd))
        return real_pwrite(fd, data, length, offset);
    pthread_mutex_lock(&lock);
    remember(fd, data, length, offset, 0);
    ssize_t done = real_pwrite(fd, data, length, offset);
    int said = errno;
    pthread_mutex_unlock(&lock);
    errno = said;
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite_watched(fd, data, length, offset); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return pwrite_watched(fd, data, length, offset); }

ssize_t write(int fd, const void *data, size_t length)
{
    find_real();
    if (!journal_for(fd))
        return real_write(fd, data, length);
    pthread_mutex_lock(&lock);
    int append = fcntl(fd, F_GETFL) & O_APPEND;
    remember(fd, data, length, lseek(fd, 0, append ? SEEK_END : SEEK_CUR), 0);
    ssize_t done = real_write(fd, data, length);
    int said = errno;
    pthread_mutex_unlock(&lock);
    errno = said;
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    find_real();
    if (!journal_for(fd))
        return real_writev(fd, parts, count);
    ssize_t total = 0;
    for (int part = 0; part < count; part++) {
        ssize_t done = write(fd, parts[part].iov_base, parts[part].iov_len);
        if (done < 0)
            return total ? total : done;
        total += done;
    }
    return total;
}

/* Real ones never fail half way here: each part is a write of its own. */
static ssize_t pwritev_watched(int fd, const struct iovec *parts, int count, off_t offset)
{
    ssize_t total = 0;
    for (int part = 0; part < count; part++) {
        ssize_t done = pwrite_watched(fd, parts[part].iov_base, parts[part].iov_len, offset + total);
        if (done < 0)
            return total ? total : done;
        total += done;
        if ((size_t)done < parts[part].iov_len)
            break;
    }
    return total;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return pwritev_watched(fd, parts, count, offset); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return pwritev_watched(fd, parts, count, offset); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) { (void)flags; return pwritev_watched(fd, parts, count, offset); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) { (void)flags; return pwritev_watched(fd, parts, count, offset); }

static int fallocate_watched(int fd, off_t offset, off_t length)
{
    find_real();
    if (!journal_for(fd))
        return real_posix_fallocate(fd, offset, length);
    pthread_mutex_lock(&lock);
    remember(fd, "", 0, offset, 0);
    int result = real_posix_fallocate(fd, offset, length);
    pthread_mutex_unlock(&lock);
    return result;
}

int posix_fallocate(int fd, off_t offset, off_t length) { return fallocate_watched(fd, offset, length); }
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return fallocate_watched(fd, offset, length); }

static int truncate_watched(int fd, off_t size)
{
    find_real();
    if (!journal_for(fd))
        return real_ftruncate(fd, size);
    pthread_mutex_lock(&lock);
    remember(fd, "", 0, size, TRUNCATION);
    int result = real_ftruncate(fd, size);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t size) { return truncate_watched(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncate_watched(fd, size); }

static int sync_watched(int fd, int (*sync)(int))
{
    if (!journal_for(fd))
        return sync(fd);
    pthread_mutex_lock(&lock);
    int result = sync(fd), said = errno;
    if (!result && real_ftruncate(journal_of[fd], 0))
        give_up("emptying the journal");
    pthread_mutex_unlock(&lock);
    errno = said;
    return result;
}

/* Linux's asynchronous I/O, one sync at a time: what had been written when it began is safe once its end is told. */
static int syncing_fd = -1;

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int at = 0; at < 6; at++)
        a[at] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_io_submit)
        syncing_fd = (int)(*(struct iocb **)a[2])->aio_fildes;
    long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    int said = errno;
    if (number == SYS_io_getevents && result == 1 && !((struct io_event *)a[3])->res && journal_for(syncing_fd)) {
        pthread_mutex_lock(&lock);
        if (real_ftruncate(journal_of[syncing_fd], 0))
            give_up("emptying the journal");
        pthread_mutex_unlock(&lock);
    }
    errno = said;
    return result;
}

int fsync(int fd) { find_real(); return sync_watched(fd, real_fsync); }
int fdatasync(int fd) { find_real(); return sync_watched(fd, real_fdatasync); }
