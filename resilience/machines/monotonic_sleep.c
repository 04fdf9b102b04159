/* Loaded before libfaketime. That (0.9.10) takes a sleep until a time of the monotonic clock for one
 * until a time of the day, and fails with EINVAL: so sleeps Python since 3.11. Monotonic clocks go on
 * as they are here, so such a sleep is the kernel's. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    if (clock == CLOCK_REALTIME) {
        int (*next)(clockid_t, int, const struct timespec *, struct timespec *) =
            dlsym(RTLD_NEXT, "clock_nanosleep");
        return next(clock, flags, time, left);
    }
    return syscall(SYS_clock_nanosleep, clock, flags, time, left) ? errno : 0;
}
