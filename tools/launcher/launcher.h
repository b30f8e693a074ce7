/* Declarations that the parts of the launcher share: the launch file's values, errors and files. */
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
#define CGROUP_V1 "/sys/fs/cgroup" /* the mount points of the v1 hierarchies are below it, by name */
#define MAKER_VARIABLE "SLIVER_MAKER" /* contains the user id for preload/maker.c */
#define SUBTREE_VARIABLE "SLIVER_SUBTREE" /* set for preload/maker.c if the sliver has cgroups of its own */
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

struct launch {
    char root[PATH_MAX];      /* directory of the sliver's files */
    char hostname[65];
    char mac[18];             /* of its link; "" keeps libvirt's */
    char pids_group[PATH_MAX]; /* the sliver's directory in the v1 pids hierarchy, "" on cgroup v2 */
    char cgroup2[PATH_MAX];   /* mount point of cgroup v2, "" on v1 */
    char view[PATH_MAX];      /* mount point of lxcfs, "" if its files are not used */
    char quota_group[PATH_MAX]; /* directory with the counts of the sliver's quota group, "" if there is none */
    long uid, count;          /* host ids uid..uid+count-1 are the sliver's 0..count-1 */
    long pids, ptys;
    int compat_sockets;       /* whether programs may use socketcall(2), which 32-bit slivers need */
    char socket_program[PATH_MAX]; /* the BPF program that limits capture rings, "" if there is none */
    long socket_memory;       /* bytes of socket buffers if they do not count as memory (v1), else 0 */
    long fragments;           /* bytes of incomplete fragments per protocol; 0 keeps settings writable */
    int no_subvolumes;        /* denies tenants subvolumes, where the disk limit would not cover them */
    char subtree[NAME_MAX + 1]; /* directory of the cgroups that the image's systemd manages; "" without systemd */
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

/* root.c: mount the sliver's root in a mount namespace of this process. */
void mount_root(const struct launch *launch);
void mount_mask(void); /* after mount_root, in the same namespace: the mask sources */

/* oom.c: the first is called before the guard is forked, the second by the guard. */
void protect_from_oom(void);
void expose_to_oom(pid_t init);

/* guard.c: start the guard; the result is the channel on which it waits for the filter's listener. */
int start_guard(const struct launch *launch);
void send_fd(int channel, int fd);

/* subtree.c: the cgroups that the image's systemd manages. */
#define SLIVERS_GROUP "slicemgr-slivers" /* of all slivers, in the cgroup v2 hierarchy of a host with v1 */
#define EMULATOR_GROUP "emulator" /* of libvirt_lxc beside a subtree: libvirt looks for its limits above it */
int open_cgroup2(void);                                        /* its root, on a host with v1 */
int own_group(const struct launch *launch, pid_t init);        /* the container's directory on cgroup v2 */
int make_subtree(const struct launch *launch, pid_t init);     /* a mount of it, for mount_subtree */
void mount_subtree(int tree);                                  /* in the container's mount namespace */

/* link.c: called in the container's network namespace. */
void set_link_address(const struct launch *launch);

/* disk.c: the counts of the quota group, as a detached mount (-1 if there are none), mounted in the container. */
int open_disk(const struct launch *launch);
void mount_disk(int tree);

/* kernel_memory.c */
/* The cgroup of a process in the hierarchy whose line has `controller` after its number; "" if there is none. */
void group_path(pid_t pid, const char *controller, char *path, size_t size);
void bound_sockets(const struct launch *launch, pid_t init); /* as the host's root, outside the container */
/* Called in the container's mount and network namespaces. proc: the host's /proc, where nothing is read-only. */
void close_settings(const struct launch *launch, int proc);

/* compat_sockets.c: sockets for socketcall(2) of 32-bit slivers, by a process that has entered the sliver. */
void enter_sliver(const struct launch *launch, pid_t init);
void answer_socketcall(int listener, const struct seccomp_notif *call, struct seccomp_notif_resp *answer);

/* counts.c: settings that libvirt_lxc inherits, by which the sliver has counts of its own. */
void limit_counts(void);
void load_maker(const struct launch *launch);
void check_maker(const struct launch *launch, int user_namespace);

/* abi_filter.c: allow only reviewed system calls of each ABI, and only some socket families. */
void filter_numbers(const struct launch *launch);
int is_compat_family(uint32_t family); /* for the sockets of socketcall(2) */

/* filter.c */
int install_filter(const struct launch *launch); /* the listener for the calls that the guard answers */

#endif
