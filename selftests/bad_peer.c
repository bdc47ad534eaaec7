// SPDX-License-Identifier: GPL-2.0
/*
 * bad_peer client ADDRESS PORT STEP...
 * bad_peer server ADDRESS PORT STEP...
 *
 * A puppet on the other side of rivet's perf protocol (rust/perf/wire.rs). It
 * knows the protocol well enough to get into a session, and then says what it
 * is told to:
 *
 *   connect HEX         client: connects with this private data
 *   join N TOKEN        client: data connection N; "-" for the server's token
 *   accept HEX          server: waits for a request, accepts with this data
 *   reject HEX          server: waits for a request, rejects with this data
 *   send N KIND HEX     a message about connection N, with this body
 *   len L               the next message says that its body has L bytes
 *   seq D               the numbers of all further messages are off by D
 *   raw HEX             sends these bytes where a message should be
 *   await KIND          waits for a message of this kind
 *   post LENGTH         SENDs so many bytes on the data connection made last
 *   data HEX            SENDs these bytes there
 *   request HEX         likewise, with address and key of memory of this program
 *                       put into them (rust/perf/exchange/wire.rs)
 *   burst N HEX         likewise, N times with one doorbell
 *   sleep MS            does nothing
 *   end                 waits until rivet ends the connection
 *   close               disconnects
 *
 * What happens is printed, one line for each event. Steps that follow one that
 * failed are left out, but for those after a refused connection.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/types.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"

#define MESSAGE		64
#define BODY		16
#define RECEIVES	64
#define HEARTBEAT	1
#define PATIENCE_MS	8000
#define MAX_LINKS	8
/* What a link can send at once, and what its receives hold. */
#define BUFFER		8192

struct link {
	struct rdma_cm_id *id;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	__u8 *buffer;
};

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static struct sockaddr_storage address;
/* The first is the control connection. */
static struct link links[MAX_LINKS];
static int nlinks;
static __u64 sequence, token;
static int lie_len = -1;
static bool gone;

static size_t from_hex(const char *hex, __u8 *to, size_t room)
{
	size_t len = strlen(hex) / 2;
	unsigned int byte;

	if (len > room)
		errx(2, "%zu bytes are too many", len);
	for (size_t i = 0; i < len; i++) {
		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			errx(2, "%s is not hexadecimal", hex);
		to[i] = byte;
	}
	return len;
}

static void print_hex(const void *data, size_t len)
{
	const __u8 *bytes = data;

	for (size_t i = 0; i < len; i++)
		printf("%02x", bytes[i]);
	putchar('\n');
}

/* The next event, or NULL after ms. */
static struct rdma_cm_event *next_event(int ms)
{
	struct pollfd pollfd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&pollfd, 1, ms) < 1 || rdma_get_cm_event(channel, &event))
		return NULL;
	return event;
}

/* A connect request that came before it was waited for: the CM may tell of one
 * before it says that the connection that was accepted last is established.
 */
static struct rdma_cm_event *early;

/* Waits for an event of some kind, which the caller acknowledges; NULL if it
 * is a refusal.
 */
static struct rdma_cm_event *want(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST && early) {
		event = early;
		early = NULL;
		return event;
	}
	while ((event = next_event(PATIENCE_MS))) {
		if (event->event == kind)
			return event;
		if (event->event == RDMA_CM_EVENT_REJECTED) {
			printf("rejected %d ", event->status);
			print_hex(event->param.conn.private_data,
				  event->param.conn.private_data_len < 12 ?
				  event->param.conn.private_data_len : 12);
			rdma_ack_cm_event(event);
			return NULL;
		}
		printf("event %s, status %d\n", rdma_event_str(event->event), event->status);
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST && !early) {
			early = event;
			continue;
		}
		if (event->event == RDMA_CM_EVENT_DISCONNECTED)
			exit(0);
		rdma_ack_cm_event(event);
	}
	printf("no %s\n", rdma_event_str(kind));
	exit(0);
}

static void want_and_ack(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = want(kind);

	if (!event)
		exit(0);
	rdma_ack_cm_event(event);
}

/* QP, memory and receives on an id that knows its device. */
static struct link *make_link(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = RECEIVES, .max_recv_wr = RECEIVES,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
	};
	struct link *link = &links[nlinks++];

	if (nlinks > MAX_LINKS)
		errx(2, "too many connections");
	link->id = id;
	link->send_cq = ibv_create_cq(id->verbs, RECEIVES, NULL, NULL, 0);
	link->recv_cq = ibv_create_cq(id->verbs, RECEIVES, NULL, NULL, 0);
	attr.send_cq = link->send_cq;
	attr.recv_cq = link->recv_cq;
	if (!link->send_cq || !link->recv_cq || rdma_create_qp(id, NULL, &attr))
		err(2, "QP");
	link->buffer = calloc(RECEIVES + 1, BUFFER);
	/* Rivet may read it. */
	link->mr = rdma_reg_read(id, link->buffer, (RECEIVES + 1) * BUFFER);
	if (!link->mr)
		err(2, "memory");
	for (int i = 0; i < RECEIVES; i++) {
		__u8 *at = link->buffer + i * BUFFER;

		if (rdma_post_recv(id, at, at, BUFFER, link->mr))
			err(2, "receive");
	}
	return link;
}

static void connect_with(const void *data, size_t len)
{
	struct rdma_conn_param param = {
		.private_data = data, .private_data_len = len,
		.retry_count = 7, .rnr_retry_count = 7,
		.initiator_depth = 1, .responder_resources = 1,
	};
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000))
		err(2, "address");
	want_and_ack(RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000))
		err(2, "route");
	want_and_ack(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_link(id);
	if (rdma_connect(id, &param))
		err(2, "connect");
	event = want(RDMA_CM_EVENT_ESTABLISHED);
	if (!event) {
		nlinks--;
		return;
	}
	puts("established");
	if (nlinks == 1 && event->param.conn.private_data_len >= 16)
		token = get_le((const __u8 *)event->param.conn.private_data + 8, 8);
	rdma_ack_cm_event(event);
}

static void do_connect(char **args)
{
	__u8 data[256];

	connect_with(data, from_hex(args[0], data, sizeof(data)));
}

static void do_join(char **args)
{
	__u8 hello[40] = { 'R', 'v', 'P', 'f', 1, 0, sizeof(hello), 0, 2 };

	put_le(hello + 12, atoi(args[0]), 4);
	put_le(hello + 16, *args[1] == '-' ? token : strtoull(args[1], NULL, 0), 8);
	connect_with(hello, sizeof(hello));
}

static void do_accept(char **args)
{
	struct rdma_conn_param param = {
		.retry_count = 7, .rnr_retry_count = 7,
		.initiator_depth = 1, .responder_resources = 1,
	};
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	__u8 data[256];

	if (!event)
		return;
	puts("request");
	param.private_data = data;
	param.private_data_len = from_hex(args[0], data, sizeof(data));
	make_link(event->id);
	if (rdma_accept(event->id, &param))
		err(2, "accept");
	rdma_ack_cm_event(event);
	want_and_ack(RDMA_CM_EVENT_ESTABLISHED);
	puts("established");
}

static void do_reject(char **args)
{
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	__u8 data[256];
	size_t len = from_hex(args[0], data, sizeof(data));

	if (!event)
		return;
	puts("request");
	if (rdma_reject(event->id, data, len))
		err(2, "reject");
	rdma_ack_cm_event(event);
}

static void look_for_end(int ms)
{
	struct rdma_cm_event *event = next_event(ms);

	if (!event)
		return;
	/* A connection that is ended in its first moment is a refused one. */
	if (event->event == RDMA_CM_EVENT_DISCONNECTED ||
	    event->event == RDMA_CM_EVENT_REJECTED)
		gone = true;
	rdma_ack_cm_event(event);
}

/* Sends what stands at the end of the link's buffer, some times. */
static void post_times(struct link *link, size_t len, int times)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)link->buffer + RECEIVES * BUFFER,
		.length = len, .lkey = link->mr->lkey,
	};
	struct ibv_send_wr wrs[RECEIVES] = {}, *bad;
	__u64 end = now_ms() + PATIENCE_MS;
	struct ibv_wc wc;

	if (times < 1 || times > RECEIVES)
		errx(2, "%d times are too many", times);
	for (int i = 0; i < times; i++) {
		wrs[i].sg_list = &sge;
		wrs[i].num_sge = 1;
		wrs[i].opcode = IBV_WR_SEND;
		wrs[i].next = i + 1 < times ? &wrs[i + 1] : NULL;
	}
	wrs[times - 1].send_flags = IBV_SEND_SIGNALED;
	errno = ibv_post_send(link->id->qp, wrs, &bad);
	if (errno)
		err(2, "send");
	while (now_ms() < end) {
		if (ibv_poll_cq(link->send_cq, 1, &wc) == 1) {
			if (wc.status)
				printf("send: %s\n", ibv_wc_status_str(wc.status));
			return;
		}
		if (gone)
			return;
		look_for_end(1);
	}
	puts("send: no completion");
}

static void post(struct link *link, size_t len)
{
	post_times(link, len, 1);
}

static void do_send(char **args)
{
	__u8 *message = links[0].buffer + RECEIVES * BUFFER;
	size_t len;

	memset(message, 0, MESSAGE);
	len = from_hex(args[2], message + BODY, MESSAGE - BODY);
	put_le(message, atoi(args[1]), 2);
	put_le(message + 2, lie_len < 0 ? len : (size_t)lie_len, 2);
	put_le(message + 4, strtoul(args[0], NULL, 0), 4);
	put_le(message + 8, sequence++, 8);
	lie_len = -1;
	post(&links[0], MESSAGE);
}

static void do_raw(char **args)
{
	post(&links[0], from_hex(args[0], links[0].buffer + RECEIVES * BUFFER, BUFFER));
}

static void do_len(char **args)
{
	lie_len = atoi(args[0]);
}

static void do_seq(char **args)
{
	sequence += atoi(args[0]);
}

static void do_post(char **args)
{
	post(&links[nlinks - 1], atoi(args[0]));
}

/* Bytes for the data connection made last. */
static size_t take_data(const char *hex)
{
	return from_hex(hex, links[nlinks - 1].buffer + RECEIVES * BUFFER, BUFFER);
}

static void name_memory(void)
{
	struct link *link = &links[nlinks - 1];

	put_le(link->buffer + RECEIVES * BUFFER + 8, (uintptr_t)link->buffer, 8);
	put_le(link->buffer + RECEIVES * BUFFER + 16, link->mr->rkey, 4);
}

static void do_data(char **args)
{
	post(&links[nlinks - 1], take_data(args[0]));
}

static void do_request(char **args)
{
	size_t len = take_data(args[0]);

	name_memory();
	post(&links[nlinks - 1], len);
}

static void do_burst(char **args)
{
	size_t len = take_data(args[1]);

	name_memory();
	post_times(&links[nlinks - 1], len, atoi(args[0]));
}

static void do_sleep(char **args)
{
	usleep(atoi(args[0]) * 1000);
}

static void do_await(char **args)
{
	__u64 end = now_ms() + PATIENCE_MS;
	int kind = atoi(args[0]);
	struct ibv_wc wc;
	__u8 *message;

	while (now_ms() < end && !gone) {
		if (ibv_poll_cq(links[0].recv_cq, 1, &wc) != 1) {
			look_for_end(2);
			continue;
		}
		if (wc.status)
			break;
		message = (__u8 *)(uintptr_t)wc.wr_id;
		if (message[0] == kind) {
			printf("message %d\n", kind);
			return;
		}
		if (message[0] != HEARTBEAT)
			printf("message %d, unexpected\n", message[0]);
	}
	printf("no message %d%s\n", kind, gone ? ": ended" : "");
	exit(0);
}

static void do_end(char **args)
{
	__u64 end = now_ms() + PATIENCE_MS;

	(void)args;
	while (now_ms() < end && !gone)
		look_for_end(100);
	puts(gone ? "ended" : "still connected");
}

static void do_close(char **args)
{
	(void)args;
	rdma_disconnect(links[0].id);
}

static const struct {
	const char *name;
	int args;
	void (*function)(char **args);
} steps[] = {
	{ "connect", 1, do_connect },
	{ "join", 2, do_join },
	{ "accept", 1, do_accept },
	{ "reject", 1, do_reject },
	{ "send", 3, do_send },
	{ "len", 1, do_len },
	{ "seq", 1, do_seq },
	{ "raw", 1, do_raw },
	{ "await", 1, do_await },
	{ "post", 1, do_post },
	{ "data", 1, do_data },
	{ "request", 1, do_request },
	{ "burst", 2, do_burst },
	{ "sleep", 1, do_sleep },
	{ "end", 0, do_end },
	{ "close", 0, do_close },
};

static char **take_step(char **argv)
{
	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		if (strcmp(steps[i].name, argv[0]))
			continue;
		for (int n = 1; n <= steps[i].args; n++)
			if (!argv[n])
				errx(2, "%s: an argument is missing", argv[0]);
		steps[i].function(argv + 1);
		return argv + 1 + steps[i].args;
	}
	errx(2, "%s is no step", argv[0]);
}

int main(int argc, char **argv)
{
	struct addrinfo *found;

	if (argc < 4)
		errx(2, "see the head of the source");
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (getaddrinfo(argv[2], argv[3], NULL, &found))
		errx(2, "%s", argv[2]);
	memcpy(&address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	channel = rdma_create_event_channel();
	if (!channel)
		err(2, "rdma_cm");
	if (!strcmp(argv[1], "server")) {
		if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
		    rdma_bind_addr(listener, (struct sockaddr *)&address) ||
		    rdma_listen(listener, 8))
			err(2, "listen");
		puts("listening");
	}
	argv += 4;
	while (*argv)
		argv = take_step(argv);
	return 0;
}
