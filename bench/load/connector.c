/* The connecting side of `mqlake bench`: MQTT connections in one thread on epoll, many of them at once.
 *
 * With --cycles each client goes CONNECT, CONNACK, DISCONNECT, end of the connection by the broker; a fixed
 * number of clients is on its way at any time, their protocol levels take turns. With --keep 1 their sessions
 * outlive their connections (3.1 and 3.1.1: no clean session; 5.0: an hour), with --subscribe 1 each subscribes
 * to a filter of its own before it leaves. With --names P the clients are called P<number>, their numbers
 * --first and then each --stride further: clients that have been there before. With --users N they log in as
 * user-0 to user-<N-1>, in turn, all with --password. With --hold so many
 * connections (3.1.1, clean session, keep alive) are opened and held; each line "subscribe" on standard
 * input makes every one of them subscribe to a filter of its own, the end of the input ends the program.
 *
 * One JSON object a line goes to standard output: at the end of the cycles, when all connections are held,
 * when all have subscribed. An error is one line on standard error and exit code 1.
 */
#include "common.h"

#define PATIENCE_SECONDS 20 /* without any progress */
#define KEEP_ALIVE 300
#define MAX_LEVELS 8
#define MAX_PACKET 192
#define MAX_ANSWER 512 /* a refusal may have a reason string */

/* ---------------------------------------------------------------- options */

static struct {
    Addresses to;
    int cycles, hold;
    int keep, subscribe;     /* sessions outlive connections; one subscription each */
    const char *names;       /* of clients; NULL: names that nobody else has */
    int first, stride;       /* numbers of clients with such names */
    int users;               /* as whom clients log in; 0: as nobody */
    const char *password;
    int in_flight;           /* clients on their way at once */
    const char *levels;      /* a digit each: 3, 4 (3.1.1) or 5 */
    const char *prefix;      /* of the filters */
} options = {.in_flight = 100, .levels = "345", .prefix = "bench", .stride = 1, .password = ""};

static void parse_options(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        const char *name = words[i];
        char *value = words[i + 1];
        if (!strcmp(name, "--to")) parse_addresses(&options.to, value);
        else if (!strcmp(name, "--cycles")) options.cycles = atoi(value);
        else if (!strcmp(name, "--hold")) options.hold = atoi(value);
        else if (!strcmp(name, "--in-flight")) options.in_flight = atoi(value);
        else if (!strcmp(name, "--levels")) options.levels = value;
        else if (!strcmp(name, "--prefix")) options.prefix = value;
        else if (!strcmp(name, "--keep")) options.keep = atoi(value);
        else if (!strcmp(name, "--subscribe")) options.subscribe = atoi(value);
        else if (!strcmp(name, "--names")) options.names = value;
        else if (!strcmp(name, "--first")) options.first = atoi(value);
        else if (!strcmp(name, "--stride")) options.stride = atoi(value);
        else if (!strcmp(name, "--users")) options.users = atoi(value);
        else if (!strcmp(name, "--password")) options.password = value;
        else die("unknown option %s", name);
    }
    if (count % 2 == 0) die("option %s has no value", words[count - 1]);
    if (!options.to.count) die("connections need --to");
    if (options.in_flight < 1) die("clients in flight are %d, expected 1 or more", options.in_flight);
    if (!*options.levels || strspn(options.levels, "345") != strlen(options.levels))
        die("protocol levels are %s, expected digits of 345", options.levels);
    if (strlen(options.prefix) > 60) die("prefix is longer than 60 bytes");
    if (strlen(options.password) > 40) die("password is longer than 40 bytes");
    if (options.names && strlen(options.names) > 40) die("names are longer than 40 bytes");
}

/* ---------------------------------------------------------------- one client */

typedef enum { CONNECTING, AWAITING_CONNACK, AWAITING_END, HELD, AWAITING_SUBACK } State;

typedef struct {
    int fd, number;
    State state;
    int64_t begin_ns;
    uint8_t in[MAX_ANSWER];
    size_t in_count;
} Client;

static int poller;
static Samples connack_latency;
static int present; /* sessions that the broker had */
static int64_t progress_ns;

static void send_packet(const Client *c, const uint8_t *packet, size_t count) {
    /* A fresh socket takes some hundred bytes at once, or something is badly wrong. */
    ssize_t n = send(c->fd, packet, count, MSG_NOSIGNAL);
    if (n != (ssize_t)count) die("client %d: write: %s", c->number, n < 0 ? strerror(errno) : "socket is full");
}

static char level_of(const Client *c) {
    return options.hold ? '4' : options.levels[(size_t)c->number % strlen(options.levels)];
}

static size_t put_text(uint8_t *at, const char *text) {
    size_t bytes = strlen(text);
    at[0] = (uint8_t)(bytes >> 8);
    at[1] = (uint8_t)bytes;
    memcpy(at + 2, text, bytes);
    return 2 + bytes;
}

static void send_connect(const Client *c) {
    uint8_t packet[MAX_PACKET], body[MAX_PACKET];
    char client_id[64]; /* 3.1 allows 23 characters */
    char level = level_of(c);
    const char *name = level == '3' ? "MQIsdp" : "MQTT";
    size_t n = put_text(body, name);
    body[n++] = (uint8_t)(level - '0');
    body[n++] = (uint8_t)((options.keep ? 0 : 2) | (options.users ? 0xC0 : 0)); /* clean, user name, password */
    body[n++] = KEEP_ALIVE >> 8;
    body[n++] = KEEP_ALIVE & 255;
    if (level == '5' && options.keep) {
        static const uint8_t an_hour[] = {5, 0x11, 0, 0, 0x0E, 0x10}; /* Session Expiry Interval */
        memcpy(body + n, an_hour, sizeof an_hour);
        n += sizeof an_hour;
    } else if (level == '5') {
        body[n++] = 0;
    }
    if (options.names)
        snprintf(client_id, sizeof client_id, "%s%d", options.names, options.first + c->number * options.stride);
    else
        snprintf(client_id, sizeof client_id, "bench-%d-%d", (int)getpid(), c->number);
    n += put_text(body + n, client_id);
    if (options.users) {
        char username[32];
        snprintf(username, sizeof username, "user-%d", c->number % options.users);
        n += put_text(body + n, username);
        n += put_text(body + n, options.password);
    }
    packet[0] = 0x10;
    size_t head = 1 + put_length(packet + 1, n);
    memcpy(packet + head, body, n);
    send_packet(c, packet, head + n);
}

static void send_subscribe(Client *c) {
    uint8_t packet[MAX_PACKET];
    char filter[96];
    size_t filter_bytes = (size_t)snprintf(filter, sizeof filter, "%s/%d/command", options.prefix, c->number), n = 1;
    int properties = options.hold || level_of(c) != '5' ? 0 : 1;
    packet[0] = 0x82;
    n += put_length(packet + n, 2 + (size_t)properties + 2 + filter_bytes + 1);
    packet[n++] = 0;
    packet[n++] = 1;
    if (properties) packet[n++] = 0;
    packet[n++] = 0;
    packet[n++] = (uint8_t)filter_bytes;
    memcpy(packet + n, filter, filter_bytes);
    n += filter_bytes;
    packet[n++] = 1;
    c->state = AWAITING_SUBACK;
    send_packet(c, packet, n);
}

static void want(Client *c, uint32_t events, int operation) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event)) die("epoll_ctl: %s", strerror(errno));
}

static void open_client(Client *c, int number) {
    const struct sockaddr_in *address = &options.to.address[number % options.to.count];
    c->number = number;
    c->state = CONNECTING;
    c->in_count = 0;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket: %s", strerror(errno));
    int yes = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    c->begin_ns = now_ns();
    if (connect(c->fd, (const struct sockaddr *)address, sizeof *address) && errno != EINPROGRESS)
        die("connect to port %d: %s", ntohs(address->sin_port), strerror(errno));
    want(c, EPOLLOUT, EPOLL_CTL_ADD);
}

static void connected(Client *c) {
    int problem = 0;
    socklen_t size = sizeof problem;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &problem, &size);
    if (problem)
        die("connect to port %d: %s", ntohs(options.to.address[c->number % options.to.count].sin_port),
            strerror(problem));
    c->state = AWAITING_CONNACK;
    want(c, EPOLLIN, EPOLL_CTL_MOD);
    send_connect(c);
}

/* Say why the broker refuses; of 5.0 with the reason string, if that is what its properties begin with. */
static void refused(const char *what, uint8_t code, const uint8_t *properties, const uint8_t *end) {
    properties += end - properties > 127 + 1 ? 2 : 1; /* after their length */
    if (end - properties > 3 && *properties == 0x1F) {
        int bytes = properties[1] << 8 | properties[2];
        if (bytes <= end - properties - 3)
            die("%s with return code %d (%.*s), expected 0", what, code, bytes, (const char *)properties + 3);
    }
    die("%s with return code %d, expected 0", what, code);
}

/* Take one packet in; returns 0 while it is not complete. */
static int take_packet(Client *c, uint8_t expected, const char *what) {
    if (c->in_count < 2) return 0;
    if (c->in[0] != expected) die("client %d: packet of type %d, expected %s", c->number, c->in[0] >> 4, what);
    size_t head = c->in[1] & 128 ? 3 : 2, length = c->in[1] & 127;
    if (c->in_count < head) return 0;
    if (head == 3) length |= (size_t)c->in[2] << 7;
    size_t count = head + length;
    if (count > sizeof c->in) die("client %d: %s of %zu bytes, expected %zu at most", c->number, what, count, sizeof c->in);
    if (c->in_count < count) return 0;
    uint8_t code = expected == 0x20 ? c->in[head + 1] : c->in[count - 1];
    if (code > 2 || (expected == 0x20 && code)) refused(what, code, c->in + head + 2, c->in + count);
    if (expected == 0x20) present += c->in[head] & 1;
    memmove(c->in, c->in + count, c->in_count - count);
    c->in_count -= count;
    return 1;
}

static void disconnect(const Client *c) {
    static const uint8_t packet[2] = {0xE0, 0};
    send(c->fd, packet, sizeof packet, MSG_NOSIGNAL);
}

/* Returns whether this client has done what it is to do at the moment. */
static int advance(Client *c, uint32_t events) {
    progress_ns = now_ns();
    if (c->state == CONNECTING) {
        connected(c);
        return 0;
    }
    if (!(events & (EPOLLIN | EPOLLERR | EPOLLHUP))) return 0;
    ssize_t n = recv(c->fd, c->in + c->in_count, sizeof c->in - c->in_count, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) {
        if (c->state != AWAITING_END)
            die("client %d: %s", c->number, n ? strerror(errno) : "the broker closed the connection");
        return 1;
    }
    c->in_count += (size_t)n;
    if (c->state == AWAITING_CONNACK && take_packet(c, 0x20, "CONNACK")) {
        take_sample(&connack_latency, progress_ns - c->begin_ns);
        if (options.hold) {
            c->state = HELD;
            return 1;
        }
        if (options.subscribe) {
            send_subscribe(c);
            return 0;
        }
        c->state = AWAITING_END;
        disconnect(c);
    }
    if (c->state == AWAITING_SUBACK && take_packet(c, 0x90, "SUBACK")) {
        c->state = options.hold ? HELD : AWAITING_END;
        if (options.hold) return 1;
        disconnect(c);
    }
    return 0;
}

/* ---------------------------------------------------------------- the run */

/* Wait for events; at most so long without any. */
static int wait_events(struct epoll_event *events, int room) {
    int ready = epoll_wait(poller, events, room, PATIENCE_SECONDS * 1000);
    if (ready < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
    if (!ready && now_ns() - progress_ns > PATIENCE_SECONDS * SECOND / 2)
        die("no answer from the broker within %d s", PATIENCE_SECONDS);
    return ready < 0 ? 0 : ready;
}

static void run_cycles(void) {
    struct epoll_event events[256];
    int room = options.in_flight < options.cycles ? options.in_flight : options.cycles, opened = 0, done = 0;
    Client *clients = calloc((size_t)room, sizeof *clients);
    if (!clients) die("out of memory");
    int64_t begin_ns = now_ns();
    while (opened < room) {
        open_client(&clients[opened], opened);
        opened++;
    }
    while (done < options.cycles) {
        int ready = wait_events(events, 256);
        for (int i = 0; i < ready; i++) {
            Client *c = events[i].data.ptr;
            if (!advance(c, events[i].events)) continue;
            close(c->fd);
            done++;
            if (opened < options.cycles) open_client(c, opened++);
        }
    }
    double seconds = (double)(now_ns() - begin_ns) / SECOND;
    printf("{\"cycles\": %d, \"seconds\": %.3f, \"per_second\": %.1f, \"present\": %d", done, seconds, done / seconds,
           present);
    print_samples("connack_ms", &connack_latency);
    printf("}\n");
}

static void say(const char *what, int count) {
    printf("{\"%s\": %d}\n", what, count);
    fflush(stdout);
}

/* Have all clients do something, `in_flight` at a time. */
static void all(Client *clients, void (*start)(Client *)) {
    struct epoll_event events[256];
    int started = 0, done = 0;
    progress_ns = now_ns();
    while (done < options.hold) {
        while (started < options.hold && started - done < options.in_flight) start(&clients[started++]);
        int ready = wait_events(events, 256);
        for (int i = 0; i < ready; i++) done += advance(events[i].data.ptr, events[i].events);
    }
}

static Client *first;

static void start_client(Client *c) {
    open_client(c, (int)(c - first));
}

static void run_hold(void) {
    char line[64];
    Client *clients = first = calloc((size_t)options.hold, sizeof *clients);
    if (!clients) die("out of memory");
    all(clients, start_client);
    say("held", options.hold);
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "subscribe\n")) die("unknown command on standard input");
        all(clients, send_subscribe);
        say("subscribed", options.hold);
    }
    for (int i = 0; i < options.hold; i++) {
        disconnect(&clients[i]);
        close(clients[i].fd);
    }
}

int main(int count, char **words) {
    parse_options(count, words);
    allow_connections(options.hold > options.in_flight ? options.hold : options.in_flight);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) die("epoll: %s", strerror(errno));
    progress_ns = now_ns();
    if (options.cycles) run_cycles();
    if (options.hold) run_hold();
    return 0;
}
