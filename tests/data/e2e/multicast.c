/*
 * multicast receive SECONDS   prints "listening", then the first datagram sent to the cluster's discovery group
 * multicast send TEXT         sends one every 100 ms, twenty times
 */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int fail(const char *what) {
    perror(what);
    return 1;
}

static int receive(int s, const struct sockaddr_in *group, int seconds) {
    struct ip_mreqn join = {.imr_multiaddr = group->sin_addr};
    struct timeval patience = {.tv_sec = seconds};
    char text[256];
    ssize_t size;

    if (bind(s, (const struct sockaddr *)group, sizeof(*group)))
        return fail("bind");
    if (setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof(join)))
        return fail("join");
    if (setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
        return fail("timeout");
    puts("listening");
    fflush(stdout);
    size = recv(s, text, sizeof(text), 0);
    if (size < 0)
        return fail("receive");
    printf("%.*s\n", (int)size, text);
    return 0;
}

static int send_text(int s, const struct sockaddr_in *group, const char *text) {
    for (int i = 0; i < 20; i++) {
        if (sendto(s, text, strlen(text), 0, (const struct sockaddr *)group, sizeof(*group)) < 0)
            return fail("send");
        usleep(100000);
    }
    return 0;
}

int main(int argc, char **argv) {
    struct sockaddr_in group = {.sin_family = AF_INET, .sin_port = htons(8091)};
    int s = socket(AF_INET, SOCK_DGRAM, 0);

    inet_aton("239.255.75.49", &group.sin_addr);
    if (s < 0)
        return fail("socket");
    if (argc == 3 && !strcmp(argv[1], "receive"))
        return receive(s, &group, atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "send"))
        return send_text(s, &group, argv[2]);
    fprintf(stderr, "usage: multicast receive SECONDS | send TEXT\n");
    return 2;
}
