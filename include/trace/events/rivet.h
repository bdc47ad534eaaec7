/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Rivet's tracepoints. Each is called from rust/kapi/trace.rs, which documents
 * when, and costs a static branch when it is off.
 *
 * "qp" is Rivet's own number of a QP, which the work requests of that QP carry
 * and no other QP has; rivet_qp tells which QP of the device it is. "wr" is the
 * number of a work request in its queue, which is used again after 2^24 others.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rivet

#if !defined(_TRACE_RIVET_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_RIVET_H

#include <linux/tracepoint.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>
#include <trace/misc/rdma.h>

TRACE_EVENT(rivet_post,
	TP_PROTO(u32 qp, u32 wr, u32 opcode, u32 bytes, bool signaled),
	TP_ARGS(qp, wr, opcode, bytes, signaled),
	TP_STRUCT__entry(
		__field(u32, qp)
		__field(u32, wr)
		__field(u32, opcode)
		__field(u32, bytes)
		__field(bool, signaled)
	),
	TP_fast_assign(
		__entry->qp = qp;
		__entry->wr = wr;
		__entry->opcode = opcode;
		__entry->bytes = bytes;
		__entry->signaled = signaled;
	),
	TP_printk("qp=%u wr=%u %s bytes=%u signaled=%d", __entry->qp, __entry->wr,
		  __print_symbolic(__entry->opcode,
				   { IB_WR_RDMA_WRITE, "WRITE" },
				   { IB_WR_RDMA_WRITE_WITH_IMM, "WRITE_IMM" },
				   { IB_WR_SEND, "SEND" },
				   { IB_WR_SEND_WITH_IMM, "SEND_IMM" },
				   { IB_WR_SEND_WITH_INV, "SEND_INV" },
				   { IB_WR_RDMA_READ, "READ" },
				   { IB_WR_ATOMIC_CMP_AND_SWP, "CMP_SWAP" },
				   { IB_WR_ATOMIC_FETCH_AND_ADD, "FETCH_ADD" },
				   { IB_WR_LOCAL_INV, "LOCAL_INV" },
				   { IB_WR_REG_MR, "REG_MR" }),
		  __entry->bytes, __entry->signaled)
);

TRACE_EVENT(rivet_doorbell,
	TP_PROTO(u32 qp, bool recv, u32 wrs),
	TP_ARGS(qp, recv, wrs),
	TP_STRUCT__entry(
		__field(u32, qp)
		__field(u32, wrs)
		__field(bool, recv)
	),
	TP_fast_assign(
		__entry->qp = qp;
		__entry->wrs = wrs;
		__entry->recv = recv;
	),
	TP_printk("qp=%u %s wrs=%u", __entry->qp, __entry->recv ? "recv" : "send", __entry->wrs)
);

TRACE_EVENT(rivet_complete,
	TP_PROTO(u32 qp, u32 wr, bool recv, u32 status),
	TP_ARGS(qp, wr, recv, status),
	TP_STRUCT__entry(
		__field(u32, qp)
		__field(u32, wr)
		__field(u32, status)
		__field(bool, recv)
	),
	TP_fast_assign(
		__entry->qp = qp;
		__entry->wr = wr;
		__entry->status = status;
		__entry->recv = recv;
	),
	TP_printk("qp=%u %s wr=%u %s", __entry->qp, __entry->recv ? "recv" : "send", __entry->wr,
		  rdma_show_wc_status(__entry->status))
);

TRACE_EVENT(rivet_submit,
	TP_PROTO(u32 qp, u64 begin, u64 bytes),
	TP_ARGS(qp, begin, bytes),
	TP_STRUCT__entry(
		__field(u64, begin)
		__field(u64, bytes)
		__field(u32, qp)
	),
	TP_fast_assign(
		__entry->begin = begin;
		__entry->bytes = bytes;
		__entry->qp = qp;
	),
	TP_printk("qp=%u begin=%llu bytes=%llu", __entry->qp, __entry->begin, __entry->bytes)
);

TRACE_EVENT(rivet_done,
	TP_PROTO(u32 qp, u64 begin, u64 end, u64 bytes),
	TP_ARGS(qp, begin, end, bytes),
	TP_STRUCT__entry(
		__field(u64, begin)
		__field(u64, ns)
		__field(u64, bytes)
		__field(u32, qp)
	),
	TP_fast_assign(
		__entry->begin = begin;
		__entry->ns = end - begin;
		__entry->bytes = bytes;
		__entry->qp = qp;
	),
	TP_printk("qp=%u begin=%llu ns=%llu bytes=%llu", __entry->qp, __entry->begin, __entry->ns,
		  __entry->bytes)
);

/* "cpu" is the one that the poller belongs to, whatever CPU runs. */
TRACE_EVENT(rivet_cq_event,
	TP_PROTO(u32 cpu),
	TP_ARGS(cpu),
	TP_STRUCT__entry(
		__field(u32, cpu)
	),
	TP_fast_assign(
		__entry->cpu = cpu;
	),
	TP_printk("cpu=%u", __entry->cpu)
);

TRACE_EVENT(rivet_kick,
	TP_PROTO(u32 cpu, bool remote),
	TP_ARGS(cpu, remote),
	TP_STRUCT__entry(
		__field(u32, cpu)
		__field(bool, remote)
	),
	TP_fast_assign(
		__entry->cpu = cpu;
		__entry->remote = remote;
	),
	TP_printk("cpu=%u remote=%d", __entry->cpu, __entry->remote)
);

TRACE_EVENT(rivet_poll,
	TP_PROTO(u32 cpu, u32 found),
	TP_ARGS(cpu, found),
	TP_STRUCT__entry(
		__field(u32, cpu)
		__field(u32, found)
	),
	TP_fast_assign(
		__entry->cpu = cpu;
		__entry->found = found;
	),
	TP_printk("cpu=%u found=%u", __entry->cpu, __entry->found)
);

TRACE_EVENT(rivet_mode,
	TP_PROTO(u32 cpu, bool thread, u32 mode),
	TP_ARGS(cpu, thread, mode),
	TP_STRUCT__entry(
		__field(u32, cpu)
		__field(u32, mode)
		__field(bool, thread)
	),
	TP_fast_assign(
		__entry->cpu = cpu;
		__entry->mode = mode;
		__entry->thread = thread;
	),
	TP_printk("cpu=%u %s %s", __entry->cpu, __entry->thread ? "thread" : "softirq",
		  __print_symbolic(__entry->mode,
				   { 0, "interrupt" }, { 1, "coalesce" }, { 2, "busy" }))
);

TRACE_EVENT(rivet_arm,
	TP_PROTO(u32 cpu, bool missed),
	TP_ARGS(cpu, missed),
	TP_STRUCT__entry(
		__field(u32, cpu)
		__field(bool, missed)
	),
	TP_fast_assign(
		__entry->cpu = cpu;
		__entry->missed = missed;
	),
	TP_printk("cpu=%u missed=%d", __entry->cpu, __entry->missed)
);

DECLARE_EVENT_CLASS(rivet_mr,
	TP_PROTO(u32 key, u64 bytes),
	TP_ARGS(key, bytes),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u32, key)
	),
	TP_fast_assign(
		__entry->key = key;
		__entry->bytes = bytes;
	),
	TP_printk("key=%#x bytes=%llu", __entry->key, __entry->bytes)
);

#define DEFINE_RIVET_MR_EVENT(name) \
DEFINE_EVENT(rivet_mr, name, TP_PROTO(u32 key, u64 bytes), TP_ARGS(key, bytes))

DEFINE_RIVET_MR_EVENT(rivet_mr_hit);
DEFINE_RIVET_MR_EVENT(rivet_mr_miss);
DEFINE_RIVET_MR_EVENT(rivet_mr_register);
DEFINE_RIVET_MR_EVENT(rivet_mr_invalidate);
DEFINE_RIVET_MR_EVENT(rivet_mr_evict);

TRACE_EVENT(rivet_lock_wait,
	TP_PROTO(u64 ns),
	TP_ARGS(ns),
	TP_STRUCT__entry(
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->ns = ns;
	),
	TP_printk("ns=%llu", __entry->ns)
);

TRACE_EVENT(rivet_qp,
	TP_PROTO(u32 qp, u32 number, u32 state),
	TP_ARGS(qp, number, state),
	TP_STRUCT__entry(
		__field(u32, qp)
		__field(u32, number)
		__field(u32, state)
	),
	TP_fast_assign(
		__entry->qp = qp;
		__entry->number = number;
		__entry->state = state;
	),
	TP_printk("qp=%u number=%u %s", __entry->qp, __entry->number,
		  __print_symbolic(__entry->state,
				   { 0, "made" }, { 1, "failed" }, { 2, "ending" }, { 3, "gone" }))
);

TRACE_EVENT(rivet_cm,
	TP_PROTO(u64 id, u32 event, s32 status),
	TP_ARGS(id, event, status),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u32, event)
		__field(s32, status)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->event = event;
		__entry->status = status;
	),
	TP_printk("id=%llx %s status=%d", __entry->id, rdma_show_cm_event(__entry->event),
		  __entry->status)
);

#endif /* _TRACE_RIVET_H */

#include <trace/define_trace.h>
