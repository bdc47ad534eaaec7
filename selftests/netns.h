/* SPDX-License-Identifier: GPL-2.0 */
/* The network namespaces of the tests. */
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* Enters /run/netns/NAME. "ip netns exec" would hide configfs. */
static inline void enter_netns(const char *name)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "/run/netns/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		err(2, "%s", path);
	close(fd);
}
