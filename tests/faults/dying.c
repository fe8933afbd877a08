/* A process that dies in the middle of its work: a library for LD_PRELOAD.
 *
 * Right before its DYING_AT-th call of the kind DYING_BEFORE the process is killed, as by kill -9: `write` is a write to a
 * place in a file, which is how SQLite writes, `sync` makes a file durable, `send` gives bytes to a socket.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *deadly;
static atomic_long left;

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("DYING_AT");
    deadly = getenv("DYING_BEFORE");
    left = at ? atol(at) : 0;
}

static void step(const char *kind)
{
    if (deadly && !strcmp(deadly, kind) && atomic_fetch_sub(&left, 1) == 1)
        kill(getpid(), SIGKILL);
}

static void send_step(int fd)
{
    int type;
    socklen_t size = sizeof type;
    if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size))
        step("send");
}

#define REAL(result, name, ...)                                   \
    static result (*real)(__VA_ARGS__);                           \
    if (!real)                                                    \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset)
{
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    step("write");
    return real(fd, data, length, offset);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

int fsync(int fd)
{
    REAL(int, "fsync", int);
    step("sync");
    return real(fd);
}

int fdatasync(int fd)
{
    REAL(int, "fdatasync", int);
    step("sync");
    return real(fd);
}

ssize_t write(int fd, const void *data, size_t length)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    send_step(fd);
    return real(fd, data, length);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    send_step(fd);
    return real(fd, parts, count);
}

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
        step("sync");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

ssize_t send(int fd, const void *data, size_t length, int flags)
{
    REAL(ssize_t, "send", int, const void *, size_t, int);
    step("send");
    return real(fd, data, length, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    REAL(ssize_t, "sendmsg", int, const struct msghdr *, int);
    step("send");
    return real(fd, message, flags);
}
