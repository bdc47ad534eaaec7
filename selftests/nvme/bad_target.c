// SPDX-License-Identifier: GPL-2.0
/*
 * bad_target ADDRESS PORT [STAGE[#N]:ACTION[=VALUE]]...
 *
 * An NVMe/RDMA target that behaves, but for what it is told: at the Nth time (or
 * each time) that it comes to STAGE it does ACTION. It has one namespace of 16 MiB
 * that keeps what is written, in whatever subsystem a host asks for. It is in no
 * hurry: one command at a time, of all connections.
 *
 * Stages: request and io-request (of the CM, for the admin queue and another),
 * ready and io-ready (such a connection is there), connect, io-connect, get-cap,
 * get-vs, get-csts, set, identify, identify-ns, features, log, aer, keepalive,
 * read, write, flush, admin (another), io (another).
 *
 * Actions where a connection is asked for:
 *   reject=STATUS   rejects, as NVMe has it      bare      rejects, and says nothing
 *   silence         never answers                recfmt=N  accepts, with this format
 *   crqsize=N       and this queue size          empty     and no private data
 * and where it is there:
 *   unsolicited=CID sends a completion           vanish    ends it
 *
 * Actions in the place of an answer:
 *   silence         none
 *   vanish          ends the connection          vanish-all  those of the controller, too
 *   delay=MS        answers so much later
 *   status=S        answers with this status
 *   value=V         the result or the property is this
 *   poke=O/L/V      L bytes of the data at O are V
 *   length=L        the answer is this long
 *   no-data         success, without the data    half-data   with the half of it
 *   beyond=L        with L more bytes than there is room for
 *   wrong-way       a write, into the memory that it should read
 *   inv=KEY         invalidates this key
 *   inv-last        that of the command before   inv-other   that of another controller
 *   inv-own         that of the command, whether or not it asks for that
 *   hold            answers once the next command is there
 *
 * Actions before the answer or after it:
 *   cid=ID          before, one for this command id
 *   again           before, the one before once more
 *   twice           after, the same once more
 *   flood=N         after, so many asynchronous events
 *   late=MS         after so long, writes to the memory once more
 *
 * What happens is printed, one line for each event; "did RULE" for each rule.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/types.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../peer.h"

#define DEPTH		128
#define INLINE		8192
#define CAPSULE		(64 + INLINE)
#define DISK		(16 << 20)
#define SECTOR		512
#define SCRATCH		4096
#define MAX_QUEUES	64
#define MAX_CTRLS	32
#define MAX_RULES	16
#define PATIENCE_MS	5000

#define BIT(n)		(1ull << (n))
#define STATUS_INVALID_OPCODE	0x4001
#define STATUS_INVALID_FIELD	0x4002

enum stage {
	REQUEST, IO_REQUEST, READY, IO_READY, CONNECT, IO_CONNECT,
	GET_CAP, GET_VS, GET_CSTS, SET, IDENTIFY, IDENTIFY_NS, FEATURES, LOG,
	AER, KEEPALIVE, READ, WRITE, FLUSH, ADMIN, IO,
	STAGES,
};

static const char *const stage_names[STAGES] = {
	"request", "io-request", "ready", "io-ready", "connect", "io-connect",
	"get-cap", "get-vs", "get-csts", "set", "identify", "identify-ns", "features", "log",
	"aer", "keepalive", "read", "write", "flush", "admin", "io",
};

struct rule {
	const char *text, *action, *value;
	size_t action_len;
	enum stage stage;
	int nth, count;
	__u64 number;
};

struct ctrl {
	int cntlid;
	char subnqn[257];
	__u32 cc;
	int aer_cid;
};

struct queue {
	struct rdma_cm_id *id;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	struct ctrl *ctrl;
	__u8 *buffer;
	int qid;
	unsigned int commands;
	bool gone;
	/* The last answer, and the key and address of the last command that had some. */
	__u8 last[16];
	__u32 key;
};

/* A command that is being answered. */
struct command {
	struct queue *queue;
	const __u8 *sqe;
	/* What the host gave for data. */
	__u64 addr;
	__u32 length, key;
	const __u8 *in_capsule;
	bool invalidate;
	/* What it is answered with. */
	__u8 *data;
	__u32 data_length;
	__u64 result;
	__u16 status;
};

static struct rdma_event_channel *channel;
static struct rule rules[MAX_RULES];
static int nrules;
static struct queue *queues[MAX_QUEUES];
static struct ctrl ctrls[MAX_CTRLS];
static int nctrls;
static __u8 *disk, *scratch;
static struct ibv_mr *disk_mr, *scratch_mr;
static struct command held;
static __u8 held_sqe[64];

static void parse_rule(const char *text)
{
	struct rule *rule = &rules[nrules++];
	size_t len = strcspn(text, "#:");

	if (nrules > MAX_RULES)
		errx(2, "too many rules");
	rule->text = text;
	for (int n = 0; n < STAGES; n++)
		if (strlen(stage_names[n]) == len && !strncmp(stage_names[n], text, len)) {
			rule->stage = n;
			text += len;
			if (*text == '#')
				rule->nth = strtol(text + 1, (char **)&text, 0);
			if (*text != ':')
				break;
			rule->action = text + 1;
			rule->action_len = strcspn(rule->action, "=");
			rule->value = rule->action[rule->action_len] ?
				rule->action + rule->action_len + 1 : "0";
			rule->number = strtoull(rule->value, NULL, 0);
			return;
		}
	errx(2, "%s is no rule", rule->text);
}

static const struct rule *come_to(enum stage stage)
{
	for (int n = 0; n < nrules; n++) {
		if (rules[n].stage != stage)
			continue;
		rules[n].count++;
		if (rules[n].nth && rules[n].nth != rules[n].count)
			continue;
		printf("did %s\n", rules[n].text);
		return &rules[n];
	}
	return NULL;
}

static bool is(const struct rule *rule, const char *action)
{
	return rule && strlen(action) == rule->action_len &&
		!strncmp(action, rule->action, rule->action_len);
}

static void take_events(int ms);

/* ---- the wire ------------------------------------------------------------ */

static void vanish(struct queue *queue)
{
	if (!queue->gone)
		rdma_disconnect(queue->id);
	queue->gone = true;
}

/* Posts one work request and waits for it. Returns whether it was done. */
static bool do_work(struct queue *queue, struct ibv_send_wr *wr, const char *what)
{
	__u64 end = now_ms() + PATIENCE_MS;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	if (queue->gone)
		return false;
	wr->send_flags |= IBV_SEND_SIGNALED;
	errno = ibv_post_send(queue->id->qp, wr, &bad);
	if (errno) {
		printf("%s: %s\n", what, strerror(errno));
		return false;
	}
	while (now_ms() < end) {
		if (ibv_poll_cq(queue->send_cq, 1, &wc) == 1) {
			if (wc.status)
				printf("%s: %s\n", what, ibv_wc_status_str(wc.status));
			return !wc.status;
		}
		if (queue->gone)
			return false;
		take_events(0);
	}
	printf("%s: no completion\n", what);
	return false;
}

static bool send_bytes(struct queue *queue, const void *bytes, size_t len, __u32 key)
{
	__u8 *at = queue->buffer + DEPTH * CAPSULE;
	struct ibv_sge sge = {
		.addr = (unsigned long)at, .length = len, .lkey = queue->mr->lkey,
	};
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = len ? 1 : 0,
		.opcode = key ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
		.invalidate_rkey = key,
	};

	memset(at, 0, SCRATCH);
	memcpy(at, bytes, len < 16 ? len : 16);
	return do_work(queue, &wr, "send");
}

/* RDMA, between the host's memory and the disk or the scratch page. */
static bool move(struct command *command, enum ibv_wr_opcode opcode, __u8 *local, size_t len,
		 __u64 addr, const char *what)
{
	bool in_disk = local >= disk && local < disk + DISK;
	struct ibv_sge sge = {
		.addr = (unsigned long)local, .length = len,
		.lkey = in_disk ? disk_mr->lkey : scratch_mr->lkey,
	};
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.wr.rdma = { .remote_addr = addr, .rkey = command->key },
	};

	return do_work(command->queue, &wr, what);
}

static void complete_as(struct command *command, __u16 cid, size_t len, __u32 key)
{
	struct queue *queue = command->queue;
	__u8 cqe[16];

	put_le(cqe, command->result, 8);
	put_le(cqe + 8, queue->commands % DEPTH, 2);
	put_le(cqe + 10, queue->qid, 2);
	put_le(cqe + 12, cid, 2);
	put_le(cqe + 14, command->status << 1, 2);
	send_bytes(queue, cqe, len, key);
	memcpy(queue->last, cqe, sizeof(cqe));
}

static void complete(struct command *command)
{
	complete_as(command, get_le(command->sqe + 2, 2), 16,
		    command->invalidate ? command->key : 0);
}

/* The key that another controller has given last. */
static __u32 other_key(struct queue *queue)
{
	for (int n = 0; n < MAX_QUEUES; n++)
		if (queues[n] && queues[n]->ctrl != queue->ctrl && queues[n]->key)
			return queues[n]->key;
	printf("no key of another controller\n");
	return 0;
}

static void flood(struct queue *queue, int times)
{
	struct command event = { .queue = queue, .result = 2 | 4 << 16 };

	for (int n = 0; n < times && !queue->gone; n++)
		complete_as(&event, queue->ctrl->aer_cid, 16, 0);
}

/* ---- answers ------------------------------------------------------------- */

static void poke(const char *value)
{
	unsigned int offset, bytes;
	long long number;

	if (sscanf(value, "%u/%u/%lli", &offset, &bytes, &number) != 3 ||
	    bytes > 8 || offset > SCRATCH - 8)
		errx(2, "not OFFSET/BYTES/NUMBER: %s", value);
	put_le(scratch + offset, number, bytes);
}

/* Sends the data and the answer, or what the rule wants instead. */
static void answer(struct command *command, enum stage stage)
{
	struct queue *queue = command->queue;
	const struct rule *rule = come_to(stage);
	__u16 cid = get_le(command->sqe + 2, 2);
	__u32 length = command->data_length, before = queue->key;

	if (command->key)
		queue->key = command->key;
	if (is(rule, "silence"))
		return;
	if (is(rule, "vanish") || is(rule, "vanish-all")) {
		for (int n = 0; n < MAX_QUEUES; n++)
			if (queues[n] && (queues[n] == queue || (is(rule, "vanish-all") &&
								 queues[n]->ctrl == queue->ctrl)))
				vanish(queues[n]);
		return;
	}
	if (is(rule, "delay"))
		usleep(rule->number * 1000);
	if (is(rule, "status"))
		command->status = rule->number;
	if (is(rule, "value"))
		command->result = rule->number;
	if (is(rule, "poke"))
		poke(rule->value);
	if (is(rule, "hold")) {
		held = *command;
		memcpy(held_sqe, command->sqe, 64);
		held.sqe = held_sqe;
		return;
	}
	if (is(rule, "wrong-way"))
		move(command, IBV_WR_RDMA_WRITE, scratch, SCRATCH, command->addr, "wrong way");

	if (length > command->length)
		length = command->length;
	if (is(rule, "no-data") || command->status)
		length = 0;
	if (is(rule, "half-data"))
		length /= 2;
	if (is(rule, "beyond"))
		length = command->length + rule->number;
	if (command->data && length)
		move(command, IBV_WR_RDMA_WRITE, command->data, length, command->addr, "data");

	if (is(rule, "cid"))
		complete_as(command, rule->number, 16, 0);
	if (is(rule, "again"))
		send_bytes(queue, queue->last, 16, 0);
	if (is(rule, "length"))
		complete_as(command, cid, rule->number, 0);
	else if (is(rule, "inv"))
		complete_as(command, cid, 16, rule->number);
	else if (is(rule, "inv-last"))
		complete_as(command, cid, 16, before);
	else if (is(rule, "inv-own"))
		complete_as(command, cid, 16, command->key);
	else if (is(rule, "inv-other"))
		complete_as(command, cid, 16, other_key(queue));
	else if (is(rule, "late"))
		complete_as(command, cid, 16, 0);
	else
		complete(command);
	if (is(rule, "twice"))
		send_bytes(queue, queue->last, 16, 0);
	if (is(rule, "flood"))
		flood(queue, rule->number);
	if (is(rule, "late")) {
		usleep(rule->number * 1000);
		memset(scratch, 0xbd, SCRATCH);
		if (move(command, IBV_WR_RDMA_WRITE, scratch, 512, command->addr, "late"))
			printf("late: it was written\n");
	}
}

static void give_scratch(struct command *command)
{
	command->data = scratch;
	command->data_length = SCRATCH;
}

static void identify_ctrl(struct command *command)
{
	__u8 *id = scratch;

	memset(id + 4, ' ', 68);
	memcpy(id + 4, "1", 1);
	memcpy(id + 24, "bad target", 10);
	put_le(id + 78, command->queue->ctrl->cntlid, 2);
	put_le(id + 80, 0x10300, 4);
	/* It tells of changes of namespaces. */
	put_le(id + 92, BIT(8), 4);
	id[111] = 1;
	id[258] = 3;
	id[259] = 3;
	put_le(id + 320, 10, 2);
	id[512] = 0x66;
	id[513] = 0x44;
	put_le(id + 514, DEPTH, 2);
	put_le(id + 516, 1, 4);
	/* Discard and write zeroes; a cache. */
	put_le(id + 520, 0xc, 2);
	id[525] = 1;
	/* SGLs: keyed, and an offset into the capsule. */
	put_le(id + 536, 1 | BIT(2) | BIT(20), 4);
	memcpy(id + 768, command->queue->ctrl->subnqn, 256);
	put_le(id + 1792, CAPSULE / 16, 4);
	put_le(id + 1796, 1, 4);
	id[1803] = 1;
}

static void identify(struct command *command)
{
	__u8 cns = command->sqe[40];

	give_scratch(command);
	switch (cns) {
	case 0:
		put_le(scratch, DISK / SECTOR, 8);
		put_le(scratch + 8, DISK / SECTOR, 8);
		put_le(scratch + 16, DISK / SECTOR, 8);
		scratch[128 + 2] = 9;
		break;
	case 1:
		identify_ctrl(command);
		break;
	case 2:
		put_le(scratch, get_le(command->sqe + 4, 4) < 1, 4);
		break;
	case 3:
		/* A UUID, another one in each subsystem. */
		scratch[0] = 3;
		scratch[1] = 16;
		for (const char *s = command->queue->ctrl->subnqn; *s; s++)
			scratch[4 + *s % 16] += *s;
		break;
	case 6:
		break;
	default:
		command->status = STATUS_INVALID_FIELD;
	}
	answer(command, cns == 1 ? IDENTIFY : IDENTIFY_NS);
}

static void property(struct command *command)
{
	struct ctrl *ctrl = command->queue->ctrl;
	enum stage stage = ADMIN;

	switch (get_le(command->sqe + 44, 4)) {
	case 0x0:
		/* Queue size, contiguous queues, 10 s to become ready, NVM commands. */
		command->result = (DEPTH - 1) | BIT(16) | 20ull << 24 | BIT(37);
		stage = GET_CAP;
		break;
	case 0x8:
		command->result = 0x10300;
		stage = GET_VS;
		break;
	case 0x14:
		command->result = ctrl->cc;
		break;
	case 0x1c:
		command->result = (ctrl->cc & 1) | ((ctrl->cc >> 14 & 3) ? 2 << 2 : 0);
		stage = GET_CSTS;
		break;
	default:
		command->status = STATUS_INVALID_FIELD;
	}
	answer(command, stage);
}

static void connect_queue(struct command *command)
{
	struct queue *queue = command->queue;
	const __u8 *data = command->in_capsule;

	queue->qid = get_le(command->sqe + 42, 2);
	if (!data) {
		if (!move(command, IBV_WR_RDMA_READ, scratch, 1024, command->addr, "connect"))
			return;
		data = scratch;
	}
	if (queue->qid == 0) {
		struct ctrl *ctrl = &ctrls[nctrls % MAX_CTRLS];

		memset(ctrl, 0, sizeof(*ctrl));
		ctrl->cntlid = ++nctrls;
		memcpy(ctrl->subnqn, data + 256, 255);
		queue->ctrl = ctrl;
	} else {
		queue->ctrl = &ctrls[(get_le(data + 16, 2) - 1) % MAX_CTRLS];
	}
	command->result = queue->ctrl->cntlid;
	printf("connected %d\n", queue->qid);
	memset(scratch, 0, SCRATCH);
	answer(command, queue->qid ? IO_CONNECT : CONNECT);
}

static void fabrics(struct command *command)
{
	switch (command->sqe[4]) {
	case 0:
		if (command->queue->ctrl && get_le(command->sqe + 44, 4) == 0x14)
			command->queue->ctrl->cc = get_le(command->sqe + 48, 4);
		answer(command, SET);
		break;
	case 1:
		connect_queue(command);
		break;
	case 4:
		property(command);
		break;
	default:
		command->status = STATUS_INVALID_FIELD;
		answer(command, ADMIN);
	}
}

static void admin(struct command *command)
{
	__u8 opcode = command->sqe[0];
	const struct rule *rule;

	switch (opcode) {
	case 0x02:
		give_scratch(command);
		answer(command, LOG);
		break;
	case 0x06:
		identify(command);
		break;
	case 0x09:
	case 0x0a:
		if (command->sqe[40] == 7)
			command->result = get_le(command->sqe + 44, 4);
		answer(command, FEATURES);
		break;
	case 0x0c:
		/* Asynchronous events have their time. */
		command->queue->ctrl->aer_cid = get_le(command->sqe + 2, 2);
		rule = come_to(AER);
		if (is(rule, "flood"))
			flood(command->queue, rule->number);
		break;
	case 0x08:
	case 0x18:
		answer(command, opcode == 0x18 ? KEEPALIVE : ADMIN);
		break;
	default:
		command->status = STATUS_INVALID_OPCODE;
		answer(command, ADMIN);
	}
}

static void io(struct command *command)
{
	__u64 start = get_le(command->sqe + 40, 8) * SECTOR;
	size_t length = (get_le(command->sqe + 48, 2) + 1) * SECTOR;
	__u8 opcode = command->sqe[0];

	if (opcode == 0) {
		answer(command, FLUSH);
		return;
	}
	if (opcode == 9) {
		answer(command, IO);
		return;
	}
	if (start > DISK || length > DISK - start) {
		command->status = STATUS_INVALID_FIELD;
		answer(command, IO);
		return;
	}
	switch (opcode) {
	case 1:
		if (command->in_capsule)
			memcpy(disk + start, command->in_capsule,
			       length < command->length ? length : command->length);
		else if (!move(command, IBV_WR_RDMA_READ, disk + start, length,
			       command->addr, "data"))
			return;
		answer(command, WRITE);
		break;
	case 2:
		command->data = disk + start;
		command->data_length = length;
		answer(command, READ);
		break;
	case 8:
		memset(disk + start, 0, length);
		answer(command, IO);
		break;
	default:
		command->status = STATUS_INVALID_OPCODE;
		answer(command, IO);
	}
}

static void take_command(struct queue *queue, const __u8 *sqe, size_t len)
{
	struct command command = { .queue = queue, .sqe = sqe };
	__u8 type = sqe[39];

	if (len < 64) {
		printf("a capsule of %zu bytes\n", len);
		return;
	}
	queue->commands++;
	if (type >> 4 == 4) {
		command.addr = get_le(sqe + 24, 8);
		command.length = get_le(sqe + 32, 3);
		command.key = get_le(sqe + 35, 4);
		command.invalidate = (type & 15) == 15 && command.key;
	} else if (type == 1) {
		command.length = get_le(sqe + 32, 4);
		if (command.length > len - 64)
			printf("%u bytes in a capsule of %zu\n", command.length, len);
		else
			command.in_capsule = sqe + 64;
	}
	memset(scratch, 0, SCRATCH);
	if (held.queue) {
		struct command first = held;

		held.queue = NULL;
		if (first.data)
			move(&first, IBV_WR_RDMA_WRITE, first.data,
			     first.data_length < first.length ? first.data_length : first.length,
			     first.addr, "data");
		complete(&first);
	}
	if (sqe[0] == 0x7f)
		fabrics(&command);
	else if (!queue->ctrl)
		printf("a command before connect\n");
	else if (queue->qid)
		io(&command);
	else
		admin(&command);
}

/* ---- connections --------------------------------------------------------- */

static void receive(struct queue *queue, __u8 *at)
{
	struct ibv_sge sge = {
		.addr = (unsigned long)at, .length = CAPSULE, .lkey = queue->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = sge.addr, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(queue->id->qp, &wr, &bad))
		queue->gone = true;
}

static struct queue *make_queue(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = 16, .max_recv_wr = DEPTH,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
	};
	struct queue *queue = calloc(1, sizeof(*queue));
	int n = 0;

	while (n < MAX_QUEUES && queues[n])
		n++;
	if (n == MAX_QUEUES || !queue)
		errx(2, "too many connections");
	queue->id = id;
	queue->send_cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	queue->recv_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0);
	attr.send_cq = queue->send_cq;
	attr.recv_cq = queue->recv_cq;
	if (!queue->send_cq || !queue->recv_cq || rdma_create_qp(id, NULL, &attr))
		err(2, "QP");
	queue->buffer = calloc(1, DEPTH * CAPSULE + SCRATCH);
	queue->mr = ibv_reg_mr(id->pd, queue->buffer, DEPTH * CAPSULE + SCRATCH,
			       IBV_ACCESS_LOCAL_WRITE);
	if (!disk_mr) {
		disk_mr = ibv_reg_mr(id->pd, disk, DISK, IBV_ACCESS_LOCAL_WRITE);
		scratch_mr = ibv_reg_mr(id->pd, scratch, 2 * SCRATCH, IBV_ACCESS_LOCAL_WRITE);
	}
	if (!queue->mr || !disk_mr || !scratch_mr)
		err(2, "memory");
	for (int i = 0; i < DEPTH; i++)
		receive(queue, queue->buffer + i * CAPSULE);
	id->context = queue;
	queues[n] = queue;
	return queue;
}

static void unmake_queue(struct queue *queue)
{
	for (int n = 0; n < MAX_QUEUES; n++)
		if (queues[n] == queue)
			queues[n] = NULL;
	if (held.queue == queue)
		held.queue = NULL;
	rdma_destroy_qp(queue->id);
	ibv_destroy_cq(queue->send_cq);
	ibv_destroy_cq(queue->recv_cq);
	ibv_dereg_mr(queue->mr);
	rdma_destroy_id(queue->id);
	free(queue->buffer);
	free(queue);
}

/* Whether the id is to be destroyed. */
static bool take_request(struct rdma_cm_event *event)
{
	const __u8 *request = event->param.conn.private_data;
	bool io_queue = event->param.conn.private_data_len >= 4 && get_le(request + 2, 2);
	const struct rule *rule = come_to(io_queue ? IO_REQUEST : REQUEST);
	struct rdma_conn_param param = {
		.retry_count = 7, .rnr_retry_count = 7,
		.initiator_depth = 4, .responder_resources = 4,
	};
	__u8 reply[32] = {};

	if (is(rule, "silence"))
		return false;
	if (is(rule, "reject") || is(rule, "bare")) {
		put_le(reply + 2, rule->number, 2);
		rdma_reject(event->id, reply, is(rule, "bare") ? 0 : 4);
		return true;
	}
	put_le(reply, is(rule, "recfmt") ? rule->number : 0, 2);
	put_le(reply + 2, is(rule, "crqsize") ? rule->number : DEPTH, 2);
	if (!is(rule, "empty")) {
		param.private_data = reply;
		param.private_data_len = sizeof(reply);
	}
	make_queue(event->id)->qid = io_queue;
	if (rdma_accept(event->id, &param))
		printf("accept: %s\n", strerror(errno));
	return false;
}

static void take_ready(struct queue *queue)
{
	const struct rule *rule = come_to(queue->qid ? IO_READY : READY);
	struct command command = { .queue = queue };

	if (is(rule, "unsolicited"))
		complete_as(&command, rule->number, 16, 0);
	if (is(rule, "vanish"))
		vanish(queue);
}

/* What the CM has to say; at most one event in so many milliseconds. */
static void take_events(int ms)
{
	struct pollfd pollfd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	struct queue *queue;
	struct rdma_cm_id *done = NULL;

	if (poll(&pollfd, 1, ms) < 1 || rdma_get_cm_event(channel, &event))
		return;
	queue = event->id->context;
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		/* An id begins with the listener's context. */
		event->id->context = NULL;
		if (take_request(event))
			done = event->id;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		rdma_ack_cm_event(event);
		take_ready(queue);
		return;
	case RDMA_CM_EVENT_DISCONNECTED:
		if (queue && !queue->gone)
			printf("disconnected %d\n", queue->qid);
		if (queue)
			vanish(queue);
		break;
	default:
		printf("event %s, status %d\n", rdma_event_str(event->event), event->status);
		if (queue)
			queue->gone = true;
	}
	rdma_ack_cm_event(event);
	if (done)
		rdma_destroy_id(done);
}

static void serve(struct queue *queue)
{
	struct ibv_wc wc;

	while (!queue->gone && ibv_poll_cq(queue->recv_cq, 1, &wc) == 1) {
		__u8 *at = (__u8 *)(unsigned long)wc.wr_id;

		if (wc.status) {
			queue->gone = true;
			break;
		}
		take_command(queue, at, wc.byte_len);
		receive(queue, at);
	}
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *listener;
	struct addrinfo *found;

	if (argc < 3)
		errx(2, "see the head of the source");
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int n = 3; n < argc; n++)
		parse_rule(argv[n]);
	disk = calloc(1, DISK);
	scratch = calloc(2, SCRATCH);
	channel = rdma_create_event_channel();
	if (!disk || !scratch || !channel)
		err(2, "rdma_cm");
	if (getaddrinfo(argv[1], argv[2], NULL, &found))
		errx(2, "%s", argv[1]);
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, found->ai_addr) || rdma_listen(listener, 64))
		err(2, "listen");
	puts("listening");
	for (;;) {
		take_events(1);
		for (int n = 0; n < MAX_QUEUES; n++) {
			if (queues[n])
				serve(queues[n]);
			if (queues[n] && queues[n]->gone)
				unmake_queue(queues[n]);
		}
	}
}
