#define _GNU_SOURCE
#include "keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define TRIES 3

struct entry {
    char *name;
    uint64_t value; /* 0: nothing to set back */
};

static struct entry *entries;
static size_t count;

static int note(const char *name, uint64_t value)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].name, name) == 0) {
            entries[i].value = value;
            return 0;
        }
    if (value == 0)
        return 0;
    struct entry *more = realloc(entries, (count + 1) * sizeof(*entries));
    if (!more)
        return -1;
    entries = more;
    entries[count].value = value;
    entries[count].name = strdup(name);
    return entries[count++].name ? 0 : -1;
}

int keep(const char *program, const char *lock, set_back *set)
{
    signal(SIGPIPE, SIG_IGN);
    int file = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX | LOCK_NB) != 0) {
        fprintf(stderr, "%s: lock: %m\n", program);
        return 1;
    }
    puts("ready");
    fflush(stdout);
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int failed = 0;
    while ((length = getline(&line, &room, stdin)) > 0) {
        uint64_t value;
        int used = 0;
        char *space = strchr(line, ' ');
        if (line[length - 1] != '\n' || !space || sscanf(space, " %" SCNu64 " %n", &value, &used) != 1 || space[used]) {
            fprintf(stderr, "%s: a line is not `NAME NUMBER`\n", program);
            failed = 1; /* a line that a killed agent did not complete: it has not set that */
            continue;
        }
        *space = 0;
        if (note(line, value) != 0)
            failed = 1;
    }
    alarm(LONGEST);
    for (int try = 0; try < TRIES; try++) {
        int left = 0;
        for (size_t i = 0; i < count; i++)
            if (entries[i].value && set(entries[i].name, entries[i].value))
                entries[i].value = 0;
            else if (entries[i].value)
                left = 1;
        if (!left)
            return failed;
        sleep(1);
    }
    return 1;
}
