/* Loaded before libfaketime. Monotonic clocks go on as they are, less the time for which the machine
 * has been frozen: so many nanoseconds stand in the file of STANDSTILL_FILE, and are read at each call.
 * A wait until a time of such a clock is told to the kernel in the kernel's time.
 *
 * libfaketime (0.9.10) takes a sleep until a time of the monotonic clock for one until a time of the
 * day, and fails with EINVAL: so sleeps Python since 3.11. Such a sleep is the kernel's here.
 *
 * Not held back: system calls that a program makes without the C library (a futex of Rust's), timers of
 * the kernel, and waits for a duration that has begun before the machine was frozen. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000
#define USES_MONOTONIC_CLOCK 2 /* of __wrefs: glibc, nptl/pthread_cond_common.c */

typedef int cond_wait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int cond_clock_wait(
    pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
typedef int sem_clock_wait(sem_t *, clockid_t, const struct timespec *);
typedef int get_time(clockid_t, struct timespec *);
typedef int sleep_until(clockid_t, int, const struct timespec *, struct timespec *);

static int64_t none;
static volatile int64_t *held = &none;

__attribute__((constructor)) static void map(void)
{
    const char *path = getenv("STANDSTILL_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *place = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (place != MAP_FAILED)
        held = place;
}

static int stands_still(clockid_t clock)
{
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE
        || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;
}

static struct timespec later(const struct timespec *time, int64_t by)
{
    int64_t all = time->tv_sec * (int64_t)SECOND + time->tv_nsec + by;
    return (struct timespec){all / SECOND, all % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static get_time *next;
    if (!next)
        next = (get_time *)dlsym(RTLD_NEXT, "clock_gettime");
    int failed = next(clock, time);
    if (!failed && stands_still(clock))
        *time = later(time, -*held);
    return failed;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    struct timespec until = *time;
    if (clock == CLOCK_REALTIME) {
        sleep_until *next = (sleep_until *)dlsym(RTLD_NEXT, "clock_nanosleep");
        return next(clock, flags, time, left);
    }
    if (flags & TIMER_ABSTIME && stands_still(clock))
        until = later(time, *held);
    return syscall(SYS_clock_nanosleep, clock, flags, &until, left) ? errno : 0;
}

int pthread_cond_timedwait(
    pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *time)
{
    static cond_wait *next;
    struct timespec until = *time;
    if (!next)
        next = (cond_wait *)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (cond->__data.__wrefs & USES_MONOTONIC_CLOCK)
        until = later(time, *held);
    return next(cond, mutex, &until);
}

int pthread_cond_clockwait(
    pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *time)
{
    static cond_clock_wait *next;
    struct timespec until = *time;
    if (!next)
        next = (cond_clock_wait *)dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    if (stands_still(clock))
        until = later(time, *held);
    return next(cond, mutex, clock, &until);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *time)
{
    static sem_clock_wait *next;
    struct timespec until = *time;
    if (!next)
        next = (sem_clock_wait *)dlsym(RTLD_NEXT, "sem_clockwait");
    if (stands_still(clock))
        until = later(time, *held);
    return next(semaphore, clock, &until);
}
