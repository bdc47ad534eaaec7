// SPDX-License-Identifier: GPL-2.0
/*
 * Has an RDMA device say that it has few memory regions, as soft devices have
 * many. A module finds that which is loaded after this one and unloaded before
 * it.
 */
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static char *device = "rxea";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "which");

static int max_mr = 128;
module_param(max_mr, int, 0444);
MODULE_PARM_DESC(max_mr, "how many it says");

static struct ib_client client;

static int add(struct ib_device *dev)
{
	if (strcmp(dev_name(&dev->dev), device))
		return -EOPNOTSUPP;
	ib_set_client_data(dev, &client, (void *)(unsigned long)dev->attrs.max_mr);
	dev->attrs.max_mr = max_mr;
	return 0;
}

static void remove(struct ib_device *dev, void *data)
{
	dev->attrs.max_mr = (unsigned long)data;
}

static struct ib_client client = {
	.name = "rivet_few_regions",
	.add = add,
	.remove = remove,
};

static int __init few_regions_init(void)
{
	return ib_register_client(&client);
}

static void __exit few_regions_exit(void)
{
	ib_unregister_client(&client);
}

module_init(few_regions_init);
module_exit(few_regions_exit);
MODULE_DESCRIPTION("few memory regions on a device that has many");
MODULE_LICENSE("GPL");
