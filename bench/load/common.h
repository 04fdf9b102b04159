/* What the two load programs of `mqlake bench` share: time, samples, addresses, the limit of open files. */
#ifndef MQLAKE_BENCH_COMMON_H
#define MQLAKE_BENCH_COMMON_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define MAX_ADDRESSES 64
#define SPARE_FILES 64 /* open files beside the connections */

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static void *grow(void *memory, size_t bytes) {
    memory = realloc(memory, bytes);
    if (!memory) die("out of memory");
    return memory;
}

typedef struct {
    uint32_t *us;
    size_t count, room;
} Samples;

static void take_sample(Samples *samples, int64_t ns) {
    if (samples->count == samples->room) {
        samples->room = samples->room ? samples->room * 2 : 4096;
        samples->us = grow(samples->us, samples->room * sizeof *samples->us);
    }
    samples->us[samples->count++] = ns < 0 ? 0 : (uint32_t)(ns / 1000);
}

static int compare_us(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static double percentile_ms(const Samples *samples, double share) {
    size_t rank = (size_t)(share * (double)samples->count);
    if (rank >= samples->count) rank = samples->count - 1;
    return samples->us[rank] / 1000.0;
}

static void print_samples(const char *name, Samples *samples) {
    if (!samples->count) {
        printf(", \"%s\": null", name);
        return;
    }
    qsort(samples->us, samples->count, sizeof *samples->us, compare_us);
    printf(", \"%s\": {\"count\": %zu, \"p50\": %.3f, \"p95\": %.3f", name, samples->count,
           percentile_ms(samples, 0.50), percentile_ms(samples, 0.95));
    printf(", \"p99\": %.3f, \"p999\": %.3f, \"max\": %.3f}", percentile_ms(samples, 0.99),
           percentile_ms(samples, 0.999), samples->us[samples->count - 1] / 1000.0);
}

typedef struct {
    struct sockaddr_in address[MAX_ADDRESSES];
    int count;
} Addresses;

static void parse_addresses(Addresses *addresses, char *text) {
    for (char *one = strtok(text, ","); one; one = strtok(NULL, ",")) {
        char *colon = strrchr(one, ':');
        if (!colon || addresses->count == MAX_ADDRESSES) die("address is %s, expected host:port", one);
        *colon = 0;
        struct sockaddr_in *address = &addresses->address[addresses->count++];
        address->sin_family = AF_INET;
        address->sin_port = htons((uint16_t)atoi(colon + 1));
        if (inet_pton(AF_INET, one, &address->sin_addr) != 1) die("host is %s, expected an IPv4 address", one);
        if ((ntohl(address->sin_addr.s_addr) >> 24) != 127) die("host is %s, expected loopback", one);
    }
}

static size_t put_length(uint8_t *at, size_t length) {
    size_t n = 0;
    do {
        at[n] = length & 127;
        length >>= 7;
        if (length) at[n] |= 128;
        n++;
    } while (length);
    return n;
}

/* Allow so many connections at once, as far as the hard limit goes. */
static void allow_connections(int count) {
    struct rlimit limit;
    rlim_t needed = (rlim_t)count + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("getrlimit: %s", strerror(errno));
    if (limit.rlim_cur >= needed) return;
    if (limit.rlim_max < needed)
        die("%d connections need %llu open files, the hard limit is %llu (ulimit -Hn)", count,
            (unsigned long long)needed, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = needed;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit: %s", strerror(errno));
}

#endif
