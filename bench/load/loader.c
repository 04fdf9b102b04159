/* The load side of `mqlake bench`: MQTT 3.1.1 publishers and subscribers in one thread on epoll.
 *
 * Publishers send QoS 1 either at a fixed rate (open loop: a message has its due time, and latency counts
 * from there, so a stall of the broker is seen in every message it delays) or as fast as a window of
 * unfinished messages allows. Subscribers check that each message of each publisher comes exactly once and
 * in order. Publishers and subscribers share one clock because they share the process. With --persistent the
 * sessions of the subscribers outlive their connections; they are ended when the run has ended.
 *
 * With --answers the messages are JSON objects, and what subscribers get are not these but others that rules
 * make of them: below that topic, objects with the same `due`, `publisher` and `number`.
 *
 * One JSON object goes to standard output; an error is one line on standard error and exit code 1.
 */
#include "common.h"

#define MIN_PAYLOAD 16          /* due time in ns (8), publisher (4), sequence (4) */
#define MIN_JSON_PAYLOAD 100
#define MAX_PACKET_ID 65535
#define MAX_IN_FLIGHT 60000     /* per publisher; below the number of packet ids */
#define FLUSH_BYTES (64 * 1024) /* try to write once so much is collected */

/* ---------------------------------------------------------------- options */

static struct {
    Addresses publish_to, subscribe_to;
    int publishers, subscribers;
    double rate;          /* messages a second of all publishers; 0: as fast as the window allows */
    int window;           /* unfinished messages per publisher when the rate is 0 */
    int await_delivery;   /* a message is finished when it is delivered, not when it is acknowledged */
    int everyone;         /* every subscriber gets every message, else each message one subscriber */
    int subscribe_qos;    /* 0 or 1 */
    int persistent;       /* subscribers ask for a session that outlives the connection */
    double seconds, warmup_seconds, drain_seconds;
    int payload_bytes;
    int probes;           /* subscribe this often to new filters, one after the other */
    double probe_interval_seconds;
    const char *prefix;
    const char *answers;  /* subscribe below this to what rules make of the messages */
    int answered;         /* publishers whose messages are answered; 0: all */
} options = {.publishers = 0, .subscribers = 0, .window = 100, .seconds = 5, .warmup_seconds = 1,
             .drain_seconds = 10, .subscribe_qos = 1, .payload_bytes = 100, .probe_interval_seconds = 0.02,
             .prefix = "bench"};

static void parse_options(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        const char *name = words[i];
        char *value = words[i + 1];
        if (!strcmp(name, "--publish-to")) parse_addresses(&options.publish_to, value);
        else if (!strcmp(name, "--subscribe-to")) parse_addresses(&options.subscribe_to, value);
        else if (!strcmp(name, "--publishers")) options.publishers = atoi(value);
        else if (!strcmp(name, "--subscribers")) options.subscribers = atoi(value);
        else if (!strcmp(name, "--rate")) options.rate = atof(value);
        else if (!strcmp(name, "--window")) options.window = atoi(value);
        else if (!strcmp(name, "--await-delivery")) options.await_delivery = atoi(value);
        else if (!strcmp(name, "--everyone")) options.everyone = atoi(value);
        else if (!strcmp(name, "--subscribe-qos")) options.subscribe_qos = atoi(value);
        else if (!strcmp(name, "--persistent")) options.persistent = atoi(value);
        else if (!strcmp(name, "--seconds")) options.seconds = atof(value);
        else if (!strcmp(name, "--warmup-seconds")) options.warmup_seconds = atof(value);
        else if (!strcmp(name, "--drain-seconds")) options.drain_seconds = atof(value);
        else if (!strcmp(name, "--payload-bytes")) options.payload_bytes = atoi(value);
        else if (!strcmp(name, "--probes")) options.probes = atoi(value);
        else if (!strcmp(name, "--probe-interval-seconds")) options.probe_interval_seconds = atof(value);
        else if (!strcmp(name, "--prefix")) options.prefix = value;
        else if (!strcmp(name, "--answers")) options.answers = value;
        else if (!strcmp(name, "--answered")) options.answered = atoi(value);
        else die("unknown option %s", name);
    }
    if (count % 2 == 0) die("option %s has no value", words[count - 1]);
    if (options.publishers && !options.publish_to.count) die("publishers need --publish-to");
    if (options.await_delivery && !options.subscribers) die("deliveries need --subscribers");
    if ((options.subscribers || options.probes) && !options.subscribe_to.count)
        die("subscribers need --subscribe-to");
    if (options.payload_bytes < MIN_PAYLOAD || options.payload_bytes > 60000)
        die("payload is %d bytes, expected %d to 60000", options.payload_bytes, MIN_PAYLOAD);
    if (options.answers && options.payload_bytes < MIN_JSON_PAYLOAD)
        die("payload is %d bytes, expected %d at least for JSON", options.payload_bytes, MIN_JSON_PAYLOAD);
    if (options.window < 1 || options.window > MAX_IN_FLIGHT)
        die("window is %d, expected 1 to %d", options.window, MAX_IN_FLIGHT);
    if (options.subscribe_qos < 0 || options.subscribe_qos > 1)
        die("QoS of subscriptions is %d, expected 0 or 1", options.subscribe_qos);
    if (strlen(options.prefix) > 60 || (options.answers && strlen(options.answers) > 60))
        die("prefix is longer than 60 bytes");
}

/* ---------------------------------------------------------------- connections */

typedef struct {
    int fd, number, is_publisher, writing;
    uint8_t *in, *out;
    size_t in_count, in_room, out_begin, out_end, out_room;
    /* publisher */
    char topic[96];
    int topic_bytes;
    uint16_t packet_id;
    int64_t *due; /* by packet id; 0: free */
    int in_flight;
    uint32_t sent, acknowledged;
    uint64_t delivered;
} Connection;

/* What one subscriber has seen of one publisher. */
typedef struct {
    uint8_t *seen; /* a bit per sequence number */
    size_t seen_bytes;
    uint32_t next;
} Track;

static Connection *publishers, *subscribers;
static Track *tracks; /* subscribers x publishers */
static int poller, clock_fd;

static int64_t begin_ns, measure_ns, end_ns, last_delivery_ns, longest_gap_ns;
static uint64_t published, acknowledged, measured_acks, delivered, measured_deliveries, duplicated, disordered;
static Samples ack_latency, delivery_latency, suback_latency;

static void put(Connection *c, const void *bytes, size_t count) {
    if (c->out_end + count > c->out_room) {
        if (c->out_begin) {
            memmove(c->out, c->out + c->out_begin, c->out_end - c->out_begin);
            c->out_end -= c->out_begin;
            c->out_begin = 0;
        }
        if (c->out_end + count > c->out_room) {
            c->out_room = (c->out_end + count) * 2;
            c->out = grow(c->out, c->out_room);
        }
    }
    memcpy(c->out + c->out_end, bytes, count);
    c->out_end += count;
}

static void want_write(Connection *c, int writing) {
    if (c->writing == writing) return;
    c->writing = writing;
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event)) die("epoll_ctl: %s", strerror(errno));
}

static void flush_out(Connection *c) {
    while (c->out_begin < c->out_end) {
        ssize_t n = send(c->fd, c->out + c->out_begin, c->out_end - c->out_begin, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) {
                want_write(c, 1);
                return;
            }
            die("%s %d: write: %s", c->is_publisher ? "publisher" : "subscriber", c->number, strerror(errno));
        }
        c->out_begin += (size_t)n;
    }
    c->out_begin = c->out_end = 0;
    want_write(c, 0);
}

static void read_fully(int fd, uint8_t *into, size_t count, const char *what) {
    while (count) {
        ssize_t n = recv(fd, into, count, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("no %s from the broker: %s", what, n ? strerror(errno) : "it closed the connection");
        into += n;
        count -= (size_t)n;
    }
}

static void write_fully(int fd, const uint8_t *bytes, size_t count) {
    while (count) {
        ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("write: %s", strerror(errno));
        bytes += n;
        count -= (size_t)n;
    }
}

/* Connect and wait for CONNACK; the socket still blocks, with a time limit. */
static void open_connection(Connection *c, const struct sockaddr_in *address, const char *kind, int number,
                            int clean) {
    c->number = number;
    c->is_publisher = kind[0] == 'p';
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die("socket: %s", strerror(errno));
    struct timeval limit = {.tv_sec = 20};
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int yes = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(c->fd, (const struct sockaddr *)address, sizeof *address))
        die("connect to port %d: %s", ntohs(address->sin_port), strerror(errno));
    char client_id[64];
    int id_bytes = snprintf(client_id, sizeof client_id, "bench-%d-%s%d", (int)getpid(), kind, number);
    uint8_t packet[128] = {0x10, (uint8_t)(12 + id_bytes), 0, 4, 'M', 'Q', 'T', 'T', 4, clean ? 2 : 0, 1, 44, 0,
                           (uint8_t)id_bytes};
    memcpy(packet + 14, client_id, (size_t)id_bytes);
    write_fully(c->fd, packet, 14 + (size_t)id_bytes);
    uint8_t answer[4];
    read_fully(c->fd, answer, 4, "CONNACK");
    if (answer[0] != 0x20 || answer[3]) die("CONNACK with return code %d, expected 0", answer[3]);
}

/* Send SUBSCRIBE and wait for SUBACK; nothing else can come on the connection meanwhile. */
static void subscribe(Connection *c, uint16_t packet_id, const char *filter) {
    uint8_t packet[160];
    size_t filter_bytes = strlen(filter), n = 1;
    packet[0] = 0x82;
    n += put_length(packet + n, 2 + 2 + filter_bytes + 1);
    packet[n++] = (uint8_t)(packet_id >> 8);
    packet[n++] = (uint8_t)packet_id;
    packet[n++] = (uint8_t)(filter_bytes >> 8);
    packet[n++] = (uint8_t)filter_bytes;
    memcpy(packet + n, filter, filter_bytes);
    n += filter_bytes;
    packet[n++] = (uint8_t)options.subscribe_qos;
    write_fully(c->fd, packet, n);
    uint8_t answer[5];
    read_fully(c->fd, answer, 5, "SUBACK");
    if (answer[0] != 0x90 || answer[4] > 1) die("SUBACK refuses %s with code %d", filter, answer[4]);
}

static void start_polling(Connection *c) {
    if (fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK)) die("fcntl: %s", strerror(errno));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl: %s", strerror(errno));
    c->in_room = 256 * 1024; /* untouched memory costs nothing */
    c->in = grow(NULL, c->in_room);
}

/* ---------------------------------------------------------------- messages */

/* How many deliveries one message makes. */
static uint32_t copies(void) {
    return options.everyone ? (uint32_t)options.subscribers : options.subscribers ? 1 : 0;
}

static int can_publish(const Connection *c) {
    int limit = options.rate > 0 ? MAX_IN_FLIGHT : options.window;
    int unfinished = options.await_delivery ? (int)(c->sent - (uint32_t)(c->delivered / copies())) : c->in_flight;
    return unfinished < limit && c->in_flight < MAX_IN_FLIGHT;
}

/* What is at the begin of each payload: numbers, or JSON up to the filling. */
static size_t put_payload_begin(uint8_t *at, const Connection *c, int64_t due) {
    uint32_t number = (uint32_t)c->number;
    if (options.answers)
        return (size_t)sprintf((char *)at,
                               "{\"due\":%lld,\"publisher\":%u,\"number\":%u,\"celsius\":21.5,\"filling\":\"",
                               (long long)due, number, c->sent);
    memcpy(at, &due, 8);
    memcpy(at + 8, &number, 4);
    memcpy(at + 12, &c->sent, 4);
    return MIN_PAYLOAD;
}

static void publish(Connection *c, int64_t due) {
    static uint8_t filling[60000];
    uint8_t head[16], begin[MIN_JSON_PAYLOAD], packet_id[2];
    do c->packet_id = c->packet_id == MAX_PACKET_ID ? 1 : c->packet_id + 1;
    while (c->due[c->packet_id]);
    c->due[c->packet_id] = due;
    head[0] = 0x32;
    size_t n = 1 + put_length(head + 1, (size_t)(2 + c->topic_bytes + 2 + options.payload_bytes));
    head[n++] = 0;
    head[n++] = (uint8_t)c->topic_bytes;
    put(c, head, n);
    put(c, c->topic, (size_t)c->topic_bytes);
    packet_id[0] = (uint8_t)(c->packet_id >> 8);
    packet_id[1] = (uint8_t)c->packet_id;
    put(c, packet_id, 2);
    size_t begin_bytes = put_payload_begin(begin, c, due), end_bytes = options.answers ? 2 : 0;
    if (options.answers && !filling[0]) memset(filling, 'x', sizeof filling);
    put(c, begin, begin_bytes);
    put(c, filling, (size_t)options.payload_bytes - begin_bytes - end_bytes);
    put(c, "\"}", end_bytes);
    c->sent++;
    c->in_flight++;
    published++;
    if (c->out_end - c->out_begin >= FLUSH_BYTES && !c->writing) flush_out(c);
}

static void process_puback(Connection *c, uint16_t packet_id, int64_t now) {
    int64_t due = c->due[packet_id];
    if (!due) die("PUBACK for packet %d that is not in flight", packet_id);
    c->due[packet_id] = 0;
    c->in_flight--;
    c->acknowledged++;
    acknowledged++;
    if (now >= measure_ns && now < end_ns) measured_acks++;
    if (due >= measure_ns) take_sample(&ack_latency, now - due);
}

static int64_t json_number(const char *text, const char *name) {
    const char *at = strstr(text, name);
    if (!at) die("no %s in %s", name, text);
    return strtoll(at + strlen(name), NULL, 10);
}

static void read_payload(const uint8_t *at, size_t count, int64_t *due, uint32_t *number, uint32_t *sequence) {
    if (count < MIN_PAYLOAD) die("payload of %zu bytes that is not ours", count);
    if (options.answers) {
        char text[512];
        snprintf(text, sizeof text, "%.*s", (int)count, (const char *)at);
        *due = json_number(text, "\"due\":");
        *number = (uint32_t)json_number(text, "\"publisher\":");
        *sequence = (uint32_t)json_number(text, "\"number\":");
        return;
    }
    memcpy(due, at, 8);
    memcpy(number, at + 8, 4);
    memcpy(sequence, at + 12, 4);
}

static void process_publish(Connection *c, const uint8_t *body, size_t count, int flags, int64_t now) {
    size_t topic_bytes = (size_t)body[0] << 8 | body[1], at = 2 + topic_bytes;
    int qos = flags >> 1 & 3;
    if (at + (qos ? 2 : 0) > count) die("PUBLISH of %zu bytes that is not ours", count);
    if (qos) {
        uint8_t puback[4] = {0x40, 2, body[at], body[at + 1]};
        put(c, puback, 4);
        at += 2;
    }
    int64_t due;
    uint32_t number, sequence;
    read_payload(body + at, count - at, &due, &number, &sequence);
    if (number >= (uint32_t)options.publishers) die("message of publisher %u that is not ours", number);
    Track *track = &tracks[(size_t)c->number * (size_t)options.publishers + number];
    if (sequence / 8 >= track->seen_bytes) {
        size_t bytes = (sequence / 8 + 1) * 2;
        track->seen = grow(track->seen, bytes);
        memset(track->seen + track->seen_bytes, 0, bytes - track->seen_bytes);
        track->seen_bytes = bytes;
    }
    if (track->seen[sequence / 8] & 1 << sequence % 8) {
        duplicated++;
        return;
    }
    track->seen[sequence / 8] |= (uint8_t)(1 << sequence % 8);
    if (sequence < track->next) disordered++;
    else track->next = sequence + 1;
    publishers[number].delivered++;
    delivered++;
    if (now >= measure_ns && now < end_ns) {
        int64_t since = last_delivery_ns < measure_ns ? measure_ns : last_delivery_ns;
        if (now - since > longest_gap_ns) longest_gap_ns = now - since;
        measured_deliveries++;
    }
    last_delivery_ns = now;
    if (due >= measure_ns) take_sample(&delivery_latency, now - due);
}

static void receive(Connection *c) {
    ssize_t n = recv(c->fd, c->in + c->in_count, c->in_room - c->in_count, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0)
        die("%s %d: %s", c->is_publisher ? "publisher" : "subscriber", c->number,
            n ? strerror(errno) : "the broker closed the connection");
    int64_t now = now_ns();
    c->in_count += (size_t)n;
    size_t at = 0;
    for (;;) {
        size_t length = 0, head = 1;
        int shift = 0, complete = 0;
        while (at + head < c->in_count && head < 5) {
            uint8_t byte = c->in[at + head++];
            length |= (size_t)(byte & 127) << shift;
            shift += 7;
            if (!(byte & 128)) {
                complete = 1;
                break;
            }
        }
        if (!complete || at + head + length > c->in_count) break;
        const uint8_t *body = c->in + at + head;
        int type = c->in[at] >> 4;
        if (type == 4) process_puback(c, (uint16_t)(body[0] << 8 | body[1]), now);
        else if (type == 3) process_publish(c, body, length, c->in[at] & 15, now);
        else die("packet of type %d, expected PUBACK or PUBLISH", type);
        at += head + length;
    }
    memmove(c->in, c->in + at, c->in_count - at);
    c->in_count -= at;
    if (c->in_count == c->in_room) die("packet larger than %zu bytes", c->in_room);
    if (c->out_end > c->out_begin && !c->writing) flush_out(c);
}

/* ---------------------------------------------------------------- the run */

static uint64_t expected_deliveries(void) {
    if (!options.answered) return published * copies();
    uint64_t sent = 0;
    for (int i = 0; i < options.answered && i < options.publishers; i++) sent += publishers[i].sent;
    return sent * copies();
}

/* Send what is due; returns when the next is, or 0 when publishing has ended. */
static int64_t publish_due(int64_t now, uint64_t *scheduled) {
    if (now >= end_ns) return 0;
    if (options.rate <= 0) {
        for (int i = 0; i < options.publishers; i++) {
            Connection *c = &publishers[i];
            while (!c->writing && can_publish(c)) publish(c, now);
            if (c->out_end > c->out_begin && !c->writing) flush_out(c);
        }
        return end_ns;
    }
    for (;;) {
        int64_t due = begin_ns + (int64_t)((double)*scheduled * (double)SECOND / options.rate);
        if (due > now) {
            for (int i = 0; i < options.publishers; i++) {
                Connection *c = &publishers[i];
                if (c->out_end > c->out_begin && !c->writing) flush_out(c);
            }
            return due < end_ns ? due : end_ns;
        }
        Connection *c = &publishers[*scheduled % (uint64_t)options.publishers];
        if (!can_publish(c)) return now + SECOND / 1000; /* the broker is far behind; try again soon */
        publish(c, due);
        ++*scheduled;
    }
}

static void wake_at(int64_t ns) {
    struct itimerspec at = {.it_value = {.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND}};
    if (timerfd_settime(clock_fd, TFD_TIMER_ABSTIME, &at, NULL)) die("timerfd: %s", strerror(errno));
}

static void open_all(void) {
    char filter[128];
    publishers = calloc((size_t)options.publishers + 1, sizeof *publishers);
    subscribers = calloc((size_t)options.subscribers + 1, sizeof *subscribers);
    tracks = calloc((size_t)options.subscribers * (size_t)options.publishers + 1, sizeof *tracks);
    if (!publishers || !subscribers || !tracks) die("out of memory");
    for (int i = 0; i < options.subscribers; i++) {
        open_connection(&subscribers[i], &options.subscribe_to.address[i % options.subscribe_to.count], "s", i,
                        !options.persistent);
        if (options.answers) snprintf(filter, sizeof filter, "%s/%d/#", options.answers, i);
        else if (options.everyone) snprintf(filter, sizeof filter, "%s/#", options.prefix);
        else snprintf(filter, sizeof filter, "%s/%d/+", options.prefix, i);
        subscribe(&subscribers[i], 1, filter);
        start_polling(&subscribers[i]);
    }
    for (int i = 0; i < options.publishers; i++) {
        Connection *c = &publishers[i];
        open_connection(c, &options.publish_to.address[i % options.publish_to.count], "p", i, 1);
        c->due = calloc(MAX_PACKET_ID + 1, sizeof *c->due);
        if (!c->due) die("out of memory");
        c->topic_bytes = snprintf(c->topic, sizeof c->topic, "%s/%d/c%d", options.prefix,
                                  options.subscribers ? i % options.subscribers : 0, i);
        start_polling(c);
    }
}

static void run_messages(void) {
    struct epoll_event events[256];
    uint64_t scheduled = 0;
    clock_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event tick = {.events = EPOLLIN, .data.ptr = NULL};
    if (clock_fd < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, clock_fd, &tick)) die("timerfd: %s", strerror(errno));
    begin_ns = now_ns();
    measure_ns = begin_ns + (int64_t)(options.warmup_seconds * SECOND);
    end_ns = measure_ns + (int64_t)(options.seconds * SECOND);
    int64_t give_up_ns = end_ns + (int64_t)(options.drain_seconds * SECOND), armed = 0;
    for (;;) {
        int64_t now = now_ns(), next = publish_due(now, &scheduled);
        if (!next) {
            if (acknowledged == published && delivered >= expected_deliveries()) break;
            if (now >= give_up_ns) break;
            next = give_up_ns;
        }
        if (next != armed) wake_at(armed = next);
        int ready = epoll_wait(poller, events, 256, 1000);
        if (ready < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                uint64_t expirations;
                if (read(clock_fd, &expirations, sizeof expirations) > 0) armed = 0;
                continue;
            }
            if (events[i].events & EPOLLOUT) flush_out(c);
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) receive(c);
        }
    }
}

static void disconnect(Connection *c) {
    static const uint8_t packet[2] = {0xE0, 0};
    if (c->out_begin == c->out_end) send(c->fd, packet, sizeof packet, MSG_NOSIGNAL);
    close(c->fd);
}

/* A clean session in the place of each stored one: nothing is left of the run. */
static void end_sessions(void) {
    for (int i = 0; i < options.subscribers; i++) {
        Connection c = {0};
        open_connection(&c, &options.subscribe_to.address[i % options.subscribe_to.count], "s", i, 1);
        disconnect(&c);
    }
}

static void run_probes(void) {
    char filter[128];
    Connection c = {0};
    open_connection(&c, &options.subscribe_to.address[0], "q", 0, 1);
    for (int i = 0; i < options.probes; i++) {
        snprintf(filter, sizeof filter, "%s/probe/%d", options.prefix, i);
        int64_t begin = now_ns();
        subscribe(&c, (uint16_t)(i % MAX_PACKET_ID + 1), filter);
        take_sample(&suback_latency, now_ns() - begin);
        usleep((useconds_t)(options.probe_interval_seconds * 1e6));
    }
    disconnect(&c);
}

int main(int count, char **words) {
    parse_options(count, words);
    allow_connections(options.publishers + options.subscribers + 1);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) die("epoll: %s", strerror(errno));
    if (options.probes) run_probes();
    if (options.publishers) {
        open_all();
        run_messages();
        for (int i = 0; i < options.publishers; i++) disconnect(&publishers[i]);
        for (int i = 0; i < options.subscribers; i++) disconnect(&subscribers[i]);
        if (options.persistent) end_sessions();
    }
    uint64_t expected = expected_deliveries();
    printf("{\"published\": %llu, \"acknowledged\": %llu, \"acknowledged_per_second\": %.1f",
           (unsigned long long)published, (unsigned long long)acknowledged,
           (double)measured_acks / options.seconds);
    printf(", \"expected\": %llu, \"delivered\": %llu, \"delivered_per_second\": %.1f",
           (unsigned long long)expected, (unsigned long long)delivered,
           (double)measured_deliveries / options.seconds);
    printf(", \"lost\": %lld, \"duplicated\": %llu, \"out_of_order\": %llu",
           (long long)(expected - delivered), (unsigned long long)duplicated, (unsigned long long)disordered);
    printf(", \"last_delivery_seconds_after_end\": %.3f",
           last_delivery_ns > end_ns ? (double)(last_delivery_ns - end_ns) / SECOND : 0.0);
    printf(", \"longest_gap_ms\": %.3f", (double)longest_gap_ns / 1e6);
    print_samples("ack_ms", &ack_latency);
    print_samples("delivery_ms", &delivery_latency);
    print_samples("suback_ms", &suback_latency);
    printf("}\n");
    return 0;
}
