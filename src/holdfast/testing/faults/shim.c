/* Makes the Nth write or the Nth sync of a process fail.
 *
 * Loaded with LD_PRELOAD, this wraps the C library's write and sync functions. It counts
 * those on files whose path begins with HOLDFAST_FAULT_PATH, and at number HOLDFAST_FAULT_AT
 * (0: never, only count) of the kind HOLDFAST_FAULT_ON (write | sync) does HOLDFAST_FAULT_KIND:
 *
 *   kill        SIGKILL before the operation
 *   kill_after  SIGKILL after it
 *   tear        SIGKILL after half of the bytes
 *   eio, enospc nothing is done and the error is returned
 *   short       half of the bytes are written and their number returned
 *
 * With HOLDFAST_FAULT_STICKY=1 every later operation of that kind fails too: with the same error,
 * or after `short` with ENOSPC, as on a full disk. Setting a file's size counts as a
 * write; it cannot be split, so `tear` acts as `kill` and `short` has no effect.
 *
 * The counts are in the file HOLDFAST_FAULT_REPORT (three 64-bit words: writes, syncs, reached),
 * mapped and shared, so they survive the kill and continue across forked processes.
 *
 * The path is read from /proc at each call: that costs a microsecond and is never out of date.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum sort { WRITE, SYNC };
enum fault { NONE, KILL, KILL_AFTER, TEAR, EIO_FAULT, ENOSPC_FAULT, SHORT };

struct report {
    uint64_t counted[2];
    uint64_t reached;
};

static struct report *report;
static const char *path_prefix;
static size_t prefix_length;
static enum fault kind;
static enum sort on;
static uint64_t at;
static int sticky;

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static enum fault kind_named(const char *name) {
    static const char *const names[] = {"none",   "kill",   "kill_after", "tear",
                                        "eio",    "enospc", "short"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return (enum fault)i;
    dprintf(2, "holdfast shim: unknown HOLDFAST_FAULT_KIND '%s'\n", name);
    _exit(96);
}

/* Without a report nothing is armed: a fault that is not reported proves nothing. A process
 * that was forked by one without a report calls this itself, after setting its environment. */
__attribute__((constructor)) void holdfast_fault_arm(void) {
    const char *file = setting("HOLDFAST_FAULT_REPORT");
    if (!*file)
        return;
    path_prefix = setting("HOLDFAST_FAULT_PATH");
    prefix_length = strlen(path_prefix);
    kind = kind_named(setting("HOLDFAST_FAULT_KIND"));
    on = strcmp(setting("HOLDFAST_FAULT_ON"), "sync") ? WRITE : SYNC;
    at = strtoull(setting("HOLDFAST_FAULT_AT"), NULL, 10);
    sticky = *setting("HOLDFAST_FAULT_STICKY") == '1';
    int fd = open(file, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED
                       : mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        dprintf(2, "holdfast shim: cannot map the report %s\n", file);
        _exit(96);
    }
    close(fd);
    report = map;
}

static int is_ours(int fd) {
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int before = errno;
    ssize_t length = readlink(link, path, sizeof path);
    errno = before;
    return length >= (ssize_t)prefix_length && !memcmp(path, path_prefix, prefix_length);
}

static enum fault later(enum fault first) {
    return first == SHORT ? ENOSPC_FAULT : first;
}

static enum fault judge(int fd, enum sort sort) {
    if (!report || !is_ours(fd))
        return NONE;
    uint64_t number = __atomic_add_fetch(&report->counted[sort], 1, __ATOMIC_SEQ_CST);
    if (sort != on || !at || number < at)
        return NONE;
    if (number == at) {
        __atomic_store_n(&report->reached, 1, __ATOMIC_SEQ_CST);
        return kind;
    }
    return sticky ? later(kind) : NONE;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* What happens before the operation: death, an error (1), or nothing (0). */
static int before(enum fault fault) {
    if (fault == KILL)
        die();
    if (fault != EIO_FAULT && fault != ENOSPC_FAULT)
        return 0;
    errno = fault == EIO_FAULT ? EIO : ENOSPC;
    return 1;
}

static void after(enum fault fault) {
    if (fault == KILL_AFTER || fault == TEAR)
        die();
}

static size_t allowed(enum fault fault, size_t size) {
    return fault == TEAR || fault == SHORT ? (size + 1) / 2 : size;
}

/* The same fault for an operation that has no half. */
static enum fault whole(enum fault fault) {
    return fault == TEAR ? KILL : fault == SHORT ? NONE : fault;
}

#define NEXT(type, name, ...)                                                                      \
    static type (*next)(__VA_ARGS__);                                                              \
    if (!next)                                                                                     \
        next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define PLAIN_WRITE(...)                                                                           \
    enum fault fault = judge(fd, WRITE);                                                           \
    if (before(fault))                                                                             \
        return -1;                                                                                 \
    ssize_t done = next(fd, data, allowed(fault, size), ##__VA_ARGS__);                            \
    after(fault);                                                                                  \
    return done

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(ssize_t, write, int, const void *, size_t);
    PLAIN_WRITE();
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    NEXT(ssize_t, pwrite, int, const void *, size_t, off_t);
    PLAIN_WRITE(offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    NEXT(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    PLAIN_WRITE(offset);
}

/* Half of a vector: half of its first part, which is some but not all of it. */
#define VECTOR_WRITE(...)                                                                          \
    enum fault fault = judge(fd, WRITE);                                                           \
    if (before(fault))                                                                             \
        return -1;                                                                                 \
    int halved = count > 0 && (fault == TEAR || fault == SHORT);                                   \
    struct iovec part = {0};                                                                       \
    if (halved)                                                                                    \
        part = (struct iovec){parts[0].iov_base, allowed(fault, parts[0].iov_len)};                \
    ssize_t done = next(fd, halved ? &part : parts, halved ? 1 : count, ##__VA_ARGS__);            \
    after(fault);                                                                                  \
    return done

ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(ssize_t, writev, int, const struct iovec *, int);
    VECTOR_WRITE();
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    NEXT(ssize_t, pwritev, int, const struct iovec *, int, off_t);
    VECTOR_WRITE(offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    NEXT(ssize_t, pwritev64, int, const struct iovec *, int, off64_t);
    VECTOR_WRITE(offset);
}

#define WHOLE(sort, ...)                                                                           \
    enum fault fault = whole(judge(fd, sort));                                                     \
    if (before(fault))                                                                             \
        return -1;                                                                                 \
    int done = next(fd, ##__VA_ARGS__);                                                            \
    after(fault);                                                                                  \
    return done

int ftruncate(int fd, off_t size) {
    NEXT(int, ftruncate, int, off_t);
    WHOLE(WRITE, size);
}

int ftruncate64(int fd, off64_t size) {
    NEXT(int, ftruncate64, int, off64_t);
    WHOLE(WRITE, size);
}

int fsync(int fd) {
    NEXT(int, fsync, int);
    WHOLE(SYNC);
}

int fdatasync(int fd) {
    NEXT(int, fdatasync, int);
    WHOLE(SYNC);
}
