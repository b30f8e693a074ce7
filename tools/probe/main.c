/* The table of probes. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK "/.slicemgr/init"

static const struct probe {
    const char *name;
    int arguments;
    int (*run)(char **arguments);
    int anywhere; /* whether it may run in a virtual machine, which is not marked as a container is */
} probes[] = {
    {"calls", 0, probe_calls, 0},
    {"sockets", 0, probe_sockets, 0},
    {"status", 0, probe_status, 0},
    {"files", 0, probe_files, 0},
    {"devices", 0, probe_devices, 0},
    {"view", 0, probe_view, 0},
    {"pool", 0, probe_pool, 0},
    {"processes", 1, probe_processes, 0}, /* at most */
    {"terminals", 1, probe_terminals, 0}, /* at most */
    {"memory", 1, probe_memory, 0},       /* bytes */
    {"disk", 2, probe_disk, 0},           /* directory, bytes */
    {"rings", 2, probe_rings, 0},         /* bytes of each, bytes in all */
    {"fragments", 1, probe_fragments, 0}, /* bytes that the threshold is raised to */
    {"buffers", 2, probe_buffers, 0},     /* tcp or udp, bytes */
    {"inotify", 1, probe_inotify, 0},     /* at most; holds them */
    {"signals", 1, probe_signals, 0},     /* at most; holds them */
    {"queues", 1, probe_queues, 0},       /* at most; holds them */
    {"lease", 1, probe_lease, 0},         /* file; holds it */
    {"connect", 2, probe_connect, 1},     /* address, port */
    {"listen", 2, probe_listen, 1},       /* UDP port, seconds */
    {"spoof", 3, probe_spoof, 1},         /* source, destination, UDP port */
    {"flows", 2, probe_flows, 1},         /* destination, count */
    {"arp", 2, probe_arp, 1},             /* first forged sender, count */
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

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < LENGTH(probes); i++)
        if (strcmp(probes[i].name, argv[1]) == 0 && probes[i].arguments == argc - 2) {
            if (!probes[i].anywhere && access(MARK, F_OK) < 0) { /* on a node its calls would be real */
                fprintf(stderr, "sliver-probe: this is no container of slicemgr: " MARK " is missing\n");
                return 3;
            }
            return probes[i].run(argv + 2);
        }
    fprintf(stderr, "usage: sliver-probe NAME [ARGUMENT ...]\n");
    for (size_t i = 0; i < LENGTH(probes); i++)
        fprintf(stderr, "  %s (%d arguments)\n", probes[i].name, probes[i].arguments);
    return 2;
}
