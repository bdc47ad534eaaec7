// SPDX-License-Identifier: GPL-2.0

//! Paths to a peer, and address handles made of them.

use super::{device::mtu_bytes, Device, Pd};
use crate::sys;
use core::ptr::NonNull;
use kernel::{error::from_err_ptr, prelude::*, sync::Arc};

/// How to reach the peer of a connection: port, addresses, MTU.
///
/// For QPs that are connected by hand ([`super::Qp::connect_uc`]) and for [`Ah`]s.
#[derive(Clone)]
pub(crate) struct Path {
    pub(super) device: Arc<Device>,
    pub(super) attr: sys::rdma_ah_attr,
    pub(super) mtu: sys::ib_mtu,
    pub(super) port: u32,
    pub(super) pkey_index: u16,
}

// SAFETY: Plain data; the only pointer in it (the GID's cache entry) is null, see `Path::new`.
unsafe impl Send for Path {}
// SAFETY: As above.
unsafe impl Sync for Path {}

impl Path {
    /// From the attributes with which the CM would move a connected QP.
    pub(super) fn new(device: Arc<Device>, init: &sys::ib_qp_attr, rtr: &sys::ib_qp_attr) -> Self {
        let mut attr = rtr.ah_attr;
        // The CM lends its reference to the GID's cache entry; without one the core looks the
        // entry up by its index, and takes a reference of its own.
        attr.grh.sgid_attr = core::ptr::null();
        Self {
            device,
            attr,
            mtu: rtr.path_mtu,
            port: init.port_num,
            pkey_index: init.pkey_index,
        }
    }

    /// The path MTU: bytes of payload per packet, and the longest message on UD.
    pub(crate) fn mtu(&self) -> u32 {
        mtu_bytes(self.mtu)
    }

    /// The port of our device that it starts from.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }
}

/// An address handle: the destination of UD messages.
///
/// # Invariants
///
/// `raw` is an address handle of `pd` that nobody else destroys.
pub(crate) struct Ah {
    raw: NonNull<sys::ib_ah>,
    pd: Arc<Pd>,
}

// SAFETY: The C object may be used from any thread.
unsafe impl Send for Ah {}
// SAFETY: `&Ah` offers nothing that changes it.
unsafe impl Sync for Ah {}

impl Ah {
    /// Makes an address handle for the far end of `path`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a path of another device; what the device says.
    pub(crate) fn new(pd: &Arc<Pd>, path: &Path) -> Result<Self> {
        if !Arc::ptr_eq(pd.device(), &path.device) {
            return Err(EINVAL);
        }
        let mut attr = path.attr;
        // SAFETY: The PD is valid and `attr` is a copy of our own.
        let raw = from_err_ptr(unsafe {
            sys::rdma_create_ah(
                pd.as_raw(),
                &mut attr,
                sys::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE,
            )
        })?;
        // INVARIANT: Made just now.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            pd: pd.clone(),
        })
    }

    pub(super) fn as_raw(&self) -> *mut sys::ib_ah {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: The handle is ours (type invariant), and no work request names it any more, as
        // each kept a token that held it.
        let ret = unsafe {
            sys::rdma_destroy_ah_user(
                self.as_raw(),
                sys::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE,
                core::ptr::null_mut(),
            )
        };
        if ret != 0 {
            pr_err!("an address handle could not be destroyed: error {ret}\n");
        }
    }
}
