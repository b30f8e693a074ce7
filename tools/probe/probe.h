/*
 * sliver-probe: tries, as root inside a sliver, actions that must be denied to a tenant. `slicectl audit` copies it
 * there.
 *
 * Each run of the program executes one group of probes and prints `name<TAB>value` lines: a value is `ok`, the name of
 * an errno, a number or a path. Probes that hold resources keep them until their standard input closes, so that they
 * end with the process that started them. The arguments limit every probe, and no probe needs a file of the sliver.
 */
#ifndef PROBE_H
#define PROBE_H

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

void say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_result(const char *name, long result); /* ok, or the name of errno */
const char *error_name(int error);
void hold(void); /* wait until standard input closes */
long number(const char *text);

int probe_calls(char **arguments);
int probe_sockets(char **arguments);
int probe_status(char **arguments);
int probe_files(char **arguments);
int probe_devices(char **arguments);
int probe_view(char **arguments);
int probe_pool(char **arguments);
int probe_processes(char **arguments);
int probe_terminals(char **arguments);
int probe_memory(char **arguments);
int probe_disk(char **arguments);
int probe_rings(char **arguments);
int probe_fragments(char **arguments);
int probe_buffers(char **arguments);
int probe_inotify(char **arguments);
int probe_signals(char **arguments);
int probe_queues(char **arguments);
int probe_lease(char **arguments);
int probe_connect(char **arguments);
int probe_listen(char **arguments);
int probe_spoof(char **arguments);
int probe_flows(char **arguments);
int probe_arp(char **arguments);
int probe_ipv6(char **arguments);
int probe_hardware(char **arguments);

#endif
