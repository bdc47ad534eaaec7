// SPDX-License-Identifier: GPL-2.0
/*
 * Gives an RDMA device a modify_cq that does nothing but remember, as no soft
 * device has one. A module finds it that is loaded after this one and unloaded
 * before it.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static char *device = "rxea";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "whose it is to be");

static int error;
module_param(error, int, 0644);
MODULE_PARM_DESC(error, "what it says, as a negative errno");

static int sleep_ms = 1;
module_param(sleep_ms, int, 0644);
MODULE_PARM_DESC(sleep_ms, "how long it takes");

/* The last is count and usecs in one word. */
static atomic_t calls = ATOMIC_INIT(0);
static unsigned int last, most_count, most_usecs;

static int show_calls(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%d %u %u %u %u\n", atomic_read(&calls),
			  last >> 16, last & 0xffff, most_count, most_usecs);
}

static int reset_calls(const char *val, const struct kernel_param *kp)
{
	atomic_set(&calls, 0);
	last = 0;
	most_count = 0;
	most_usecs = 0;
	return 0;
}

static const struct kernel_param_ops calls_ops = {
	.get = show_calls,
	.set = reset_calls,
};
module_param_cb(calls, &calls_ops, NULL, 0644);
MODULE_PARM_DESC(calls, "how many; count and usecs of the last; the most of each");

static int remember(struct ib_cq *cq, u16 count, u16 usecs)
{
	might_sleep();
	/* So that whoever has to wait for it is seen to. */
	msleep(sleep_ms);
	atomic_inc(&calls);
	if (error)
		return error;
	last = count << 16 | usecs;
	most_count = max_t(unsigned int, most_count, count);
	most_usecs = max_t(unsigned int, most_usecs, usecs);
	return 0;
}

static int add(struct ib_device *dev)
{
	if (strcmp(dev_name(&dev->dev), device))
		return -EOPNOTSUPP;
	dev->ops.modify_cq = remember;
	return 0;
}

static void remove(struct ib_device *dev, void *data)
{
	dev->ops.modify_cq = NULL;
}

static struct ib_client client = {
	.name = "rivet_modify_cq",
	.add = add,
	.remove = remove,
};

static int __init modify_cq_init(void)
{
	return ib_register_client(&client);
}

static void __exit modify_cq_exit(void)
{
	ib_unregister_client(&client);
}

module_init(modify_cq_init);
module_exit(modify_cq_exit);
MODULE_DESCRIPTION("modify_cq for a device that has none");
MODULE_LICENSE("GPL");
