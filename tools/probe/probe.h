/*
 * sliver-probe: tries, as root inside a sliver, what a tenant must not be able to do. `slicectl audit` brings it there.
 *
 * Each call of the program runs one group of probes and prints `name<TAB>value` lines: a value is `ok`, the name of an
 * errno, a number or a path. Probes that hold something keep it until their standard input ends, so that they end with
 * whoever started them. Every probe is bounded by its arguments; none needs a file of the sliver.
 */
#ifndef PROBE_H
#define PROBE_H

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

void say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_result(const char *name, long result); /* ok, or the name of errno */
const char *error_name(int error);
void hold(void); /* until standard input ends */
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
