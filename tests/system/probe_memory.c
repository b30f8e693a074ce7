/*
 * Exhausts a sliver's memory until the kernel has killed ten of its processes, and prints `killed=10`: first memory
 * that is no process's, then children that are smaller than libvirt_lxc and larger than all others. Linked statically.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WANTED 10
#define CHILD (4 << 20) /* more than a shell, less than libvirt_lxc */

int main(void)
{
    static char block[64 * 1024];
    int fd = open("/dev/shm/full", O_WRONLY | O_CREAT | O_TRUNC, 0600), killed = 0;

    while (write(fd, block, sizeof block) == sizeof block)
        ;
    while (killed < WANTED) {
        int status;
        pid_t pid = fork();

        if (pid == 0) {
            char *mine = mmap(NULL, CHILD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            memset(mine, 1, CHILD);
            for (;;)
                pause();
        }
        usleep(1000);
        while (waitpid(-1, &status, WNOHANG) > 0)
            killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (pid < 0)
            return 1;
    }
    printf("killed=%d\n", killed);
    return 0;
}
