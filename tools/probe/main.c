/* The table of probes, and the functions that they share. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK "/.slicemgr/init"
#define GATEWAY 0x0101FEA9UL /* 169.254.1.1 as /proc/net/route shows it: the gateway of every sliver */

enum scope { CONTAINER, SLIVER, ANYWHERE };

static const struct probe {
    const char *name;
    int arguments;
    int (*run)(char **arguments);
    enum scope scope; /* where it may run: on a node its calls would have effects */
} probes[] = {
    {"calls", 0, probe_calls, CONTAINER},
    {"sockets", 0, probe_sockets, CONTAINER},
    {"status", 0, probe_status, CONTAINER},
    {"files", 0, probe_files, CONTAINER},
    {"devices", 0, probe_devices, CONTAINER},
    {"view", 0, probe_view, ANYWHERE},
    {"pool", 0, probe_pool, CONTAINER},
    {"processes", 1, probe_processes, CONTAINER}, /* the most to start */
    {"terminals", 1, probe_terminals, CONTAINER}, /* the most to open */
    {"memory", 1, probe_memory, SLIVER},       /* bytes */
    {"disk", 2, probe_disk, CONTAINER},           /* directory, bytes */
    {"rings", 2, probe_rings, CONTAINER},         /* bytes of each, bytes in total */
    {"fragments", 1, probe_fragments, CONTAINER}, /* bytes to raise the threshold to */
    {"buffers", 2, probe_buffers, CONTAINER},     /* tcp or udp, bytes */
    {"inotify", 1, probe_inotify, CONTAINER},     /* the most to create; holds them */
    {"signals", 1, probe_signals, CONTAINER},     /* the most to send; holds them */
    {"queues", 1, probe_queues, CONTAINER},       /* the most to create; holds them */
    {"lease", 1, probe_lease, CONTAINER},         /* file; holds it */
    {"connect", 2, probe_connect, ANYWHERE},     /* address, ports */
    {"listen", 2, probe_listen, ANYWHERE},       /* UDP port, seconds */
    {"spoof", 3, probe_spoof, ANYWHERE},         /* source, destination, UDP port */
    {"flows", 2, probe_flows, ANYWHERE},         /* destination, count */
    {"arp", 2, probe_arp, ANYWHERE},             /* first forged sender, count */
    {"ipv6", 1, probe_ipv6, ANYWHERE},           /* milliseconds to wait for responses */
    {"hardware", 0, probe_hardware, ANYWHERE},
};

void say(const char *name, const char *format, ...)
{
    va_list values;

    printf("%s\t", name);
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    putchar('\n');
    fflush(stdout);
}

const char *error_name(int error)
{
    const char *name = strerrorname_np(error);

    return name ? name : "unknown";
}

void say_result(const char *name, long result)
{
    say(name, "%s", result >= 0 ? "ok" : error_name(errno));
}

void hold(void)
{
    char byte;

    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
}

long number(const char *text)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 0) {
        fprintf(stderr, "sliver-probe: '%s' is not a number\n", text);
        exit(2);
    }
    return value;
}

static int in_container(void)
{
    return access(MARK, F_OK) == 0;
}

/* Whether this is a virtual machine of slicemgr, which has no mark but the gateway. */
static int in_machine(void)
{
    char line[256];
    unsigned long destination, gateway;
    FILE *routes = fopen("/proc/net/route", "re");
    int found = 0;

    while (routes && !found && fgets(line, sizeof line, routes))
        found = sscanf(line, "eth0 %lx %lx", &destination, &gateway) == 2 && destination == 0 && gateway == GATEWAY;
    if (routes)
        fclose(routes);
    return found;
}

static int may_run(enum scope scope)
{
    return scope == ANYWHERE || in_container() || (scope == SLIVER && in_machine());
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < LENGTH(probes); i++)
        if (strcmp(probes[i].name, argv[1]) == 0 && probes[i].arguments == argc - 2) {
            if (!may_run(probes[i].scope)) {
                fprintf(stderr, "sliver-probe: this is no %s of slicemgr\n",
                        probes[i].scope == SLIVER ? "sliver" : "container");
                return 3;
            }
            return probes[i].run(argv + 2);
        }
    fprintf(stderr, "usage: sliver-probe NAME [ARGUMENT ...]\n");
    for (size_t i = 0; i < LENGTH(probes); i++)
        fprintf(stderr, "  %s (%d arguments)\n", probes[i].name, probes[i].arguments);
    return 2;
}
