/*
 * The filter by numbers: it allows only reviewed system calls of each ABI, and only some socket families.
 *
 * It is written by hand because libseccomp cannot compare a system call's number by range, rejects calls newer than
 * itself, and cannot compare arguments where a 32-bit x86 program may call socket(2) both directly and through
 * socketcall(2), whose arguments no filter can read. The kernel applies the strictest result of this filter and the
 * other.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <sys/prctl.h>

#include "launcher.h"

/*
 * unix, inet, inet6, netlink, packet. Any other family makes the host load a module that is rarely audited. 32-bit
 * slivers get no packet sockets, the last one: no filter can read the options that socketcall(2) sets, and so it could
 * not deny a capture ring.
 */
static const uint32_t socket_families[] = {1, 2, 10, 16, 17};
#define COMPAT_FAMILIES (LENGTH(socket_families) - 1)

/* linux/if_packet.h, linux/socket.h */
#define LEVEL_PACKET 263
#define OPTION_RX_RING 5
#define OPTION_TX_RING 13

#define NO_CALL 0xffffffffU
#define SKIPPED_CALL 0xffffffffU /* a tracer writes it to make the kernel skip the call */
#define CODE_MAX 256
#define RANGES_MAX 8

/*
 * The reviewed calls of Linux 6.18; above 423 a number has the same meaning in every ABI. Not included are
 * open_tree_attr (467), which libseccomp 2.5.4 does not know; statmount (457), listmount (458) and lsm_* (459 to 461),
 * which no program needs; file_getattr and file_setattr (468, 469), for which there are ioctls. No filter applies to
 * uretprobe (335) and uprobe (336) of x86_64: the kernel's own trampolines call them, any other caller is killed.
 */
#define NEW_CALLS {424, 456}, {462, 466}

static const struct abi {
    uint32_t arch, socket, socketpair, socketcall, setsockopt;
    int is_compat;
    struct {
        uint32_t first, last;
    } reviewed[RANGES_MAX]; /* ascending; {0, 0} ends the list, unless it is the first */
} abis[] = {
    {AUDIT_ARCH_X86_64, 41, 53, NO_CALL, 54, 0, {{0, 334}, NEW_CALLS}},
    {AUDIT_ARCH_I386,
     359,
     360,
     102,
     366,
     1,
     {{0, 221}, {224, 250}, {252, 284}, {286, 386}, {393, 414}, {416, 423}, NEW_CALLS}},
    {AUDIT_ARCH_AARCH64, 198, 199, NO_CALL, 208, 0, {{0, 243}, {260, 294}, NEW_CALLS}},
    /* the last range: breakpoint, cacheflush, usr26, usr32, set_tls, get_tls */
    {AUDIT_ARCH_ARM, 281, 288, NO_CALL, 294, 1, {{0, 414}, {416, 423}, NEW_CALLS, {0x0f0001, 0x0f0006}}},
};

struct program {
    struct sock_filter code[CODE_MAX];
    unsigned short length;
};

static void add(struct program *program, uint16_t code, uint32_t operand, uint8_t yes, uint8_t no)
{
    errno = 0;
    if (program->length == CODE_MAX)
        die("the filter by numbers is too long");
    program->code[program->length++] = (struct sock_filter){code, yes, no, operand};
}

static void load(struct program *program, size_t offset)
{
    add(program, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void answer(struct program *program, uint32_t action)
{
    add(program, BPF_RET | BPF_K, action, 0, 0);
}

static void answer_number(struct program *program, uint32_t number, uint32_t action)
{
    add(program, BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
    answer(program, action);
}

static void answer_unreviewed(struct program *program, const struct abi *abi)
{
    size_t ranges = 1;

    while (ranges < RANGES_MAX && abi->reviewed[ranges].last)
        ranges++;
    for (size_t i = 0; i < ranges; i++) {
        const uint8_t left = (uint8_t)(2 * (ranges - i) - 1); /* the first jumps to the denial, the second past it */

        add(program, BPF_JMP | BPF_JGE | BPF_K, abi->reviewed[i].first, 0, left);
        add(program, BPF_JMP | BPF_JGT | BPF_K, abi->reviewed[i].last, 0, left);
    }
    answer(program, SECCOMP_RET_ERRNO | ENOSYS);
}

/* Deny capture rings that no BPF program checks: those of 32-bit programs, and all if the kernel has no program. */
static void answer_rings(struct program *program, uint32_t setsockopt)
{
    add(program, BPF_JMP | BPF_JEQ | BPF_K, setsockopt, 0, 7);
    load(program, offsetof(struct seccomp_data, args[1]));
    add(program, BPF_JMP | BPF_JEQ | BPF_K, LEVEL_PACKET, 0, 4);
    load(program, offsetof(struct seccomp_data, args[2]));
    add(program, BPF_JMP | BPF_JEQ | BPF_K, OPTION_RX_RING, 1, 0);
    add(program, BPF_JMP | BPF_JEQ | BPF_K, OPTION_TX_RING, 0, 1);
    answer(program, SECCOMP_RET_ERRNO | ENOMEM);
    answer(program, SECCOMP_RET_ALLOW);
}

static void answer_families(struct program *program, const struct abi *abi, uint8_t families)
{

    add(program, BPF_JMP | BPF_JEQ | BPF_K, abi->socket, 1, 0);
    add(program, BPF_JMP | BPF_JEQ | BPF_K, abi->socketpair, 0, (uint8_t)(families + 2));
    load(program, offsetof(struct seccomp_data, args[0]));
    for (uint8_t i = 0; i < families; i++)
        add(program, BPF_JMP | BPF_JEQ | BPF_K, socket_families[i], families - i, 0);
    answer(program, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
    answer(program, SECCOMP_RET_ALLOW);
}

int is_compat_family(uint32_t family)
{
    for (size_t i = 0; i < COMPAT_FAMILIES; i++)
        if (socket_families[i] == family)
            return 1;
    return 0;
}

void filter_numbers(const struct launch *launch)
{
    struct program program = {.length = 0};
    struct sock_fprog loaded = {.filter = program.code};

    for (size_t i = 0; i < LENGTH(abis); i++) {
        unsigned short skip;

        load(&program, offsetof(struct seccomp_data, arch));
        add(&program, BPF_JMP | BPF_JEQ | BPF_K, abis[i].arch, 1, 0);
        skip = program.length;
        add(&program, BPF_JMP | BPF_JA, 0, 0, 0);
        load(&program, offsetof(struct seccomp_data, nr));
        answer_number(&program, SKIPPED_CALL, SECCOMP_RET_ALLOW);
        answer_unreviewed(&program, &abis[i]);
        if (abis[i].socketcall != NO_CALL && !launch->compat_sockets)
            answer_number(&program, abis[i].socketcall, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
        if (abis[i].is_compat || !*launch->socket_program)
            answer_rings(&program, abis[i].setsockopt);
        answer_families(&program, &abis[i], launch->compat_sockets ? COMPAT_FAMILIES : LENGTH(socket_families));
        program.code[skip].k = program.length - skip - 1U;
    }
    answer(&program, SECCOMP_RET_ERRNO | ENOSYS);
    loaded.len = program.length;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &loaded) < 0)
        die("cannot install the filter by numbers");
}
