/* The packets that a sliver can send, and the addresses that it can reach. */
#define _GNU_SOURCE
#include "probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/if_ether.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINK "eth0"
#define CONNECT_MILLISECONDS 2000
#define COPIES 5
#define MOST_PORTS 64

static long now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static struct in_addr address(const char *text)
{
    struct in_addr parsed;

    if (inet_pton(AF_INET, text, &parsed) != 1) {
        fprintf(stderr, "sliver-probe: '%s' is not an IPv4 address\n", text);
        exit(2);
    }
    return parsed;
}

static struct sockaddr_in place(const char *host, long port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = address(host), .sin_port = htons((uint16_t)port)};
}

/* Begin a connection and return its descriptor; `*error` is not 0 if that fails at once. */
static int begin(const char *host, long port, int *error)
{
    struct sockaddr_in where = place(host, port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    *error = fd < 0 || (connect(fd, (struct sockaddr *)&where, sizeof where) < 0 && errno != EINPROGRESS) ? errno : 0;
    return fd;
}

/* Connect to several ports of an address at the same time, such as "22,53", and report the result of each. */
int probe_connect(char **arguments)
{
    struct pollfd wait[MOST_PORTS];
    int errors[MOST_PORTS], count = 0;
    long ports[MOST_PORTS], end, left;

    for (char *rest = arguments[1], *one; count < MOST_PORTS && (one = strsep(&rest, ",")) != NULL; count++) {
        ports[count] = number(one);
        wait[count] = (struct pollfd){.fd = begin(arguments[0], ports[count], &errors[count]), .events = POLLOUT};
        if (errors[count])
            wait[count].fd = -1; /* poll ignores it */
        else
            errors[count] = ETIMEDOUT;
    }
    for (end = now() + CONNECT_MILLISECONDS; (left = end - now()) > 0;) {
        int open = 0;

        for (int i = 0; i < count; i++)
            open += wait[i].fd >= 0;
        if (!open || poll(wait, (nfds_t)count, (int)left) <= 0)
            break;
        for (int i = 0; i < count; i++)
            if (wait[i].fd >= 0 && wait[i].revents) {
                socklen_t length = sizeof errors[i];

                if (getsockopt(wait[i].fd, SOL_SOCKET, SO_ERROR, &errors[i], &length) < 0)
                    errors[i] = errno;
                wait[i].fd = -1;
            }
    }
    for (int i = 0; i < count; i++) {
        char name[32];

        snprintf(name, sizeof name, "connect.%ld", ports[i]);
        errno = errors[i];
        say_result(name, errors[i] ? -1 : 0);
    }
    return 0;
}

/* Count datagrams, after a first line that reports that the socket is ready. */
int probe_listen(char **arguments)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number(arguments[0]))};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    time_t end = time(NULL) + number(arguments[1]);
    long count = 0;

    if (fd < 0 || bind(fd, (struct sockaddr *)&where, sizeof where) < 0) {
        say_result("listen", -1);
        return 0;
    }
    say("listen", "ok");
    while (time(NULL) < end) {
        struct pollfd wait[] = {{.fd = fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
        char data[2048];

        poll(wait, LENGTH(wait), 200);
        if (wait[0].revents & POLLIN)
            count += recv(fd, data, sizeof data, MSG_DONTWAIT) >= 0;
        else if (wait[1].revents)
            break;
    }
    say("received", "%ld", count);
    return 0;
}

int probe_spoof(char **arguments)
{
    struct sockaddr_in where = place(arguments[1], number(arguments[2]));
    struct {
        struct iphdr ip;
        struct udphdr udp;
        char data[8];
    } packet = {.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP}};
    int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW), sent = 0;

    packet.ip.tot_len = htons(sizeof packet);
    packet.ip.saddr = address(arguments[0]).s_addr;
    packet.ip.daddr = where.sin_addr.s_addr;
    packet.udp.source = htons(4000);
    packet.udp.dest = where.sin_port;
    packet.udp.len = htons(sizeof packet.udp + sizeof packet.data);
    for (int i = 0; fd >= 0 && i < COPIES; i++)
        sent += sendto(fd, &packet, sizeof packet, 0, (struct sockaddr *)&where, sizeof where) > 0;
    say("spoof", "%d", sent);
    return 0;
}

/* Send datagrams to different ports, so that connection tracking counts each as a connection. */
int probe_flows(char **arguments)
{
    long count = number(arguments[1]), sent = 0;
    int fd = -1;

    for (long i = 0; i < count; i++) {
        struct sockaddr_in where = place(arguments[0], 1024 + i % 60000);

        if (i % 60000 == 0) { /* use another source port */
            if (fd >= 0)
                close(fd);
            fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        }
        sent += sendto(fd, "x", 1, 0, (struct sockaddr *)&where, sizeof where) > 0;
    }
    say("flows", "%ld", sent);
    return 0;
}

/* Send ARP requests for the gateway, each with another sender address that is not the sliver's. */
int probe_arp(char **arguments)
{
    uint32_t first = ntohl(address(arguments[0]).s_addr);
    long count = number(arguments[1]), sent = 0;
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ARP));
    struct ifreq link = {.ifr_name = LINK};
    struct in_addr gateway = address("169.254.1.1");
    struct {
        struct ether_header ethernet;
        struct ether_arp arp;
    } __attribute__((packed)) packet;
    struct sockaddr_ll where = {.sll_family = AF_PACKET, .sll_halen = ETH_ALEN};

    if (fd < 0 || ioctl(fd, SIOCGIFHWADDR, &link) < 0) {
        say_result("arp", -1);
        return 0;
    }
    memset(&packet, 0, sizeof packet);
    memset(packet.ethernet.ether_dhost, 0xff, ETH_ALEN);
    memcpy(packet.ethernet.ether_shost, link.ifr_hwaddr.sa_data, ETH_ALEN);
    packet.ethernet.ether_type = htons(ETHERTYPE_ARP);
    packet.arp.ea_hdr = (struct arphdr){.ar_hrd = htons(ARPHRD_ETHER), .ar_pro = htons(ETHERTYPE_IP),
                                        .ar_hln = ETH_ALEN, .ar_pln = 4, .ar_op = htons(ARPOP_REQUEST)};
    memcpy(packet.arp.arp_sha, link.ifr_hwaddr.sa_data, ETH_ALEN);
    memcpy(packet.arp.arp_tpa, &gateway, 4);
    where.sll_ifindex = (int)if_nametoindex(LINK);
    for (long i = 0; i < count; i++) {
        uint32_t sender = htonl(first + (uint32_t)i);

        memcpy(packet.arp.arp_spa, &sender, 4);
        sent += sendto(fd, &packet, sizeof packet, 0, (struct sockaddr *)&where, sizeof where) > 0;
    }
    say("arp", "%ld", sent);
    return 0;
}

static uint16_t checksum(const void *data, size_t length, uint32_t sum)
{
    const uint8_t *bytes = data;

    for (size_t i = 0; i + 1 < length; i += 2)
        sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)~sum);
}

/* The number of IPv6 packets that arrive during the time, without the sliver's own. */
static long heard(int fd, long milliseconds)
{
    long count = 0, end = now() + milliseconds, left;

    while ((left = end - now()) > 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        struct sockaddr_ll from;
        socklen_t length = sizeof from;
        char data[2048];

        if (poll(&wait, 1, (int)left) > 0 && recvfrom(fd, data, sizeof data, MSG_DONTWAIT, (void *)&from, &length) > 0)
            count += from.sll_pkttype != PACKET_OUTGOING;
    }
    return count;
}

/* Send echo requests to all nodes of the link as raw frames, since the sliver's own IPv6 may be off. */
int probe_ipv6(char **arguments)
{
    static const uint8_t everybody[ETH_ALEN] = {0x33, 0x33, 0, 0, 0, 1};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_IPV6)), sent = 0;
    struct ifreq link = {.ifr_name = LINK};
    struct {
        struct ether_header ethernet;
        struct ip6_hdr ip;
        struct icmp6_hdr icmp;
    } __attribute__((packed)) packet;
    struct sockaddr_ll where = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IPV6), .sll_halen = ETH_ALEN};
    struct packet_mreq everything = {.mr_type = PACKET_MR_PROMISC};

    where.sll_ifindex = everything.mr_ifindex = (int)if_nametoindex(LINK);
    /* The node's neighbour solicitation for the forged address goes to a group that a machine's device would filter. */
    if (fd < 0 || ioctl(fd, SIOCGIFHWADDR, &link) < 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &everything, sizeof everything) < 0 ||
        bind(fd, (struct sockaddr *)&where, sizeof where) < 0) {
        say_result("ipv6.sent", -1);
        return 0;
    }
    memset(&packet, 0, sizeof packet);
    memcpy(packet.ethernet.ether_dhost, everybody, ETH_ALEN);
    memcpy(packet.ethernet.ether_shost, link.ifr_hwaddr.sa_data, ETH_ALEN);
    packet.ethernet.ether_type = htons(ETHERTYPE_IPV6);
    packet.ip.ip6_flow = htonl(6U << 28);
    packet.ip.ip6_plen = htons(sizeof packet.icmp);
    packet.ip.ip6_nxt = IPPROTO_ICMPV6;
    packet.ip.ip6_hlim = 255;
    inet_pton(AF_INET6, "fe80::a0d1:7", &packet.ip.ip6_src);
    inet_pton(AF_INET6, "ff02::1", &packet.ip.ip6_dst);
    packet.icmp.icmp6_type = ICMP6_ECHO_REQUEST;
    /* the pseudo header: length, protocol, both addresses */
    packet.icmp.icmp6_cksum = checksum(&packet.ip.ip6_src, 2 * sizeof packet.ip.ip6_src + sizeof packet.icmp,
                                       sizeof packet.icmp + IPPROTO_ICMPV6);
    for (int i = 0; i < COPIES; i++)
        sent += send(fd, &packet, sizeof packet, 0) > 0;
    say("ipv6.sent", "%d", sent);
    say("ipv6.answers", "%ld", heard(fd, number(arguments[0])));
    return 0;
}
