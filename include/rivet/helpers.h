/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Inline functions and macros of the kernel as functions that Rust can call.
 * Each does what the function of the same name without the prefix does; the
 * few that do more say so.
 */
#ifndef RIVET_HELPERS_H
#define RIVET_HELPERS_H

#include <linux/atomic.h>
#include <linux/configfs.h>
#include <linux/dim.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

int rivet_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
		       const struct ib_send_wr **bad_wr);
int rivet_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad_wr);
int rivet_ib_post_srq_recv(struct ib_srq *srq, const struct ib_recv_wr *wr,
			   const struct ib_recv_wr **bad_wr);
int rivet_ib_poll_cq(struct ib_cq *cq, int num_entries, struct ib_wc *wc);
int rivet_ib_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags);

u64 rivet_ib_dma_map_single(struct ib_device *dev, void *addr, size_t size,
			    enum dma_data_direction dir);
int rivet_ib_dma_mapping_error(struct ib_device *dev, u64 addr);
void rivet_ib_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
			       enum dma_data_direction dir);
void rivet_ib_dma_sync_single_for_cpu(struct ib_device *dev, u64 addr,
				      size_t size,
				      enum dma_data_direction dir);
void rivet_ib_dma_sync_single_for_device(struct ib_device *dev, u64 addr,
					 size_t size,
					 enum dma_data_direction dir);
int rivet_ib_dma_map_sg(struct ib_device *dev, struct scatterlist *sg,
			int nents, enum dma_data_direction dir);
void rivet_ib_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg,
			   int nents, enum dma_data_direction dir);
/* dma_sync_sg_*() for the device's DMA device. */
void rivet_ib_dma_sync_sg_for_cpu(struct ib_device *dev,
				  struct scatterlist *sg, int nents,
				  enum dma_data_direction dir);
void rivet_ib_dma_sync_sg_for_device(struct ib_device *dev,
				     struct scatterlist *sg, int nents,
				     enum dma_data_direction dir);
unsigned int rivet_ib_dma_max_seg_size(struct ib_device *dev);
void rivet_sg_set_buf(struct scatterlist *sg, const void *buf,
		      unsigned int size);
u64 rivet_sg_dma_address(const struct scatterlist *sg);
unsigned int rivet_sg_dma_len(const struct scatterlist *sg);
/* Of the page of an address in the linear map. */
void rivet_get_page(const void *addr);
void rivet_put_page(const void *addr);
/*
 * A reference to the page of an address in the linear map, which its owner keeps
 * meanwhile. False for a page that no reference keeps (slab, what is frozen), that
 * is never freed by the last one (reserved), or whose owner waits for that (DAX).
 */
bool rivet_try_get_page(const void *addr);
/* memcpy() and memmove(), which the compiler of the caller does not see into. */
void rivet_copy(void *to, const void *from, size_t size);
void rivet_move(void *to, const void *from, size_t size);
/* memset() to zero, likewise. */
void rivet_clear(void *to, size_t size);
/* Whether the streaming DMA API may be given this range of kernel memory. */
bool rivet_can_dma_map(const void *addr, size_t size);

void rivet_ib_update_fast_reg_key(struct ib_mr *mr, u8 newkey);
/*
 * Describe one mapped, physically contiguous range to the region; returns
 * what ib_map_mr_sg() returns.
 */
int rivet_ib_map_mr_single(struct ib_mr *mr, void *addr, u64 dma, size_t size);

/* Where the page of an address in the linear map is. */
int rivet_node_of(const void *addr);

/* The device's name at this moment; buf holds IB_DEVICE_NAME_MAX bytes. */
void rivet_ib_device_name(struct ib_device *dev, char *buf);
int rivet_ibdev_to_node(struct ib_device *dev);
int rivet_ib_mtu_enum_to_int(enum ib_mtu mtu);
bool rivet_rdma_cap_roce(struct ib_device *dev, u32 port);
bool rivet_rdma_cap_iwarp(struct ib_device *dev, u32 port);

/* A referenced network namespace: that of the calling task. */
struct net *rivet_get_current_net(void);
void rivet_put_net(struct net *net);
/* rdma_create_id() without its macro; the caller's name is the module's. */
struct rdma_cm_id *rivet_rdma_create_id(struct net *net,
					rdma_cm_event_handler handler,
					void *context,
					enum rdma_ucm_port_space ps,
					enum ib_qp_type qp_type);
/* rdma_accept() from outside of the event handler. */
int rivet_rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param);
/*
 * Parse an IPv4 or IPv6 address (an IPv6 link-local one may end in
 * %interface, looked up in net).
 */
int rivet_parse_addr(struct net *net, const char *host, u16 port,
		     struct sockaddr_storage *out);

/* The workqueue on which CM ids end that must not be waited for. */
struct workqueue_struct *rivet_alloc_reaper(void);
void rivet_queue_doomed(struct workqueue_struct *queue,
			struct work_struct *work, work_func_t func);
/* Whether this task runs work of some workqueue. */
bool rivet_in_worker(void);

/* A node that is not there means "anywhere near the caller". */
struct page *rivet_alloc_pages_node(int node, gfp_t gfp, unsigned int order);
void rivet_free_pages(struct page *page, unsigned int order);
void *rivet_page_address(struct page *page);

/*
 * An event that one side raises from any context and the other waits for.
 * Raising it twice before the wait is the same as raising it once.
 */
struct rivet_event {
	atomic_t raised;
	wait_queue_head_t wq;
};

void rivet_event_init(struct rivet_event *event);
void rivet_event_raise(struct rivet_event *event);
/* Wait for and take the event; 0 when jiffies went by without it. */
long rivet_event_wait(struct rivet_event *event, long jiffies);
/* The same for ns, and whether it came. */
bool rivet_event_wait_ns(struct rivet_event *event, u64 ns);
/* Take the event without waiting. */
bool rivet_event_take(struct rivet_event *event);
/* rivet_event_wait(), but ended by a signal with -ERESTARTSYS. */
long rivet_event_wait_interruptible(struct rivet_event *event, long jiffies);

/* Work in a CPU's softirq, at once or after a time. */
struct rivet_bottom {
	struct tasklet_struct tasklet;
	/* Schedules it: on another CPU, out of a task, after a time. */
	struct work_struct work;
	struct irq_work interrupt;
	struct hrtimer timer;
	unsigned int cpu;
	bool ended;
};

void rivet_bottom_init(struct rivet_bottom *bottom,
		       void (*func)(struct tasklet_struct *tasklet));
/* Returns whether it was another CPU's; if cpu is not online, it is this one's. */
bool rivet_bottom_kick(struct rivet_bottom *bottom, unsigned int cpu);
void rivet_bottom_kick_after(struct rivet_bottom *bottom, unsigned int cpu,
			     u64 ns);
/* Waits until nothing runs any more, and nothing will. */
void rivet_bottom_end(struct rivet_bottom *bottom);

/* An instance of DIM for RDMA. */
struct rivet_dim {
	struct dim dim;
	/* Of what it measures. */
	spinlock_t lock;
};

void rivet_dim_init(struct rivet_dim *dim, work_func_t func);
/*
 * rdma_dim(), unless another CPU is at it; anew: after what was measured so
 * far has been forgotten.
 */
void rivet_dim_sample(struct rivet_dim *dim, u64 completions, bool anew);
/* Queue the work, as DIM itself does when it changes the profile. */
void rivet_dim_kick(struct rivet_dim *dim);
unsigned int rivet_dim_profile(struct rivet_dim *dim);
struct rivet_dim *rivet_dim_of(struct work_struct *work);
/* The work is done: DIM may measure again. */
void rivet_dim_applied(struct rivet_dim *dim);
/* Waits until the work does not run any more, and never will. */
void rivet_dim_end(struct rivet_dim *dim);

unsigned long rivet_totalram_pages(void);
unsigned int rivet_memalloc_noio_save(void);
void rivet_memalloc_noio_restore(unsigned int flags);

/* False too for numbers that there cannot be. */
bool rivet_cpu_online(unsigned int cpu);
bool rivet_node_online(unsigned int node);

void rivet_configfs_add_default_group(struct config_group *new_group,
				      struct config_group *group);

int rivet_cpu_to_node(unsigned int cpu);
/* Move the calling task to cpu for good, if that is online. */
void rivet_stay_on(unsigned int cpu);
/* Move it to the CPUs of node, if one of these is online; and let it go. */
bool rivet_stay_near(int node);
void rivet_stay_anywhere(void);

/* Give the CPU to who has been chosen for it, now or lazily. */
void rivet_resched(void);
/* The same, and to any other task that waits for it. */
void rivet_yield(void);

#endif
