/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Input of bindgen: the C interfaces that the module uses and that
 * kernel::bindings does not have.
 */
#ifndef RIVET_BINDINGS_HELPER_H
#define RIVET_BINDINGS_HELPER_H

#include <rdma/ib_verbs.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>
#include <rivet/helpers.h>
#include <trace/events/rivet.h>
#ifdef RIVET_NVME
#include <rivet/nvme.h>
#endif

#endif
