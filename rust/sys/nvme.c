// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/path.h>
#include <rivet/nvme.h>

/* What nvme-fabrics asks for when somebody connects by that transport. */
MODULE_ALIAS("nvme-rivet");

/* Rust alone uses it, but only C's types get into BTF, which scripts/nvme-layout compares. */
static const struct nvmf_transport_ops *rivet_transport_layout __used;

struct rivet_nvme_begun rivet_nvme_begin(struct blk_mq_hw_ctx *hctx,
					 struct request *rq, bool ready)
{
	struct nvme_ctrl *ctrl = nvme_req(rq)->ctrl;
	struct rivet_nvme_begun out = {};

	if (unlikely(!nvme_check_ready(ctrl, rq, ready))) {
		out.status = nvme_fail_nonready_command(ctrl, rq);
		return out;
	}
	out.status = nvme_setup_cmd(hctx->queue->queuedata, rq);
	if (unlikely(out.status))
		return out;
	nvme_start_request(rq);
	out.begun = true;
	return out;
}

bool rivet_nvme_begin_one(struct request *rq, bool ready)
{
	if (!nvme_check_ready(nvme_req(rq)->ctrl, rq, ready) ||
	    nvme_setup_cmd(rq->q->queuedata, rq))
		return false;
	nvme_start_request(rq);
	return true;
}

void rivet_nvme_answer(struct request *rq, u16 status, u64 result)
{
	union nvme_result all = { .u64 = cpu_to_le64(result) };

	if (!nvme_try_complete_req(rq, cpu_to_le16(status), all))
		nvme_complete_rq(rq);
}

void rivet_nvme_abort(struct request *rq)
{
	nvme_req(rq)->status = NVME_SC_HOST_ABORTED_CMD;
	nvme_req(rq)->flags |= NVME_REQ_CANCELLED;
	blk_mq_complete_request(rq);
}

void rivet_rq_walk_begin(struct request *rq, struct rivet_rq_walk *walk)
{
	walk->special = rq->rq_flags & RQF_SPECIAL_PAYLOAD;
	walk->bio = walk->special ? NULL : rq->bio;
	if (walk->bio)
		walk->iter = walk->bio->bi_iter;
}

bool rivet_rq_walk_next(struct request *rq, struct rivet_rq_walk *walk,
			void **start, unsigned int *len)
{
	struct bio_vec vec;

	if (walk->special) {
		walk->special = false;
		*start = bvec_virt(&rq->special_vec);
		*len = rq->special_vec.bv_len;
		return true;
	}
	while (walk->bio) {
		if (!walk->iter.bi_size) {
			walk->bio = walk->bio->bi_next;
			if (walk->bio)
				walk->iter = walk->bio->bi_iter;
			continue;
		}
		vec = mp_bvec_iter_bvec(walk->bio->bi_io_vec, walk->iter);
		bio_advance_iter_single(walk->bio, &walk->iter, vec.bv_len);
		*start = bvec_virt(&vec);
		*len = vec.bv_len;
		return true;
	}
	return false;
}

unsigned int rivet_blk_rq_payload_bytes(struct request *rq)
{
	return blk_rq_payload_bytes(rq);
}

bool rivet_blk_rq_has_data(struct request *rq)
{
	return blk_rq_nr_phys_segments(rq);
}

bool rivet_blk_rq_is_write(struct request *rq)
{
	return rq_data_dir(rq) == WRITE;
}

void rivet_nvme_get_ctrl(struct nvme_ctrl *ctrl)
{
	nvme_get_ctrl(ctrl);
}

void rivet_nvme_put_ctrl(struct nvme_ctrl *ctrl)
{
	nvme_put_ctrl(ctrl);
}

unsigned int rivet_nvmf_nr_io_queues(struct nvmf_ctrl_options *opts)
{
	return nvmf_nr_io_queues(opts);
}

const char *rivet_nvmf_ctrl_subsysnqn(struct nvme_ctrl *ctrl)
{
	return nvmf_ctrl_subsysnqn(ctrl);
}

void rivet_nvme_auth_stop(struct nvme_ctrl *ctrl)
{
	nvme_auth_stop(ctrl);
}

void rivet_nvme_complete_async_event(struct nvme_ctrl *ctrl, u16 status,
				     u64 result)
{
	union nvme_result all = { .u64 = cpu_to_le64(result) };

	nvme_complete_async_event(ctrl, cpu_to_le16(status), &all);
}

void rivet_nvme_init_work(struct work_struct *work, work_func_t func)
{
	INIT_WORK(work, func);
}

void rivet_nvme_init_delayed_work(struct delayed_work *work, work_func_t func)
{
	INIT_DELAYED_WORK(work, func);
}

bool rivet_nvme_queue_work(struct workqueue_struct *wq,
			   struct work_struct *work)
{
	return queue_work(wq, work);
}

bool rivet_nvme_queue_delayed_work(struct workqueue_struct *wq,
				   struct delayed_work *work,
				   unsigned int seconds)
{
	return queue_delayed_work(wq, work, seconds * HZ);
}

void rivet_nvme_count_reconnects(struct nvme_ctrl *ctrl)
{
	atomic_long_add(ctrl->nr_reconnects, &ctrl->acc_reconnects);
	ctrl->nr_reconnects = 0;
}

bool rivet_module_is_loaded(const char *path)
{
	struct path found;

	if (kern_path(path, 0, &found))
		return false;
	path_put(&found);
	return true;
}
