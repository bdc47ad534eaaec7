/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For programs that are one end of a connection: the time, and numbers as the
 * protocols have them.
 */
#ifndef RIVET_PEER_H
#define RIVET_PEER_H

#include <linux/types.h>
#include <time.h>

static inline __u64 now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

static inline void put_le(__u8 *to, __u64 value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		to[i] = value >> (8 * i);
}

static inline __u64 get_le(const __u8 *from, int bytes)
{
	__u64 value = 0;

	while (bytes--)
		value = value << 8 | from[bytes];
	return value;
}

#endif
