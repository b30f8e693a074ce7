/*
 * Makes every system call from 0 to 1024 in each ABI of the machine, with arguments that no call accepts, and prints
 * `ABI:NUMBER=RESULT` lines: an errno's name, `ok`, or `none` where the caller did not come back.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAST 1024
#define NO_ANSWER 1 /* no call answers so */

static long native(long number)
{
    long result = syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);

    return result < 0 ? -errno : 0;
}

#ifdef __x86_64__
static long x32(long number)
{
    return native(number | 0x40000000);
}

static long i386(long number)
{
    long result;

    __asm__ volatile("push %%rbp\n\tmov $-1, %%ebp\n\tint $0x80\n\tpop %%rbp"
                     : "=a"(result)
                     : "a"(number), "b"(-1L), "c"(-1L), "d"(-1L), "S"(-1L), "D"(-1L)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)result < 0 ? (int)result : 0;
}
#endif

static const struct {
    const char *name;
    long (*call)(long number);
} abis[] = {
#ifdef __x86_64__
    {"x86_64", native}, {"i386", i386}, {"x32", x32},
#else
    {"native", native},
#endif
};

int main(void)
{
    volatile long *answer =
        mmap(NULL, sizeof *answer, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (size_t i = 0; i < sizeof abis / sizeof abis[0]; i++)
        for (long number = 0; number <= LAST; number++) {
            pid_t pid;

            *answer = NO_ANSWER;
            fflush(stdout);
            if ((pid = fork()) == 0) {
                alarm(1);
                *answer = abis[i].call(number);
                _exit(0);
            }
            if (pid < 0)
                return 1;
            for (int waited = 0; waitpid(pid, NULL, WNOHANG) == 0; waited++) {
                if (waited == 2000)
                    kill(pid, SIGKILL);
                usleep(1000);
            }
            if (*answer == NO_ANSWER)
                printf("%s:%ld=none\n", abis[i].name, number);
            else
                printf("%s:%ld=%s\n", abis[i].name, number, *answer ? strerrorname_np((int)-*answer) : "ok");
        }
    return 0;
}
