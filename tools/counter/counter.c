/*
 * sliver-counter [--version]
 *
 * Prints how often per millisecond the time stamp counter of the processor advances, in whole kHz, by CLOCK_MONOTONIC.
 * It takes a fifth of a second. If the counter does not advance evenly, it fails.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>

#define READINGS 32
#define HALF 100000000 /* nanoseconds */
#define UNEVEN 1e-3 /* the difference between two rates; a time service may change CLOCK_MONOTONIC by half of that */

struct reading {
    uint64_t ticks;
    double at; /* nanoseconds */
};

/* The counter and the clock at one moment: of many readings the one that took the least time. */
static struct reading both(void)
{
    struct reading best = {0, 0};
    uint64_t least = UINT64_MAX;
    for (int count = 0; count < READINGS; count++) {
        struct timespec at;
        uint64_t before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC, &at);
        uint64_t took = __rdtsc() - before;
        if (took < least) {
            least = took;
            best = (struct reading){before + took / 2, at.tv_sec * 1e9 + at.tv_nsec};
        }
    }
    return best;
}

static double rate(struct reading from, struct reading to)
{
    return (to.ticks - from.ticks) / (to.at - from.at) * 1e6;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("sliver-counter 1");
        return 0;
    }
    const struct timespec half = {0, HALF};
    struct reading first = both();
    nanosleep(&half, NULL);
    struct reading middle = both();
    nanosleep(&half, NULL);
    struct reading last = both();
    double all = rate(first, last), apart = rate(first, middle) - rate(middle, last);
    if (!(all >= 1 && apart < all * UNEVEN && -apart < all * UNEVEN)) {
        fprintf(stderr, "sliver-counter: the counter advances unevenly, by %.0f kHz with a difference of %.0f\n", all, apart);
        return 1;
    }
    printf("%.0f\n", all);
    return 0;
}
