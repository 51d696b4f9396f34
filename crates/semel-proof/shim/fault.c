/* A disk that fails on demand, for one process: LD_PRELOAD=fault.so, and a few words in the environment.
 *
 *   SHIM_PREFIX   only files whose path starts with this are counted, failed and logged
 *   SHIM_FAIL     KIND:FIRST:COUNT:HOW, e.g. write:17:1:EIO, sync:3:1:EIO, write:40:25:ENOSPC, write:9:1:TORN512
 *                 KIND is write (write, pwrite, writev, ftruncate) or sync (fsync, fdatasync); calls FIRST to
 *                 FIRST+COUNT-1 of that kind fail. TORNn executes n thousandths of the write and ends the process.
 *   SHIM_NOSYNC   a sync does nothing, and says that it did: for runs whose disk is simulated
 *   SHIM_LOG      every change to the files, in order, goes into this file; so does every line on standard output
 *
 * A fault that hits is told on standard output, as a line in the words of the victims' reports. When the process
 * ends by itself, the counts are told the same way.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE, SYNC };

static const char *prefix;
static size_t prefix_length;
static enum kind fail_kind;
static unsigned long fail_first, fail_count;
static int fail_errno, torn = -1, skip_sync, log_fd = -1;
static unsigned long calls[2];
/* One at a time, so that the log has one order. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t raw_write(int fd, const void *bytes, size_t length) { return syscall(SYS_write, fd, bytes, length); }

static void tell(const char *line) {
    if (raw_write(1, line, strlen(line)) < 0) _exit(87);
}

static void log_event(char kind, const char *path, uint64_t number, const void *bytes, uint64_t length) {
    if (log_fd < 0) return;
    uint32_t path_length = path ? (uint32_t)strlen(path) : 0;
    struct iovec parts[] = {
        {&kind, 1}, {&path_length, 4}, {&number, 8}, {&length, 8}, {(void *)path, path_length}, {(void *)bytes, length},
    };
    ssize_t whole = (ssize_t)(21 + path_length + length);
    /* A log with a hole proves nothing. */
    if (syscall(SYS_writev, log_fd, parts, 6) != whole) _exit(88);
}

static void parse_fault(const char *text) {
    char kind[8], how[16];
    if (sscanf(text, "%7[^:]:%lu:%lu:%15s", kind, &fail_first, &fail_count, how) != 4) _exit(89);
    fail_kind = strcmp(kind, "sync") ? WRITE : SYNC;
    if (!strcmp(how, "EIO")) fail_errno = EIO;
    else if (!strcmp(how, "ENOSPC")) fail_errno = ENOSPC;
    else if (sscanf(how, "TORN%d", &torn) != 1) _exit(89);
}

__attribute__((constructor)) static void start(void) {
    prefix = getenv("SHIM_PREFIX");
    prefix_length = prefix ? strlen(prefix) : 0;
    skip_sync = getenv("SHIM_NOSYNC") != NULL;
    if (getenv("SHIM_FAIL")) parse_fault(getenv("SHIM_FAIL"));
    const char *log = getenv("SHIM_LOG");
    if (log && (log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) < 0)
        _exit(89);
}

__attribute__((destructor)) static void end(void) {
    char line[96];
    if (!prefix) return;
    snprintf(line, sizeof line, "{\"Calls\":{\"writes\":%lu,\"syncs\":%lu}}\n", calls[WRITE], calls[SYNC]);
    tell(line);
}

static int ours(const char *path) { return prefix && path && !strncmp(path, prefix, prefix_length); }

static int file_of(int fd, char path[PATH_MAX]) {
    char link[32];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    errno = before;
    if (length <= 0) return 0;
    path[length] = 0;
    return ours(path);
}

/* Counts a call. Whether it shall fail; ends the process where it shall be torn. */
static int fails(enum kind kind, const char *path, int fd, const void *bytes, size_t length, off_t offset) {
    unsigned long number = ++calls[kind];
    if (!fail_first || kind != fail_kind || number < fail_first || number >= fail_first + fail_count) return 0;
    char line[PATH_MAX + 96];
    const char *name = strrchr(path, '/');
    snprintf(line, sizeof line, "{\"Fault\":{\"sync\":%s,\"call\":%lu,\"file\":\"%s\"}}\n",
             kind == SYNC ? "true" : "false", number, name ? name + 1 : path);
    tell(line);
    if (torn < 0) {
        errno = fail_errno;
        return 1;
    }
    size_t part = length * (size_t)torn / 1000;
    if (part && bytes && syscall(SYS_pwrite64, fd, bytes, part, offset) < 0) _exit(88);
    _exit(86);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static off_t place(int fd) {
    if (fcntl(fd, F_GETFL) & O_APPEND) {
        struct stat found;
        return fstat(fd, &found) ? 0 : found.st_size;
    }
    return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    static __typeof__(&write) next;
    if (!next) next = NEXT(write);
    char path[PATH_MAX];
    if (fd == 1 && log_fd >= 0) {
        pthread_mutex_lock(&lock);
        log_event('M', NULL, 0, bytes, length);
        ssize_t done = next(fd, bytes, length);
        pthread_mutex_unlock(&lock);
        return done;
    }
    if (!file_of(fd, path)) return next(fd, bytes, length);
    pthread_mutex_lock(&lock);
    off_t offset = place(fd);
    ssize_t done = fails(WRITE, path, fd, bytes, length, offset) ? -1 : next(fd, bytes, length);
    if (done > 0) log_event('W', path, (uint64_t)offset, bytes, (uint64_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

static ssize_t at(int fd, const void *bytes, size_t length, off_t offset) {
    char path[PATH_MAX];
    if (!file_of(fd, path)) return syscall(SYS_pwrite64, fd, bytes, length, offset);
    pthread_mutex_lock(&lock);
    ssize_t done =
        fails(WRITE, path, fd, bytes, length, offset) ? -1 : syscall(SYS_pwrite64, fd, bytes, length, offset);
    if (done > 0) log_event('W', path, (uint64_t)offset, bytes, (uint64_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return at(fd, bytes, length, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return at(fd, bytes, length, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static __typeof__(&writev) next;
    if (!next) next = NEXT(writev);
    char path[PATH_MAX];
    if (fd != 1 && !file_of(fd, path)) return next(fd, parts, count);
    ssize_t whole = 0;
    for (int part = 0; part < count; part++) {
        ssize_t done = write(fd, parts[part].iov_base, parts[part].iov_len);
        if (done < 0) return whole ? whole : -1;
        whole += done;
        if ((size_t)done < parts[part].iov_len) break;
    }
    return whole;
}

static int cut(int fd, off_t size) {
    char path[PATH_MAX];
    if (!file_of(fd, path)) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int done = fails(WRITE, path, fd, NULL, 0, 0) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
    if (!done) log_event('T', path, (uint64_t)size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut(fd, size); }

static int settle(int fd, long call) {
    char path[PATH_MAX];
    if (!file_of(fd, path)) return (int)syscall(call, fd);
    pthread_mutex_lock(&lock);
    int done = -1;
    if (fails(SYNC, path, fd, NULL, 0, 0)) log_event('F', path, 0, NULL, 0);
    else done = skip_sync ? 0 : (int)syscall(call, fd);
    if (!done) log_event('S', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

int fsync(int fd) { return settle(fd, SYS_fsync); }
int fdatasync(int fd) { return settle(fd, SYS_fdatasync); }

/* What changes names. Only the log wants to know; paths are absolute here because the victims' are. */

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    if (!ours(path) || log_fd < 0) return (int)syscall(SYS_openat, folder, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat found;
    int before = errno;
    int absent = stat(path, &found) != 0;
    errno = before;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0 && absent && (flags & O_CREAT)) log_event('C', path, 0, NULL, 0);
    else if (fd >= 0 && (flags & O_TRUNC)) log_event('T', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags, last, mode)                           \
    mode_t mode = 0;                                      \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                \
        va_list rest;                                     \
        va_start(rest, last);                             \
        mode = va_arg(rest, mode_t);                      \
        va_end(rest);                                     \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(folder, path, flags, mode);
}

int rename(const char *from, const char *to) {
    if (!ours(from) && !ours(to)) return (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    pthread_mutex_lock(&lock);
    int done = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    if (!done) log_event('R', from, 0, to, strlen(to));
    pthread_mutex_unlock(&lock);
    return done;
}

int unlink(const char *path) {
    if (!ours(path)) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    pthread_mutex_lock(&lock);
    int done = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!done) log_event('U', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

int mkdir(const char *path, mode_t mode) {
    if (!ours(path)) return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    pthread_mutex_lock(&lock);
    int done = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (!done) log_event('D', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}
