/*
 * sshd-listener: waits for ssh connections to an lxc sliver, and starts `sshd -i` for each, so that a sliver without
 * connections needs no memory for sshd. The init runs it inside the sliver.
 *
 * Exit status 0: it listens, in the background. Any other: start the daemon of the image instead, because sshd_config
 * has settings that only the daemon applies, or because something fails.
 *
 * A tenant can start another sshd: when a process opens the program of sshd, the ports are free for it, and only if
 * it does not take them, this process listens again.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define SSHD "/usr/sbin/sshd"
#define SETTINGS "/etc/ssh/sshd_config"
#define MORE_SETTINGS "/etc/ssh/sshd_config.d"
#define PID_FILE "/run/sshd.pid"
#define PORT 22
#define BACKLOG 128
/* As sshd's default of MaxStartups, 10:30:100. */
#define STARTUPS_BEGIN 10
#define STARTUPS_RATE 30
#define STARTUPS_FULL 100
#define LOOK_MS 100
#define LONGEST_START_MS 3000

static const int families[] = {AF_INET, AF_INET6};
static int listeners[LENGTH(families)] = {-1, -1};
static int null;

/* Settings */

static const char *const of_daemon[] = {
    "port",       "listenaddress",      "addressfamily", "maxstartups", "persourcemaxstartups", "persourcenetblocksize",
    "pidfile", "persourcepenalties", "persourcepenaltyexemptlist"};

static bool needs_daemon(char *line)
{
    char *word = line + strspn(line, " \t"), *value = word + strcspn(word, " \t=\n");

    if (*value)
        *value++ = '\0';
    for (size_t i = 0; i < LENGTH(of_daemon); i++)
        if (!strcasecmp(word, of_daemon[i]))
            return true;
    if (strcasecmp(word, "include"))
        return false;
    value += strspn(value, " \t=\"");
    value[strcspn(value, " \t\"\n")] = '\0';
    return strcmp(value, MORE_SETTINGS "/*.conf") != 0;
}

/* Whether the file has settings that `sshd -i` does not apply, or cannot be read. */
static bool file_needs_daemon(const char *path)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    if (!file)
        return true;
    while (!found && getline(&line, &size, file) > 0)
        found = needs_daemon(line);
    free(line);
    fclose(file);
    return found;
}

static bool settings_need_daemon(void)
{
    DIR *directory;
    bool found = file_needs_daemon(SETTINGS);

    if (found || !(directory = opendir(MORE_SETTINGS)))
        return found;
    for (struct dirent *entry; !found && (entry = readdir(directory));) {
        char path[sizeof MORE_SETTINGS + sizeof entry->d_name + 1];
        size_t length = strlen(entry->d_name);

        if (length < 5 || strcmp(entry->d_name + length - 5, ".conf"))
            continue;
        snprintf(path, sizeof path, MORE_SETTINGS "/%s", entry->d_name);
        found = file_needs_daemon(path);
    }
    closedir(directory);
    return found;
}

/* Ports */

static void stop_listening(void)
{
    for (size_t i = 0; i < LENGTH(listeners); i++) {
        if (listeners[i] >= 0)
            close(listeners[i]);
        listeners[i] = -1;
    }
}

static int listen_on(int family)
{
    struct sockaddr_in six_of_four = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(PORT)};
    struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&six_of_four : (struct sockaddr *)&six;
    socklen_t length = family == AF_INET ? sizeof six_of_four : sizeof six;
    int one = 1, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, address, length) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Without IPv6, the sliver has IPv4 alone. False if another program has a port. */
static bool start_listening(void)
{
    for (size_t i = 0; i < LENGTH(families); i++) {
        listeners[i] = listen_on(families[i]);
        if (listeners[i] < 0 && (errno == EADDRINUSE || families[i] == AF_INET)) {
            stop_listening();
            return false;
        }
    }
    return true;
}

/* Processes */

static size_t read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : read(fd, text, size - 1);

    if (fd >= 0)
        close(fd);
    count = count < 0 ? 0 : count;
    text[count] = '\0';
    return (size_t)count;
}

/* The title of a process, with spaces between its words. */
static void read_title(long pid, char *text, size_t size)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
    for (size_t i = 0, count = read_file(path, text, size); i < count; i++)
        if (!text[i])
            text[i] = ' ';
}

static void read_children(long pid, char *text, size_t size)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", pid, pid);
    read_file(path, text, size);
}

static bool is_authenticated(long pid)
{
    char title[256], children[64];

    read_title(pid, title, sizeof title);
    if (!strncmp(title, SSHD " -i", sizeof SSHD + 2) || strstr(title, "[accepted]"))
        return false;
    read_children(pid, children, sizeof children);
    if (!*children)
        return true;
    read_title(strtol(children, NULL, 10), title, sizeof title);
    return !strstr(title, "[net]");
}

/* The number of connections whose user is not known yet. The titles are read only when there are many connections. */
static unsigned startups(void)
{
    static char children[16384];
    unsigned all = 0, found = 0;
    char *next;

    read_children(getpid(), children, sizeof children);
    for (char *at = children; strtol(at, &next, 10) > 0; at = next)
        all++;
    if (all < STARTUPS_BEGIN)
        return all;
    for (char *at = children; found < STARTUPS_FULL; at = next) {
        long pid = strtol(at, &next, 10);

        if (pid <= 0)
            break;
        found += !is_authenticated(pid);
    }
    return found;
}

/* As sshd with its default of MaxStartups: at random, the more often the more there are. */
static bool is_refused(void)
{
    unsigned number = startups(), random = 0;

    if (number < STARTUPS_BEGIN)
        return false;
    if (number >= STARTUPS_FULL)
        return true;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return true;
    return random % 100 <
           STARTUPS_RATE + (100 - STARTUPS_RATE) * (number - STARTUPS_BEGIN) / (STARTUPS_FULL - STARTUPS_BEGIN);
}

static void serve(int fd)
{
    static const char full[] = "Exceeded MaxStartups\r\n";

    if (is_refused()) {
        if (write(fd, full, sizeof full - 1) < 0) { /* the client has gone */
        }
        return;
    }
    if (vfork() == 0) {
        if (setsid() < 0 || dup2(fd, 0) < 0 || dup2(fd, 1) < 0 || dup2(null, 2) < 0)
            _exit(EXIT_FAILURE);
        signal(SIGCHLD, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        execl(SSHD, SSHD, "-i", (char *)NULL);
        _exit(EXIT_FAILURE);
    }
}

static void accept_all(int listener)
{
    for (int fd; listener >= 0 && (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0; close(fd))
        serve(fd);
}

/* Other sshd */

static bool is_starting(long pid)
{
    static const char *const others[] = {" -i", " -t", " -T", " -G", " -R"};
    char title[256];

    read_title(pid, title, sizeof title);
    if (strncmp(title, SSHD, sizeof SSHD - 1) && strncmp(title, "sshd ", 5))
        return false;
    for (size_t i = 0; i < LENGTH(others); i++)
        if (strstr(title, others[i]))
            return false;
    return true;
}

/* Whether a daemon starts, which has no title of its own yet. */
static bool other_starts(void)
{
    DIR *directory = opendir("/proc");
    bool found = false;

    if (!directory)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(directory));) {
        long pid = strtol(entry->d_name, NULL, 10);

        found = pid > 0 && pid != getpid() && is_starting(pid);
    }
    closedir(directory);
    return found;
}

/* Make way for the sshd that a process opened. Returns if it does not take the ports. */
static void make_way(void)
{
    struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};

    for (size_t i = 0; i < LENGTH(listeners); i++)
        accept_all(listeners[i]);
    stop_listening();
    for (int waited = 0; waited < LONGEST_START_MS; waited += LOOK_MS) {
        nanosleep(&look, NULL);
        if (!other_starts())
            break;
    }
    if (!start_listening())
        _exit(EXIT_SUCCESS);
}

static int watch(void)
{
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    if (fd >= 0 && inotify_add_watch(fd, SSHD, IN_OPEN | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Read the events: all that have happened to the program. */
static uint32_t events(int fd)
{
    char buffer[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    uint32_t found = 0;

    for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;)
        for (char *at = buffer; at < buffer + count;) {
            struct inotify_event *event = (struct inotify_event *)at;

            found |= event->mask;
            at += sizeof *event + event->len;
        }
    return found;
}

static void end(int signal)
{
    (void)signal;
    unlink(PID_FILE);
    _exit(EXIT_SUCCESS);
}

static void run(void)
{
    int watched = watch();

    while (watched >= 0) {
        struct pollfd waits[] = {{watched, POLLIN, 0}, {listeners[0], POLLIN, 0}, {listeners[1], POLLIN, 0}};

        if (poll(waits, LENGTH(waits), -1) < 0)
            continue;
        if (waits[0].revents) {
            uint32_t what = events(watched);

            if (what & ~(uint32_t)IN_OPEN) { /* an upgrade replaces the program; without it there is nothing to do */
                close(watched);
                watched = watch();
            }
            if (what & IN_OPEN)
                make_way();
        }
        for (size_t i = 0; i < LENGTH(listeners); i++)
            if (waits[i + 1].revents)
                accept_all(listeners[i]);
        if (waits[1].revents || waits[2].revents)
            events(watched); /* of its own sshd, which vfork has waited for */
    }
    end(0);
}

static void note_pid(void)
{
    FILE *file = fopen(PID_FILE, "we");

    if (file) {
        fprintf(file, "%d\n", getpid());
        fclose(file);
    }
}

int main(int argc, char **argv)
{
    static const char title[] = "sshd: [listener]";

    if (argc != 1 || settings_need_daemon() || (null = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0 ||
        !start_listening())
        return EXIT_FAILURE;
    if (daemon(0, 0) < 0)
        return EXIT_FAILURE;
    prctl(PR_SET_NAME, "sshd");
    if (strlen(argv[0]) >= sizeof title - 1) /* ps, pkill and killall find it as they find sshd */
        strncpy(argv[0], title, strlen(argv[0]));
    signal(SIGCHLD, SIG_IGN); /* the kernel reaps */
    signal(SIGHUP, SIG_IGN);  /* each sshd reads the settings */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, end);
    note_pid();
    run();
}
