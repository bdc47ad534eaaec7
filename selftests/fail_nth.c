// SPDX-License-Identifier: GPL-2.0
/*
 * fail_nth [-n NETNS] [-u FILE=VALUE] mkdir DIR
 * fail_nth [-n NETNS] [-u FILE=VALUE] write FILE VALUE
 * fail_nth [-n NETNS] [-u FILE=VALUE] read FILE
 *
 * Does this again and again, each time with one more allocation let pass before
 * one fails, until it is over before that. FILE=VALUE makes undone what was done
 * nevertheless (for "mkdir", rmdir does). With the fault injection's filters set, only
 * allocations count that they let through.
 *
 * Prints how many sites there were, and how often it ended in which errno.
 * The last time, without a fault, it has to succeed: then the exit status is 0,
 * and what was done stays.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "netns.h"

#define MOST_SITES 4000
#define MOST_ERRNO 133

enum what { MKDIR, WRITE, READ };

static int nth_file;

static void arm(unsigned int nth)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%u", nth);

	if (pwrite(nth_file, text, len, 0) != len)
		err(2, "fail-nth");
}

/* Whether what was armed has not failed anything; it does not any more. */
static bool disarm(void)
{
	char text[16] = "";

	if (pread(nth_file, text, sizeof(text) - 1, 0) <= 0)
		err(2, "fail-nth");
	arm(0);
	return atoi(text);
}

/* One system call; a file is opened before. Both give an errno. */
static int attempt(enum what what, int fd, const char *path, const char *value)
{
	static char text[65536];
	ssize_t n = 0;

	switch (what) {
	case MKDIR:
		n = mkdir(path, 0755);
		break;
	case WRITE:
		n = write(fd, value, strlen(value));
		break;
	case READ:
		n = read(fd, text, sizeof(text));
		break;
	}
	return n < 0 ? errno : 0;
}

static void undo(enum what what, const char *path, char *order)
{
	char *value;
	int fd;

	if (what == MKDIR && rmdir(path))
		err(2, "rmdir %s", path);
	if (!order)
		return;
	value = strchr(order, '=');
	if (!value)
		errx(2, "%s: =VALUE is missing", order);
	*value = '\0';
	fd = open(order, O_WRONLY);
	if (fd < 0 || write(fd, value + 1, strlen(value + 1)) < 0)
		err(2, "undone by %s", order);
	close(fd);
	*value = '=';
}

int main(int argc, char **argv)
{
	static const char * const names[] = { "mkdir", "write", "read" };
	unsigned int nth, ended[MOST_ERRNO + 1] = { 0 };
	const char *path, *value = "";
	bool over = false;
	char *order = NULL;
	enum what what;
	int fd = -1, opt, error = 0;

	while ((opt = getopt(argc, argv, "+n:u:")) != -1) {
		if (opt == 'n')
			enter_netns(optarg);
		else if (opt == 'u')
			order = optarg;
		else
			return 2;
	}
	if (argc - optind < 2)
		errx(2, "do what?");
	for (what = MKDIR; strcmp(names[what], argv[optind]); what++) {
		if (what == READ)
			errx(2, "%s is not known", argv[optind]);
	}
	path = argv[optind + 1];
	if (what == WRITE && argc - optind > 2)
		value = argv[optind + 2];
	nth_file = open("/proc/thread-self/fail-nth", O_RDWR);
	if (nth_file < 0)
		err(2, "fail-nth");

	for (nth = 1; !over && nth <= MOST_SITES; nth++) {
		if (what != MKDIR) {
			fd = open(path, what == READ ? O_RDONLY : O_WRONLY);
			if (fd < 0)
				err(2, "%s", path);
		}
		arm(nth);
		error = attempt(what, fd, path, value);
		over = disarm();
		if (fd >= 0)
			close(fd);
		if (over)
			break;
		ended[error <= MOST_ERRNO ? error : MOST_ERRNO]++;
		if (!error)
			undo(what, path, order);
	}

	printf("%u sites:", nth - 1);
	for (opt = 0; opt <= MOST_ERRNO; opt++) {
		if (ended[opt])
			printf(" %u %s", ended[opt], opt ? strerrorname_np(opt) : "OK");
	}
	putchar('\n');
	if (!over)
		errx(1, "there is no end to it");
	if (error)
		errx(1, "without a fault: %s", strerrorname_np(error));
	return 0;
}
