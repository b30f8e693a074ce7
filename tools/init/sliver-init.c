/*
 * sliver-init: PID 1 of an lxc sliver with the minimal init. It starts the services that the image has, reaps, stops
 * cleanly, and starts a shell when somebody types on the console. libvirt has mounted /dev, /proc and /sys and
 * configured the network; a whole systemd would only repeat that and cost memory (section 6.5 of the paper). A program
 * in C, because a shell as PID 1 and one on the console cost each sliver more memory than all else that runs in it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define CONSOLE "/dev/console"
#define LISTENER "/.slicemgr/sshd-listener"
#define SSHD "/usr/sbin/sshd"
#define RSYSLOGD "/usr/sbin/rsyslogd"
#define RC_LOCAL "/etc/rc.local"
#define USER_DATA "/var/lib/cloud/seed/nocloud/user-data"
#define STOP_MS 8000
#define STOP_STEP_MS 100
#define SHELL_REST_MS 1000 /* between two shells, so that an image whose shell ends at once does not keep a core busy */

/* The tenant's user data, by the image's own cloud-init: it knows by itself what was done at the first start. */
static const char cloud_init[] =
    "command -v cloud-init >/dev/null || exit 0\n"
    "exec </dev/null >/var/log/cloud-init-output.log 2>&1\n"
    "cloud-init init --local\n"
    "cloud-init init\n"
    "cloud-init modules --mode=config\n"
    "cloud-init modules --mode=final\n";

static const char greeting[] = "\r\nPress Enter for a shell.\r\n";

static sigset_t none;

/* Files */

static void make_directory(const char *path, mode_t mode)
{
    mkdir(path, mode);
    chmod(path, mode);
}

/* Of an earlier life: a pid file would be taken for a running daemon. */
static void remove_pid_files(const char *path)
{
    DIR *directory = opendir(path);

    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        size_t length = strlen(entry->d_name);

        if (length > 4 && entry->d_name[0] != '.' && !strcmp(entry->d_name + length - 4, ".pid"))
            unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
}

static void prepare_files(void)
{
    mkdir("/run", 0755);
    mkdir("/var/log", 0755);
    make_directory("/tmp", 01777);
    remove_pid_files("/run");
    remove_pid_files("/var/run");
    unlink("/run/nologin");
    /* pam_motd shows it at each login: df shows the disk of the node, and the message names what shows the sliver's. */
    mkdir("/run/motd.d", 0755);
    unlink("/run/motd.d/slicemgr");
    if (symlink("/.slicemgr/login-message", "/run/motd.d/slicemgr") < 0) { /* an image without room for it */
    }
}

/* Processes */

/* Start a program as PID 1 found the terminal, or with the console as its own. Returns its pid, or -1. */
static pid_t start(char *const words[], bool on_console)
{
    pid_t pid = vfork();

    if (pid != 0)
        return pid;
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (on_console) {
        int fd;

        if (setsid() < 0 || (fd = open(CONSOLE, O_RDWR)) < 0)
            _exit(EXIT_FAILURE);
        ioctl(fd, TIOCSCTTY, 0);
        for (int i = 0; i <= STDERR_FILENO; i++)
            dup2(fd, i);
        if (fd > STDERR_FILENO)
            close(fd);
    }
    execvp(words[0], words);
    _exit(127);
}

/* Run a program that ends or goes to the background by itself; whether it succeeded. */
static bool run(char *const words[])
{
    int status;
    pid_t pid = start(words, false), ended;

    if (pid < 0)
        return false;
    do
        ended = wait(&status);
    while (ended != pid && (ended >= 0 || errno == EINTR));
    return ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void start_services(void)
{
    char *const listener[] = {LISTENER, NULL}, *const sshd[] = {SSHD, NULL}, *const rsyslogd[] = {RSYSLOGD, NULL};
    char *const syslogd[] = {"busybox", "syslogd", "-O", "/var/log/messages", NULL};
    char *const rc_local[] = {RC_LOCAL, NULL}, *const setup[] = {"/bin/sh", "-c", (char *)cloud_init, NULL};

    if (access(SSHD, X_OK) == 0) {
        make_directory("/run/sshd", 0755);
        /* It starts an sshd for each connection. With settings that only the daemon applies it fails. */
        if (!run(listener))
            run(sshd);
    }
    /* The image's own log; else busybox's, if it has that: a fifth of the memory, one file. */
    run(access(RSYSLOGD, X_OK) == 0 ? rsyslogd : syslogd);
    if (access(RC_LOCAL, X_OK) == 0)
        start(rc_local, false);
    if (access(USER_DATA, F_OK) == 0)
        start(setup, false);
}

/* Milliseconds of a clock that only goes forward. */
static long long now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* Reap what has ended; whether the shell was among it. */
static bool reap(pid_t shell)
{
    bool found = false;

    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
        found |= pid == shell;
    return found;
}

/*
 * TERM for the services, HUP for interactive shells, which ignore TERM; again and again for what is only being started.
 * Waits until nobody is left or 8 seconds are over; what is still there then dies with PID 1.
 */
static void stop(void)
{
    struct timespec step = {.tv_nsec = STOP_STEP_MS * 1000000L};
    sigset_t ended;
    long long end = now() + STOP_MS;

    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    while (kill(-1, SIGTERM) == 0 && now() < end) {
        kill(-1, SIGHUP);
        sigtimedwait(&ended, NULL, &step);
        reap(0);
    }
    _exit(EXIT_SUCCESS);
}

/* The console */

/* Opened anew after each shell, because the end of a session hangs up its terminal. */
static int open_console(void)
{
    int fd = open(CONSOLE, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);

    if (fd >= 0 && write(fd, greeting, sizeof greeting - 1) < 0) { /* nobody reads, and its buffer is full */
    }
    return fd;
}

static void serve(int signals)
{
    char *const login[] = {"/bin/sh", "-l", NULL};
    int console = -1;
    pid_t shell = 0;
    long long next = now(); /* when a shell may start again */

    for (;;) {
        if (console < 0 && !shell && now() >= next && (console = open_console()) < 0)
            next = now() + SHELL_REST_MS;

        bool rests = console < 0 && !shell;
        struct pollfd waits[] = {{signals, POLLIN, 0}, {console, POLLIN, 0}};

        poll(waits, LENGTH(waits), rests ? SHELL_REST_MS : -1);
        if (waits[0].revents) {
            struct signalfd_siginfo what;

            if (read(signals, &what, sizeof what) == sizeof what && what.ssi_signo != SIGCHLD)
                stop();
            if (reap(shell)) {
                shell = 0;
                next = now() + SHELL_REST_MS;
            }
        }
        if (waits[1].revents) {
            pid_t pid = waits[1].revents & POLLHUP ? -1 : start(login, true);

            close(console);
            console = -1;
            shell = pid > 0 ? pid : 0;
            next = now() + SHELL_REST_MS;
        }
    }
}

/* The environment and signals that libvirt_lxc has must not be those of the services. */
static void prepare_environment(void)
{
    static const char *const of_libvirt[] = {"LIBVIRT_LXC_UUID", "LIBVIRT_LXC_NAME", "container_uuid"};

    for (size_t i = 0; i < LENGTH(of_libvirt); i++)
        unsetenv(of_libvirt[i]);
    setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
    setenv("HOME", "/root", 1);
    setenv("TERM", "linux", 1);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    if (chdir("/") < 0) { /* there always is one */
    }
    umask(022);
}

int main(void)
{
    sigset_t handled;
    int signals;

    sigemptyset(&none);
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGINT);
    sigaddset(&handled, SIGPWR);
    prepare_environment();
    sigprocmask(SIG_SETMASK, &handled, NULL);
    if ((signals = signalfd(-1, &handled, SFD_CLOEXEC)) < 0)
        return EXIT_FAILURE;
    ioctl(STDIN_FILENO, TIOCNOTTY); /* the console is for its shell */
    prepare_files();
    start_services();
    serve(signals);
}
