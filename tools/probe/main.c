/* The table of probes. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct probe {
    const char *name;
    int arguments;
    int (*run)(char **arguments);
} probes[] = {
    {"calls", 0, probe_calls},
    {"sockets", 0, probe_sockets},
    {"status", 0, probe_status},
    {"files", 0, probe_files},
    {"devices", 0, probe_devices},
    {"view", 0, probe_view},
    {"pool", 0, probe_pool},
    {"processes", 1, probe_processes}, /* at most */
    {"terminals", 1, probe_terminals}, /* at most */
    {"memory", 1, probe_memory},       /* bytes */
    {"disk", 2, probe_disk},           /* directory, bytes */
    {"rings", 2, probe_rings},         /* bytes of each, bytes in all */
    {"fragments", 1, probe_fragments}, /* bytes that the threshold is raised to */
    {"buffers", 2, probe_buffers},     /* tcp or udp, bytes */
    {"inotify", 1, probe_inotify},     /* at most; holds them */
    {"signals", 1, probe_signals},     /* at most; holds them */
    {"queues", 1, probe_queues},       /* at most; holds them */
    {"lease", 1, probe_lease},         /* file; holds it */
    {"connect", 2, probe_connect},     /* address, port */
    {"listen", 2, probe_listen},       /* UDP port, seconds */
    {"spoof", 3, probe_spoof},         /* source, destination, UDP port */
    {"flows", 2, probe_flows},         /* destination, count */
    {"arp", 2, probe_arp},             /* first forged sender, count */
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
        if (strcmp(probes[i].name, argv[1]) == 0 && probes[i].arguments == argc - 2)
            return probes[i].run(argv + 2);
    fprintf(stderr, "usage: sliver-probe NAME [ARGUMENT ...]\n");
    for (size_t i = 0; i < LENGTH(probes); i++)
        fprintf(stderr, "  %s (%d arguments)\n", probes[i].name, probes[i].arguments);
    return 2;
}
