/* Load generator: many connections that each send a request, wait for the response and send it again. It is written in C to use
 * less CPU than the server. Prints the numbers of successful and of other responses, and the seconds they took.
 *
 *     load PORT CONNECTIONS SECONDS < request
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BUFFER 65536
#define MOST 4096

struct connection {
    int fd;
    size_t filled;
    char buffer[BUFFER];
};

static char request[BUFFER];
static size_t request_bytes;
static long good, other;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void ask(struct connection *one) {
    if (write(one->fd, request, request_bytes) != (ssize_t)request_bytes) fail("write");
}

/* Return the length of the response at the beginning of the buffer, or 0 if it is incomplete. */
static size_t answer_bytes(struct connection *one) {
    one->buffer[one->filled] = 0;
    char *end = strstr(one->buffer, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(one->buffer, "content-length:");
    size_t whole = (size_t)(end + 4 - one->buffer) + (length && length < end ? strtoul(length + 15, NULL, 10) : 0);
    return one->filled >= whole ? whole : 0;
}

static void hear(struct connection *one) {
    ssize_t got = read(one->fd, one->buffer + one->filled, BUFFER - 1 - one->filled);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail("the server has hung up");
    one->filled += (size_t)got;
    size_t whole = answer_bytes(one);
    if (!whole) return;
    if (strncmp(one->buffer, "HTTP/1.1 2", 10) == 0) good++; else other++;
    memmove(one->buffer, one->buffer + whole, one->filled - whole);
    one->filled -= whole;
    ask(one);
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int port = atoi(words[1]), connections = atoi(words[2]);
    double seconds = atof(words[3]);
    if (connections > MOST) return 2;
    request_bytes = fread(request, 1, BUFFER, stdin);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    int poll = epoll_create1(0), yes = 1;
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    inet_pton(AF_INET, "127.0.0.1", &place.sin_addr);
    for (int number = 0; number < connections; number++) {
        all[number].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(all[number].fd, (struct sockaddr *)&place, sizeof place)) fail("connect");
        setsockopt(all[number].fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &all[number]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[number].fd, &wanted);
        ask(&all[number]);
    }
    double begun = now(), took;
    struct epoll_event ready[256];
    while ((took = now() - begun) < seconds) {
        int found = epoll_wait(poll, ready, 256, 100);
        for (int number = 0; number < found; number++) hear(ready[number].data.ptr);
    }
    printf("%ld %ld %f\n", good, other, took);
    return 0;
}
