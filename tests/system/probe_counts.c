/*
 * Takes as much as it may of what the kernel counts for each user, prints `name=count` lines, and keeps it: pending
 * signals, or with the argument `all` also message queues and inotify instances. Linked statically.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define MANY 20000 /* beyond every limit that is tested, and within the host's own */

static int queue(int number)
{
    char name[32];

    snprintf(name, sizeof name, "/probe-%d-%d", getpid(), number);
    return mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, NULL) < 0 ? -1 : mq_unlink(name);
}

static int signal_self(int number)
{
    const union sigval value = {.sival_int = number};

    return sigqueue(getpid(), SIGRTMIN, value);
}

static int instance(int number)
{
    (void)number;
    return inotify_init();
}

static void take(const char *name, int (*one)(int number))
{
    int taken = 0;

    while (taken < MANY && one(taken) >= 0)
        taken++;
    printf("%s=%d\n", name, taken);
}

int main(int argc, char **argv)
{
    sigset_t blocked;

    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    take("signals", signal_self);
    if (argc > 1 && strcmp(argv[1], "all") == 0) {
        take("queues", queue);
        take("instances", instance);
    }
    puts("done=1");
    fflush(stdout);
    for (;;)
        pause();
}
