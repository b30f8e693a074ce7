/* What the parts of the launcher share: the launch file's values, errors, files. */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include <limits.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef RUN_DIR
#define RUN_DIR "/run/slicemgr"
#endif
#define CGROUP_V1 "/sys/fs/cgroup" /* where the v1 hierarchies are mounted, each under its name */
#define MAKER_VARIABLE "SLIVER_MAKER" /* names the user id to preload/maker.c */
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

struct launch {
    char root[PATH_MAX];      /* the sliver's files */
    char hostname[65];
    char mac[18];             /* of its link; "" leaves what libvirt set */
    char pids_group[PATH_MAX]; /* the sliver's own directory in the v1 pids hierarchy, "" on cgroup v2 */
    char cgroup2[PATH_MAX];   /* where cgroup v2 is mounted, "" on v1 */
    char view[PATH_MAX];      /* where lxcfs is mounted, "" if its files are not wanted */
    long uid, count;          /* host ids uid..uid+count-1 are the sliver's 0..count-1 */
    long pids, ptys;
    int compat_sockets;       /* whether programs may use socketcall(2): those of 32-bit slivers need it */
    char socket_program[PATH_MAX]; /* the BPF program that bounds capture rings, "" if the kernel runs none */
    long socket_memory;       /* bytes of socket buffers where they do not count as memory (v1), else 0 */
    long fragments;           /* bytes of fragments that may wait, of each protocol; 0: settings stay writable */
    int no_subvolumes;        /* where the disk limit would not hold for what lies in a subvolume of the tenant's */
};

/* sliver-launcher.c */
void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...);
void write_file(int directory, const char *path, const char *text);
int namespace_of(pid_t pid, const char *kind);
/* Declared here because <sys/mount.h> cannot be included beside <linux/mount.h> before glibc 2.37. */
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);

/* launch_file.c */
const char *domain_name(int argc, char **argv);
struct launch read_launch(const char *name);

/* root.c: mounts the sliver's root in a mount namespace of this process. */
void mount_root(const struct launch *launch);
void mount_mask(void); /* after it, in the same namespace: the empty file of the masks */

/* oom.c: before the guard is forked, and by it. */
void protect_from_oom(void);
void expose_to_oom(pid_t init);

/* guard.c: starts the guard; the result is the channel on which it awaits the filter's listener. */
int start_guard(const struct launch *launch);
void send_fd(int channel, int fd);

/* link.c: in the container's network namespace. */
void set_link_address(const struct launch *launch);

/* kernel_memory.c */
void bound_sockets(const struct launch *launch, pid_t init); /* as the host's root, outside the container */
/* In the container's mount and network namespaces. proc: the host's, where nothing is read-only. */
void close_settings(const struct launch *launch, int proc);

/* compat_sockets.c: sockets for socketcall(2) of 32-bit slivers, by a process that has entered the sliver. */
void enter_sliver(const struct launch *launch, pid_t init);
void answer_socketcall(int listener, const struct seccomp_notif *call, struct seccomp_notif_resp *answer);

/* counts.c: what libvirt_lxc inherits so that the sliver has counts of its own. */
void limit_counts(void);
void load_maker(const struct launch *launch);
void check_maker(const struct launch *launch, int user_namespace);

/* abi_filter.c: of each ABI only the reviewed system calls, only some socket families. */
void filter_numbers(const struct launch *launch);
int is_compat_family(uint32_t family); /* for the sockets of socketcall(2) */

/* filter.c */
int install_filter(const struct launch *launch); /* the listener for the calls that the guard answers */

#endif
