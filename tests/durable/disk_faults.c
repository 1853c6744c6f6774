/* Lets the n-th call of one kind below one directory fail, in a process that has this library preloaded.
 *
 * A write that fails has written half of its data. A file whose fsync fails is remembered, since the system would have
 * dropped what it could not write: disk_faults_crash() cuts all such files short, as a crash of the machine may. What an
 * earlier fsync has saved, and nobody has written to since, is not lost by a later one that fails.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define LOST_MAX 4096
#define SAVED_MAX 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char directory[PATH_MAX];
static char operation[16];
static long first, last, seen;
static int error_number;
static int lost[LOST_MAX];
static int lost_count;
static struct stat saved[SAVED_MAX];
static int saved_count;

/* Let calls number `nth` to `nth + times - 1` of the operation fail; nth 0 only counts. */
void disk_faults_arm(const char *below, const char *what, long nth, long times, int error) {
    pthread_mutex_lock(&lock);
    snprintf(directory, sizeof directory, "%s", below);
    snprintf(operation, sizeof operation, "%s", what);
    first = nth;
    last = nth ? nth + times - 1 : 0;
    seen = 0;
    error_number = error;
    pthread_mutex_unlock(&lock);
}

/* How many calls there were since. */
long disk_faults_seen(void) {
    return seen;
}

void disk_faults_crash(void) {
    pthread_mutex_lock(&lock);
    for (int index = 0; index < lost_count; index++) {
        char name[64];
        struct stat status;
        snprintf(name, sizeof name, "/proc/self/fd/%d", lost[index]);
        if (fstat(lost[index], &status) == 0) {
            if (truncate(name, status.st_size / 2) != 0)
                perror("disk_faults_crash");
        }
        close(lost[index]);
    }
    lost_count = saved_count = 0;
    pthread_mutex_unlock(&lock);
}

static int fails(const char *what, const char *path) {
    int error = 0;
    if (path == NULL || directory[0] == 0)
        return 0;
    pthread_mutex_lock(&lock);
    if (strcmp(what, operation) == 0 && strncmp(path, directory, strlen(directory)) == 0) {
        seen++;
        if (seen >= first && seen <= last)
            error = error_number;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static int fails_at(const char *what, int descriptor) {
    char name[64], path[PATH_MAX];
    if (directory[0] == 0)
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return fails(what, path);
}

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (real == NULL)                                                                                                  \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);
#define FAIL(error)                                                                                                    \
    do {                                                                                                               \
        errno = (error);                                                                                               \
        return -1;                                                                                                     \
    } while (0)
#define MODE                                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
        int error = (flags & O_CREAT) ? fails("open", path) : 0;                                                       \
        if (error)                                                                                                     \
            FAIL(error);                                                                                               \
    }

int open(const char *path, int flags, ...) {
    REAL(int, "open", const char *, int, ...)
    MODE
    return real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL(int, "open64", const char *, int, ...)
    MODE
    return real(path, flags, mode);
}

int openat(int base, const char *path, int flags, ...) {
    REAL(int, "openat", int, const char *, int, ...)
    MODE
    return real(base, path, flags, mode);
}

int openat64(int base, const char *path, int flags, ...) {
    REAL(int, "openat64", int, const char *, int, ...)
    MODE
    return real(base, path, flags, mode);
}

ssize_t write(int descriptor, const void *data, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t)
    int error = fails_at("write", descriptor);
    if (error) {
        if (count > 1 && real(descriptor, data, count / 2) < 0)
            perror("write");
        FAIL(error);
    }
    return real(descriptor, data, count);
}

static int is_saved(const struct stat *file) {
    for (int index = 0; index < saved_count; index++) {
        const struct stat *known = &saved[index];
        if (known->st_dev == file->st_dev && known->st_ino == file->st_ino && known->st_size == file->st_size &&
            known->st_mtim.tv_sec == file->st_mtim.tv_sec && known->st_mtim.tv_nsec == file->st_mtim.tv_nsec)
            return 1;
    }
    return 0;
}

static int synced(int descriptor, int (*real)(int)) {
    struct stat file;
    int error = fails_at("fsync", descriptor);
    if (fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode)) {
        pthread_mutex_lock(&lock);
        if (error && !is_saved(&file) && lost_count < LOST_MAX)
            lost[lost_count++] = dup(descriptor);
        if (!error && !is_saved(&file) && saved_count < SAVED_MAX)
            saved[saved_count++] = file;
        pthread_mutex_unlock(&lock);
    }
    if (error)
        FAIL(error);
    return real(descriptor);
}

int fsync(int descriptor) {
    REAL(int, "fsync", int)
    return synced(descriptor, real);
}

int fdatasync(int descriptor) {
    REAL(int, "fdatasync", int)
    return synced(descriptor, real);
}

int rename(const char *source, const char *target) {
    REAL(int, "rename", const char *, const char *)
    int error = fails("rename", target);
    if (error)
        FAIL(error);
    return real(source, target);
}

int link(const char *source, const char *target) {
    REAL(int, "link", const char *, const char *)
    int error = fails("link", target);
    if (error)
        FAIL(error);
    return real(source, target);
}

int linkat(int source_base, const char *source, int target_base, const char *target, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int)
    int error = fails("link", target);
    if (error)
        FAIL(error);
    return real(source_base, source, target_base, target, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t)
    /* Many make a directory again and again, and are content that it is there. */
    int error = access(path, F_OK) == 0 ? 0 : fails("mkdir", path);
    if (error)
        FAIL(error);
    return real(path, mode);
}
