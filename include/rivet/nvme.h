/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Inline functions and macros of blk-mq and of the NVMe core as functions that
 * Rust can call. Each does what the function of the same name without the
 * prefix does; the few that do more say so.
 */
#ifndef RIVET_NVME_H
#define RIVET_NVME_H

#include <linux/blk-mq.h>
#include <linux/nvme.h>
#include <linux/nvme-rdma.h>
#include <linux/workqueue.h>
#include <../drivers/nvme/host/nvme.h>
#include <../drivers/nvme/host/fabrics.h>

/* Those that Rust returns, as bindgen does not see through their casts. */
enum {
	RIVET_BLK_STS_RESOURCE = (__force unsigned int)BLK_STS_RESOURCE,
	RIVET_BLK_STS_IOERR = (__force unsigned int)BLK_STS_IOERR,
};

/* What the core is asked of each request before it goes to a queue. */
struct rivet_nvme_begun {
	/* It has begun; if not, "status" is what queue_rq() has to return. */
	bool begun;
	blk_status_t status;
};

/*
 * nvme_check_ready(), nvme_setup_cmd() and nvme_start_request(), as each
 * transport does at the start of queue_rq(); "ready" is whether the queue is.
 */
struct rivet_nvme_begun rivet_nvme_begin(struct blk_mq_hw_ctx *hctx,
					 struct request *rq, bool ready);
/*
 * The same for one of the requests of queue_rqs(): if it has not begun it stays
 * as it was, for queue_rq().
 */
bool rivet_nvme_begin_one(struct request *rq, bool ready);
/* The end of a request that the controller has answered. */
void rivet_nvme_answer(struct request *rq, u16 status, u64 result);
/* The end of a request that it will not answer any more. */
void rivet_nvme_abort(struct request *rq);

/* Where a walk over the memory of a request is. */
struct rivet_rq_walk {
	struct bio *bio;
	struct bvec_iter iter;
	bool special;
};

void rivet_rq_walk_begin(struct request *rq, struct rivet_rq_walk *walk);
/* The next piece, which is in the linear map; false if there is none. */
bool rivet_rq_walk_next(struct request *rq, struct rivet_rq_walk *walk,
			void **start, unsigned int *len);
unsigned int rivet_blk_rq_payload_bytes(struct request *rq);
bool rivet_blk_rq_has_data(struct request *rq);
bool rivet_blk_rq_is_write(struct request *rq);

void rivet_nvme_get_ctrl(struct nvme_ctrl *ctrl);
void rivet_nvme_put_ctrl(struct nvme_ctrl *ctrl);
unsigned int rivet_nvmf_nr_io_queues(struct nvmf_ctrl_options *opts);
const char *rivet_nvmf_ctrl_subsysnqn(struct nvme_ctrl *ctrl);

void rivet_nvme_auth_stop(struct nvme_ctrl *ctrl);
void rivet_nvme_complete_async_event(struct nvme_ctrl *ctrl, u16 status,
				     u64 result);

void rivet_nvme_init_work(struct work_struct *work, work_func_t func);
void rivet_nvme_init_delayed_work(struct delayed_work *work, work_func_t func);
bool rivet_nvme_queue_work(struct workqueue_struct *wq,
			   struct work_struct *work);
bool rivet_nvme_queue_delayed_work(struct workqueue_struct *wq,
				   struct delayed_work *work,
				   unsigned int seconds);
void rivet_nvme_count_reconnects(struct nvme_ctrl *ctrl);
/* Whether there is such a path, of a module below /sys/module. */
bool rivet_module_is_loaded(const char *path);

#endif
