// SPDX-License-Identifier: GPL-2.0
#include <linux/configfs.h>
#include <linux/cpumask.h>
#include <linux/cpu.h>
#include <linux/dim.h>
#include <linux/dma-mapping.h>
#include <linux/hrtimer.h>
#include <linux/inet.h>
#include <linux/interrupt.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/nsproxy.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/stat.h>
#include <linux/topology.h>
#include <net/net_namespace.h>
#include <rivet/helpers.h>

int rivet_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
		       const struct ib_send_wr **bad_wr)
{
	return ib_post_send(qp, wr, bad_wr);
}

int rivet_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad_wr)
{
	return ib_post_recv(qp, wr, bad_wr);
}

int rivet_ib_post_srq_recv(struct ib_srq *srq, const struct ib_recv_wr *wr,
			   const struct ib_recv_wr **bad_wr)
{
	return ib_post_srq_recv(srq, wr, bad_wr);
}

int rivet_ib_poll_cq(struct ib_cq *cq, int num_entries, struct ib_wc *wc)
{
	return ib_poll_cq(cq, num_entries, wc);
}

int rivet_ib_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	return ib_req_notify_cq(cq, flags);
}

u64 rivet_ib_dma_map_single(struct ib_device *dev, void *addr, size_t size,
			    enum dma_data_direction dir)
{
	return ib_dma_map_single(dev, addr, size, dir);
}

int rivet_ib_dma_mapping_error(struct ib_device *dev, u64 addr)
{
	return ib_dma_mapping_error(dev, addr);
}

void rivet_ib_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
			       enum dma_data_direction dir)
{
	ib_dma_unmap_single(dev, addr, size, dir);
}

void rivet_ib_dma_sync_single_for_cpu(struct ib_device *dev, u64 addr,
				      size_t size,
				      enum dma_data_direction dir)
{
	ib_dma_sync_single_for_cpu(dev, addr, size, dir);
}

void rivet_ib_dma_sync_single_for_device(struct ib_device *dev, u64 addr,
					 size_t size,
					 enum dma_data_direction dir)
{
	ib_dma_sync_single_for_device(dev, addr, size, dir);
}

bool rivet_can_dma_map(const void *addr, size_t size)
{
	return size && !is_vmalloc_or_module_addr(addr) &&
	       virt_addr_valid(addr) &&
	       virt_addr_valid((const char *)addr + size - 1);
}

int rivet_ib_dma_map_sg(struct ib_device *dev, struct scatterlist *sg,
			int nents, enum dma_data_direction dir)
{
	return ib_dma_map_sg(dev, sg, nents, dir);
}

void rivet_ib_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg,
			   int nents, enum dma_data_direction dir)
{
	ib_dma_unmap_sg(dev, sg, nents, dir);
}

void rivet_ib_dma_sync_sg_for_cpu(struct ib_device *dev,
				  struct scatterlist *sg, int nents,
				  enum dma_data_direction dir)
{
	if (!ib_uses_virt_dma(dev))
		dma_sync_sg_for_cpu(dev->dma_device, sg, nents, dir);
}

void rivet_ib_dma_sync_sg_for_device(struct ib_device *dev,
				     struct scatterlist *sg, int nents,
				     enum dma_data_direction dir)
{
	if (!ib_uses_virt_dma(dev))
		dma_sync_sg_for_device(dev->dma_device, sg, nents, dir);
}

unsigned int rivet_ib_dma_max_seg_size(struct ib_device *dev)
{
	return ib_dma_max_seg_size(dev);
}

void rivet_sg_set_buf(struct scatterlist *sg, const void *buf,
		      unsigned int size)
{
	sg_set_buf(sg, buf, size);
}

u64 rivet_sg_dma_address(const struct scatterlist *sg)
{
	return sg_dma_address(sg);
}

unsigned int rivet_sg_dma_len(const struct scatterlist *sg)
{
	return sg_dma_len(sg);
}

void rivet_get_page(const void *addr)
{
	get_page(virt_to_page(addr));
}

void rivet_put_page(const void *addr)
{
	put_page(virt_to_page(addr));
}

bool rivet_try_get_page(const void *addr)
{
	struct page *page = virt_to_page(addr);
	struct folio *folio = page_folio(page);

	if (PageReserved(page) || is_zone_device_page(page) ||
	    folio_test_slab(folio) || folio_test_large_kmalloc(folio))
		return false;
	return folio_try_get(folio);
}

int rivet_node_of(const void *addr)
{
	return page_to_nid(virt_to_page(addr));
}

void rivet_copy(void *to, const void *from, size_t size)
{
	memcpy(to, from, size);
}

void rivet_move(void *to, const void *from, size_t size)
{
	memmove(to, from, size);
}

void rivet_clear(void *to, size_t size)
{
	memset(to, 0, size);
}

void rivet_ib_update_fast_reg_key(struct ib_mr *mr, u8 newkey)
{
	ib_update_fast_reg_key(mr, newkey);
}

int rivet_ib_map_mr_single(struct ib_mr *mr, void *addr, u64 dma, size_t size)
{
	struct scatterlist sg;

	sg_init_one(&sg, addr, size);
	sg_dma_address(&sg) = dma;
	sg_dma_len(&sg) = size;
	return ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE);
}

void rivet_ib_device_name(struct ib_device *dev, char *buf)
{
	/* Not dev_name(): its memory goes when the device is renamed. */
	strscpy(buf, dev->name, IB_DEVICE_NAME_MAX);
}

int rivet_ibdev_to_node(struct ib_device *dev)
{
	return ibdev_to_node(dev);
}

int rivet_ib_mtu_enum_to_int(enum ib_mtu mtu)
{
	return ib_mtu_enum_to_int(mtu);
}

bool rivet_rdma_cap_roce(struct ib_device *dev, u32 port)
{
	return rdma_protocol_roce(dev, port);
}

bool rivet_rdma_cap_iwarp(struct ib_device *dev, u32 port)
{
	return rdma_protocol_iwarp(dev, port);
}

struct net *rivet_get_current_net(void)
{
	/* A task that exits has none any more. */
	return current->nsproxy ? get_net(current->nsproxy->net_ns) : NULL;
}

void rivet_put_net(struct net *net)
{
	put_net(net);
}

struct rdma_cm_id *rivet_rdma_create_id(struct net *net,
					rdma_cm_event_handler handler,
					void *context,
					enum rdma_ucm_port_space ps,
					enum ib_qp_type qp_type)
{
	return rdma_create_id(net, handler, context, ps, qp_type);
}

int rivet_rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	int ret;

	rdma_lock_handler(id);
	ret = rdma_accept(id, param);
	rdma_unlock_handler(id);
	return ret;
}

int rivet_parse_addr(struct net *net, const char *host, u16 port,
		     struct sockaddr_storage *out)
{
	char service[6];

	snprintf(service, sizeof(service), "%u", port);
	return inet_pton_with_scope(net, AF_UNSPEC, host, service, out);
}

struct workqueue_struct *rivet_alloc_reaper(void)
{
	return alloc_workqueue("rivet_reaper", WQ_UNBOUND, 0);
}

void rivet_queue_doomed(struct workqueue_struct *queue,
			struct work_struct *work, work_func_t func)
{
	INIT_WORK(work, func);
	queue_work(queue, work);
}

bool rivet_in_worker(void)
{
	return current->flags & PF_WQ_WORKER;
}

struct page *rivet_alloc_pages_node(int node, gfp_t gfp, unsigned int order)
{
	if (node < 0 || node >= MAX_NUMNODES || !node_online(node))
		node = NUMA_NO_NODE;
	return alloc_pages_node(node, gfp, order);
}

void rivet_free_pages(struct page *page, unsigned int order)
{
	__free_pages(page, order);
}

void *rivet_page_address(struct page *page)
{
	return page_address(page);
}

void rivet_event_init(struct rivet_event *event)
{
	atomic_set(&event->raised, 0);
	init_waitqueue_head(&event->wq);
}

void rivet_event_raise(struct rivet_event *event)
{
	/* The exchange orders the store before the look at the queue. */
	if (!atomic_xchg(&event->raised, 1) && waitqueue_active(&event->wq))
		wake_up(&event->wq);
}

long rivet_event_wait(struct rivet_event *event, long jiffies)
{
	return wait_event_idle_timeout(event->wq,
				       atomic_xchg(&event->raised, 0),
				       jiffies);
}

bool rivet_event_wait_ns(struct rivet_event *event, u64 ns)
{
	/* Not the macro without underscores: it would count as load. */
	return !__wait_event_hrtimeout(event->wq,
				       atomic_xchg(&event->raised, 0),
				       ns_to_ktime(ns), TASK_IDLE);
}

bool rivet_event_take(struct rivet_event *event)
{
	return atomic_read(&event->raised) && atomic_xchg(&event->raised, 0);
}

long rivet_event_wait_interruptible(struct rivet_event *event, long jiffies)
{
	return wait_event_interruptible_timeout(event->wq,
						atomic_xchg(&event->raised, 0),
						jiffies);
}

unsigned long rivet_totalram_pages(void)
{
	return totalram_pages();
}

bool rivet_cpu_online(unsigned int cpu)
{
	return cpu < nr_cpu_ids && cpu_online(cpu);
}

bool rivet_node_online(unsigned int node)
{
	return node < MAX_NUMNODES && node_online(node);
}

void rivet_configfs_add_default_group(struct config_group *new_group,
				      struct config_group *group)
{
	configfs_add_default_group(new_group, group);
}

void rivet_resched(void)
{
	might_sleep();
	if (need_resched() || test_thread_flag(TIF_NEED_RESCHED_LAZY))
		schedule();
}

void rivet_yield(void)
{
	might_sleep();
	if (!single_task_running())
		yield();
	else
		rivet_resched();
}

static enum hrtimer_restart rivet_bottom_timer(struct hrtimer *timer)
{
	struct rivet_bottom *bottom = container_of(timer, struct rivet_bottom,
						   timer);

	rivet_bottom_kick(bottom, READ_ONCE(bottom->cpu));
	return HRTIMER_NORESTART;
}

static void rivet_bottom_interrupt(struct irq_work *interrupt)
{
	struct rivet_bottom *bottom = container_of(interrupt, struct rivet_bottom,
						   interrupt);

	tasklet_hi_schedule(&bottom->tasklet);
}

static void rivet_bottom_work(struct work_struct *work)
{
	struct rivet_bottom *bottom = container_of(work, struct rivet_bottom,
						   work);

	/* This softirq runs tasklets next. */
	tasklet_hi_schedule(&bottom->tasklet);
}

void rivet_bottom_init(struct rivet_bottom *bottom,
		       void (*func)(struct tasklet_struct *tasklet))
{
	tasklet_setup(&bottom->tasklet, func);
	INIT_WORK(&bottom->work, rivet_bottom_work);
	init_irq_work(&bottom->interrupt, rivet_bottom_interrupt);
	hrtimer_setup(&bottom->timer, rivet_bottom_timer, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL);
	bottom->cpu = 0;
	bottom->ended = false;
}

bool rivet_bottom_kick(struct rivet_bottom *bottom, unsigned int cpu)
{
	unsigned long flags;
	bool remote;

	if (unlikely(READ_ONCE(bottom->ended)))
		return false;
	/* A CPU does not go offline under who has interrupts off. */
	local_irq_save(flags);
	if (!rivet_cpu_online(cpu))
		cpu = smp_processor_id();
	remote = cpu != smp_processor_id();
	/*
	 * A softirq that a task raises waits for ksoftirqd to have its turn,
	 * one that an interrupt raises runs at that one's end.
	 */
	if (remote)
		queue_work_on(cpu, system_bh_highpri_wq, &bottom->work);
	else if (in_interrupt() || !arch_irq_work_has_interrupt())
		tasklet_hi_schedule(&bottom->tasklet);
	else
		irq_work_queue(&bottom->interrupt);
	local_irq_restore(flags);
	return remote;
}

void rivet_bottom_kick_after(struct rivet_bottom *bottom, unsigned int cpu,
			     u64 ns)
{
	if (unlikely(READ_ONCE(bottom->ended)))
		return;
	WRITE_ONCE(bottom->cpu, cpu);
	hrtimer_start(&bottom->timer, ns_to_ktime(ns), HRTIMER_MODE_REL);
}

void rivet_bottom_end(struct rivet_bottom *bottom)
{
	WRITE_ONCE(bottom->ended, true);
	/*
	 * Waits for who has not seen that, in the order in which each can start
	 * those below it. What the tasklet does last starts nothing any more.
	 */
	tasklet_kill(&bottom->tasklet);
	hrtimer_cancel(&bottom->timer);
	irq_work_sync(&bottom->interrupt);
	disable_work_sync(&bottom->work);
	tasklet_kill(&bottom->tasklet);
}

void rivet_dim_init(struct rivet_dim *dim, work_func_t func)
{
	memset(&dim->dim, 0, sizeof(dim->dim));
	dim->dim.state = DIM_START_MEASURE;
	dim->dim.tune_state = DIM_GOING_RIGHT;
	dim->dim.profile_ix = RDMA_DIM_START_PROFILE;
	INIT_WORK(&dim->dim.work, func);
	spin_lock_init(&dim->lock);
}

void rivet_dim_sample(struct rivet_dim *dim, u64 completions, bool anew)
{
	/* Who comes second does not wait: DIM can do without an event. */
	if (!spin_trylock(&dim->lock))
		return;
	if (anew && dim->dim.state == DIM_MEASURE_IN_PROGRESS)
		dim->dim.state = DIM_START_MEASURE;
	rdma_dim(&dim->dim, completions);
	spin_unlock(&dim->lock);
}

void rivet_dim_kick(struct rivet_dim *dim)
{
	schedule_work(&dim->dim.work);
}

unsigned int rivet_dim_profile(struct rivet_dim *dim)
{
	return READ_ONCE(dim->dim.profile_ix);
}

struct rivet_dim *rivet_dim_of(struct work_struct *work)
{
	return container_of(work, struct rivet_dim, dim.work);
}

void rivet_dim_applied(struct rivet_dim *dim)
{
	/* Against samples; a measurement that this ends begins again. */
	spin_lock_bh(&dim->lock);
	dim->dim.state = DIM_START_MEASURE;
	spin_unlock_bh(&dim->lock);
}

void rivet_dim_end(struct rivet_dim *dim)
{
	disable_work_sync(&dim->dim.work);
}

int rivet_cpu_to_node(unsigned int cpu)
{
	return cpu_to_node(cpu < nr_cpu_ids && cpu_possible(cpu) ? cpu : 0);
}

void rivet_stay_on(unsigned int cpu)
{
	if (raw_smp_processor_id() == cpu && current->nr_cpus_allowed == 1)
		return;
	if (cpu >= nr_cpu_ids || !cpu_online(cpu))
		return;
	/* Who was sent away may still have the mask, which then moves nobody. */
	if (current->nr_cpus_allowed == 1)
		set_cpus_allowed_ptr(current, cpu_possible_mask);
	/* It may just have gone: then the next time. */
	set_cpus_allowed_ptr(current, cpumask_of(cpu));
}

bool rivet_stay_near(int node)
{
	const struct cpumask *cpus;

	if (node < 0 || node >= MAX_NUMNODES || !node_online(node))
		return false;
	cpus = cpumask_of_node(node);
	/* Of memory that has no CPU nobody is near. */
	if (!cpumask_intersects(cpus, cpu_online_mask))
		return false;
	return !set_cpus_allowed_ptr(current, cpus);
}

void rivet_stay_anywhere(void)
{
	set_cpus_allowed_ptr(current, cpu_possible_mask);
}

unsigned int rivet_memalloc_noio_save(void)
{
	return memalloc_noio_save();
}

void rivet_memalloc_noio_restore(unsigned int flags)
{
	memalloc_noio_restore(flags);
}
