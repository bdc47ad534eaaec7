// SPDX-License-Identifier: GPL-2.0
/*
 * Has CQs of Rivet on an RDMA device fail, in the two ways in which a device
 * says so: by an event, and by an error of poll_cq. A module finds it that is
 * loaded after this one and unloaded before it.
 */
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static char *device = "rxea";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "whose CQs");

static int least;
module_param(least, int, 0644);
MODULE_PARM_DESC(least, "only those with room for so many completions");

static bool polls;
module_param(polls, bool, 0644);
MODULE_PARM_DESC(polls, "whether polling fails");

static atomic_t events = ATOMIC_INIT(0);

static int show_events(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%d\n", atomic_read(&events));
}

static int set_events(const char *val, const struct kernel_param *kp)
{
	int n, ret = kstrtoint(val, 0, &n);

	if (!ret)
		atomic_set(&events, n);
	return ret;
}

static const struct kernel_param_ops events_ops = {
	.get = show_events,
	.set = set_events,
};
module_param_cb(events, &events_ops, NULL, 0644);
MODULE_PARM_DESC(events, "how often one is reported to have failed, when it is armed");

static int (*real_poll)(struct ib_cq *cq, int n, struct ib_wc *wc);
static int (*real_notify)(struct ib_cq *cq, enum ib_cq_notify_flags flags);

static bool is_meant(struct ib_cq *cq)
{
	const char *owner = READ_ONCE(cq->res.kern_name);

	return owner && !strcmp(owner, "rivet") && cq->cqe >= least;
}

static int poll(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	if (READ_ONCE(polls) && is_meant(cq))
		return -EIO;
	return real_poll(cq, n, wc);
}

static int notify(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	struct ib_event event = {
		.device = cq->device,
		.element.cq = cq,
		.event = IB_EVENT_CQ_ERR,
	};

	if (is_meant(cq) && atomic_dec_if_positive(&events) >= 0)
		cq->event_handler(&event, cq->cq_context);
	return real_notify(cq, flags);
}

static int add(struct ib_device *dev)
{
	if (strcmp(dev_name(&dev->dev), device))
		return -EOPNOTSUPP;
	real_poll = dev->ops.poll_cq;
	real_notify = dev->ops.req_notify_cq;
	dev->ops.poll_cq = poll;
	dev->ops.req_notify_cq = notify;
	return 0;
}

static void remove(struct ib_device *dev, void *data)
{
	dev->ops.poll_cq = real_poll;
	dev->ops.req_notify_cq = real_notify;
}

static struct ib_client client = {
	.name = "rivet_fail_cq",
	.add = add,
	.remove = remove,
};

static int __init fail_cq_init(void)
{
	return ib_register_client(&client);
}

static void __exit fail_cq_exit(void)
{
	ib_unregister_client(&client);
}

module_init(fail_cq_init);
module_exit(fail_cq_exit);
MODULE_DESCRIPTION("CQs that fail");
MODULE_LICENSE("GPL");
