// SPDX-License-Identifier: GPL-2.0
/*
 * attr_write [-n NETNS] FILE [VALUE]
 * attr_write -v FILE VALUE...
 *
 * Writes VALUE (or what stands on standard input) to FILE in one write(2), as
 * it is, and prints the name of the errno, or OK. After that it prints the
 * lines that rivet has written to the kernel's log meanwhile. With -n it does
 * so from the network namespace /run/netns/NETNS.
 *
 * SIGINT and SIGTERM interrupt the write but do not end the program, so that
 * it can tell how the write ended.
 *
 * With -v it writes one value after the other and prints for each also what
 * the file holds then, as "now TEXT".
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "netns.h"

static void on_signal(int sig)
{
	(void)sig;
}

/* A record is "numbers;text\n", perhaps with lines of its own after that. */
static void show_log(int log)
{
	char record[8192], *text;
	ssize_t len;

	for (;;) {
		len = read(log, record, sizeof(record) - 1);
		if (len < 0 && errno == EPIPE)
			continue;
		if (len <= 0)
			return;
		record[len] = '\0';
		text = strchr(record, ';');
		if (!text)
			continue;
		text++;
		text[strcspn(text, "\n")] = '\0';
		if (!strncmp(text, "rivet:", 6))
			puts(text);
	}
}

static void write_to(const char *path, const char *value, size_t len, int log)
{
	int fd = open(path, O_WRONLY);
	ssize_t n;

	if (fd < 0) {
		puts(strerrorname_np(errno));
		return;
	}
	n = write(fd, value, len);
	if (n < 0)
		puts(strerrorname_np(errno));
	else if ((size_t)n != len)
		puts("SHORT");
	else
		puts("OK");
	close(fd);
	show_log(log);
}

static void show_file(const char *path)
{
	char text[4096];
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);

	if (n < 0)
		err(2, "%s", path);
	close(fd);
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	printf("now %s\n", text);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	bool show = false;
	char input[8192];
	size_t len = 0;
	const char *path;
	int log, opt;
	ssize_t n;

	/* Options come first: values may look like some. */
	while ((opt = getopt(argc, argv, "+n:v")) != -1) {
		if (opt == 'n')
			enter_netns(optarg);
		else if (opt == 'v')
			show = true;
		else
			return 2;
	}
	if (optind >= argc)
		errx(2, "which file?");
	path = argv[optind++];

	/* Without SA_RESTART, and though a shell's "&" ignores SIGINT. */
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);

	log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	if (log < 0 || lseek(log, 0, SEEK_END) < 0)
		err(2, "/dev/kmsg");
	if (optind == argc) {
		while ((n = read(0, input + len, sizeof(input) - len)) > 0)
			len += n;
		write_to(path, input, len, log);
	}
	for (; optind < argc; optind++) {
		write_to(path, argv[optind], strlen(argv[optind]), log);
		if (show)
			show_file(path);
	}
	return 0;
}
