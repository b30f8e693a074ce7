/*
 * What is set back when the agent ends, for instance because it was killed.
 */
#ifndef KEEPER_H
#define KEEPER_H

#include <inttypes.h>

#define LONGEST 30 /* seconds for which it is tried */

/* Whether the value of what has this name is set, or need not be set any more. */
typedef int set_back(const char *name, uint64_t value);

/*
 * Locks the file, prints `ready`, and sets back what is noted when the standard input ends. Each line of it is a name
 * and a number, which replaces an earlier one; 0: nothing is to be set back. It ends after LONGEST seconds in any case,
 * and the next agent waits for the lock until then. Returns 1 if a line is wrong, the file is locked, or something was
 * not set back.
 */
int keep(const char *program, const char *lock, set_back *set);

#endif
