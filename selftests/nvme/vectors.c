// SPDX-License-Identifier: GPL-2.0
/*
 * vectors FILE COUNT SEED [huge|fresh|again]
 * vectors reads FILE OFFSET LENGTH
 *
 * The first writes and reads FILE without a cache, COUNT times, through vectors of
 * pieces whose addresses and lengths are what the disk allows, and no rounder: from
 * one piece up to as many as a call takes. What is read must be what was written.
 * With "huge" the pieces are in a huge page; with "fresh" the memory is given back
 * now and then, and other memory taken, to write from and to read into. With
 * "again" there are eight vectors to write from, and eight to read into, whose pieces
 * lie in the same memory.
 *
 * The second reads LENGTH bytes into memory that holds 0xa5, and says of how many
 * bytes each value is there, as "VALUE COUNT" lines: what a read has left there.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST		1048576
#define ARENA		(8 * MOST)
#define MOST_PIECES	256
#define SECTOR		512
#define PAGE		4096

static __u64 state;

static __u64 next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static size_t below(size_t n)
{
	return next() % n;
}

static __u8 *arena(bool huge)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (huge ? MAP_HUGETLB : 0);
	void *memory = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (memory == MAP_FAILED)
		err(2, huge ? "no huge pages" : "memory");
	return memory;
}

/* How the disk wants memory to be aligned. */
static size_t alignment(int fd)
{
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) || !(st.stx_mask & STATX_DIOALIGN))
		return SECTOR;
	return st.stx_dio_mem_align;
}

/* Divides length into pieces of whole sectors, at any address that is aligned: the
 * disk may want such a request divided. Returns how many.
 */
static int divide_by_sector(struct iovec *pieces, __u8 *memory, size_t length, size_t align)
{
	size_t most = 1 + below(MOST_PIECES), at = 0, sectors;
	int n = 0;

	while (length) {
		at += align * below(1024 / align + 1);
		sectors = length / SECTOR;
		if (n + 1 < (int)most && sectors > 1)
			sectors = 1 + below(2 * sectors / (most - n) + 1);
		if (sectors > length / SECTOR)
			sectors = length / SECTOR;
		pieces[n].iov_base = memory + at;
		pieces[n++].iov_len = sectors * SECTOR;
		at += sectors * SECTOR;
		length -= sectors * SECTOR;
	}
	return n;
}

/* Divides length where pages end; only the first piece begins within one, and the
 * last one ends within one, at any byte that is aligned.
 */
static int divide_by_page(struct iovec *pieces, __u8 *memory, size_t length, size_t align)
{
	size_t at = align * below(PAGE / align), piece = PAGE - at;
	int n = 0;

	while (length) {
		if (n + 1 == MOST_PIECES || piece > length)
			piece = length;
		pieces[n].iov_base = memory + at;
		pieces[n++].iov_len = piece;
		at += piece;
		length -= piece;
		/* The next one is in another page, or just behind. */
		at += PAGE * below(2);
		piece = PAGE * (1 + below(length / PAGE / (MOST_PIECES / 2) + 2));
	}
	return n;
}

/* Whether the kernel takes pieces that are no whole sectors. */
static bool odd_lengths;

static int divide(struct iovec *pieces, __u8 *memory, size_t length, size_t align)
{
	if (odd_lengths && below(2))
		return divide_by_page(pieces, memory, length, align);
	return divide_by_sector(pieces, memory, length, align);
}

static bool takes_odd_lengths(int fd, __u8 *memory, size_t align)
{
	struct iovec pieces[] = {
		{ .iov_base = memory + PAGE - align, .iov_len = align },
		{ .iov_base = memory + PAGE, .iov_len = SECTOR - align },
	};

	return align < SECTOR && preadv(fd, pieces, 2, 0) == SECTOR;
}

static void copy(const struct iovec *pieces, int n, __u8 *flat, bool out)
{
	for (int i = 0; i < n; i++) {
		if (out)
			memcpy(pieces[i].iov_base, flat, pieces[i].iov_len);
		else
			memcpy(flat, pieces[i].iov_base, pieces[i].iov_len);
		flat += pieces[i].iov_len;
	}
}

static void write_and_read(int fd, int count, const char *how)
{
	bool huge = !strcmp(how, "huge"), fresh = !strcmp(how, "fresh");
	bool again = !strcmp(how, "again");
	__u8 *memory = arena(huge), *flat = malloc(MOST), *back = malloc(MOST);
	struct iovec from[MOST_PIECES], to[MOST_PIECES];
	size_t align = alignment(fd), pieces_most = 0;
	int nfrom, nto;
	__u64 size;

	if (ioctl(fd, BLKGETSIZE64, &size))
		err(2, "size");
	odd_lengths = takes_odd_lengths(fd, memory, align);
	for (int i = 0; i < count; i++) {
		size_t length;
		off_t offset;
		__u64 kept;

		if (fresh && below(4) == 0) {
			munmap(memory, ARENA);
			memory = arena(huge);
		}
		kept = state;
		if (again)
			state = 2654435761u * (1 + below(8));
		length = SECTOR * (1 + below(1 << below(12)));
		offset = SECTOR * below((size - length) / SECTOR);
		nfrom = divide(from, memory, length, align);
		nto = divide(to, memory, length, align);
		if (again) {
			state = kept;
			next();
		}
		for (size_t at = 0; at < length; at += 8)
			memcpy(flat + at, &(__u64){ next() }, 8);
		if ((size_t)nfrom > pieces_most)
			pieces_most = nfrom;
		copy(from, nfrom, flat, true);
		if (pwritev(fd, from, nfrom, offset) != (ssize_t)length)
			err(1, "write of %zu at %lld in %d pieces", length, (long long)offset,
			    nfrom);
		memset(memory, 0xa5, ARENA / 4);
		if (preadv(fd, to, nto, offset) != (ssize_t)length)
			err(1, "read of %zu at %lld in %d pieces", length, (long long)offset, nto);
		copy(to, nto, back, false);
		for (size_t at = 0; at < length; at++)
			if (flat[at] != back[at])
				errx(1, "%zu bytes at %lld: byte %zu is %02x, not %02x",
				     length, (long long)offset, at, back[at], flat[at]);
	}
	printf("aligned to %zu, up to %zu pieces%s\n", align, pieces_most,
	       odd_lengths ? "" : ", of whole sectors");
}

static void read_once(int fd, off_t offset, size_t length)
{
	static size_t counts[256];
	__u8 *memory = arena(false);

	memset(memory, 0xa5, length);
	if (pread(fd, memory, length, offset) != (ssize_t)length)
		err(1, "read");
	for (size_t at = 0; at < length; at++)
		counts[memory[at]]++;
	for (int value = 0; value < 256; value++)
		if (counts[value])
			printf("%02x %zu\n", value, counts[value]);
}

static int open_disk(const char *path)
{
	int fd = open(path, O_RDWR | O_DIRECT);

	if (fd < 0)
		err(2, "%s", path);
	return fd;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "reads")) {
		read_once(open_disk(argv[2]), atoll(argv[3]), atoll(argv[4]));
		return 0;
	}
	if (argc < 4)
		errx(2, "see the head of the source");
	state = strtoull(argv[3], NULL, 0) * 2654435761u + 1;
	write_and_read(open_disk(argv[1]), atoi(argv[2]), argc > 4 ? argv[4] : "");
	return 0;
}
