/* Preloaded into a node's processes: their wall clock differs from the machine's by the seconds in $FROUDE_CLOCK.
 *
 * The file holds one int64, mapped, so a change is seen at once. Absolute deadlines on the wall clock are handed to the
 * kernel as it counts them. libfaketime does the same and more, but its 0.9.10 either breaks clock_nanosleep (and so
 * Python's time.sleep) or hangs waits on conditions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define WALL_CLOCK 1000000000 /* seconds: a deadline beyond is no time since the machine's start */
#define REAL(result, name, ...)                                       \
    static result (*real)(__VA_ARGS__);                               \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static const volatile int64_t none;
static const volatile int64_t *wrong = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FROUDE_CLOCK");
    /* Not the raylet: its health is judged by others, and a worker's clock is what is to be wrong. */
    if (!path || !strcmp(program_invocation_short_name, "raylet")) return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (lseek(file, 0, SEEK_END) >= (off_t)sizeof(int64_t) || !ftruncate(file, sizeof(int64_t))) {
        void *map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) wrong = map;
    }
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int result = real(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *wrong;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    REAL(int, "gettimeofday", struct timeval *, void *);
    int result = real(now, zone);
    if (!result) now->tv_sec += *wrong;
    return result;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}

static struct timespec true_time(const struct timespec *deadline) {
    struct timespec result = *deadline;
    if (result.tv_sec > WALL_CLOCK) result.tv_sec -= *wrong;
    return result;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline) {
    REAL(int, "pthread_cond_timedwait", pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec until = true_time(deadline);
    return real(condition, mutex, &until);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
    REAL(int, "sem_timedwait", sem_t *, const struct timespec *);
    struct timespec until = true_time(deadline);
    return real(semaphore, &until);
}

long syscall(long number, ...) {
    REAL(long, "syscall", long, ...);
    va_list given;
    va_start(given, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(given, long);
    va_end(given);
    struct timespec until;
    int operation = (int)a[1];
    if (number == SYS_futex && a[3] && (operation & FUTEX_CLOCK_REALTIME) &&
        (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET) {
        until = true_time((const struct timespec *)a[3]);
        a[3] = (long)&until;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
