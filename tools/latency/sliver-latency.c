/*
 * sliver-latency [--version] [SECONDS]
 *
 * Prints what four elementary operations of a kernel cost, as one line of JSON in nanoseconds each: `null_call`, `read`
 * of one byte of /dev/zero, `fork_exec` of a program that ends at once, and `context_switch` between two processes that
 * hand a byte to one another on one processor. They are those of lmbench (McVoy and Staelin, USENIX 1996), lat_syscall,
 * lat_proc and lat_ctx. Each is the least of several rounds, which together take SECONDS (by default 0.5).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 5
#define TICKS 20 /* of the clock, in a round */
#define MOST (1L << 28) /* operations in a round, if the clock stands still */

static const char *self;

static void fail(const char *what)
{
    fprintf(stderr, "sliver-latency: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e9 + at.tv_nsec;
}

static void null_call(long times)
{
    while (times--)
        syscall(SYS_getppid);
}

static void read_byte(long times)
{
    static int zero = -1;
    char byte;
    if (zero < 0 && (zero = open("/dev/zero", O_RDONLY | O_CLOEXEC)) < 0)
        fail("/dev/zero");
    while (times--)
        if (read(zero, &byte, 1) != 1)
            fail("read /dev/zero");
}

static void fork_exec(long times)
{
    while (times--) {
        int status;
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            execl(self, self, "--nothing", NULL);
            _exit(127);
        }
        if (waitpid(child, &status, 0) != child || status != 0)
            fail("exec");
    }
}

/* One round trip is two switches. */
static void context_switch(long times)
{
    int there[2], back[2], status;
    char byte = 0;
    if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
        fail("pipe");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        close(there[1]);
        while (read(there[0], &byte, 1) == 1)
            if (write(back[1], &byte, 1) != 1)
                _exit(1);
        _exit(0);
    }
    for (long one = 0; one < times; one += 2)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            fail("pipe");
    close(there[1]);
    close(there[0]);
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the other process");
    close(back[0]);
    close(back[1]);
}

/* Nanoseconds between two values of the clock: many where a machine has only its timer's ticks. */
static double resolution(void)
{
    struct timespec step;
    clock_getres(CLOCK_MONOTONIC, &step);
    return step.tv_sec * 1e9 + step.tv_nsec;
}

/* Nanoseconds of one operation. nanoseconds: for all rounds together, more if the clock is coarse. */
static double cost(void (*operation)(long), double nanoseconds)
{
    long times = 2;
    double took, least = 0, round_takes = nanoseconds / ROUNDS / 2;
    if (round_takes < TICKS * resolution())
        round_takes = TICKS * resolution();
    do {
        times *= 2;
        took = now();
        operation(times);
        took = now() - took;
    } while (took < round_takes && times < MOST);
    for (int round = 0; round < ROUNDS; round++) {
        double began = now();
        operation(times);
        took = (now() - began) / times;
        if (round == 0 || took < least)
            least = took;
    }
    return least;
}

int main(int count, char **words)
{
    cpu_set_t one;
    if (count > 1 && !strcmp(words[1], "--nothing"))
        return 0;
    if (count > 1 && !strcmp(words[1], "--version")) {
        puts("sliver-latency 1");
        return 0;
    }
    double nanoseconds = 1e9 * (count > 1 ? atof(words[1]) : 0.5);
    if (!(nanoseconds > 0 && nanoseconds <= 60e9)) {
        fputs("sliver-latency: SECONDS: a number above 0, at most 60\n", stderr);
        return 2;
    }
    self = "/proc/self/exe";
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu() < 0 ? 0 : sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one))
        fail("sched_setaffinity");
    printf("{\"null_call\": %.1f, ", cost(null_call, nanoseconds));
    printf("\"read\": %.1f, ", cost(read_byte, nanoseconds));
    printf("\"fork_exec\": %.1f, ", cost(fork_exec, nanoseconds));
    printf("\"context_switch\": %.1f}\n", cost(context_switch, nanoseconds));
    return 0;
}
