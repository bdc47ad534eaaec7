// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use super::Device;
use crate::sys;
use core::ptr::NonNull;
use kernel::{error::from_err_ptr, prelude::*, sync::Arc};

/// A protection domain: QPs, regions and mappings of one domain can be used together, and nothing
/// of another domain with them. It is the unit of trust: rkeys are checked against the PD only, so
/// peers that must not reach each other's memory get PDs of their own.
///
/// # Invariants
///
/// * `raw` is a PD of `device` that nobody else frees.
/// * `spare` is a region of it that nobody else deregisters, and that is never registered.
pub(crate) struct Pd {
    raw: NonNull<sys::ib_pd>,
    /// On a device that [registers twice](super::caps::Caps::registers_twice), which has
    /// registrations: for [`super::Members::settle`].
    spare: Option<NonNull<sys::ib_mr>>,
    device: Arc<Device>,
}

// SAFETY: The C object may be used from any thread.
unsafe impl Send for Pd {}
// SAFETY: `&Pd` offers reading of fields that never change, and calls that the core locks.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a PD. Sleeps.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: The device is registered (invariant of `Device`); the name is static.
        let pd = from_err_ptr(unsafe {
            sys::__ib_alloc_pd(device.as_raw(), 0, c"rivet".as_char_ptr())
        })?;
        let mut pd = Self {
            // INVARIANT: Just allocated for us. There is no spare region.
            raw: NonNull::new(pd).ok_or(ENOMEM)?,
            spare: None,
            device: device.clone(),
        };
        let caps = device.caps();
        if caps.registers_twice && caps.mem_mgt {
            // SAFETY: The PD is valid.
            let spare = from_err_ptr(unsafe {
                sys::ib_alloc_mr(pd.as_raw(), sys::ib_mr_type_IB_MR_TYPE_MEM_REG, 1)
            })?;
            // INVARIANT: Just allocated for us; nobody is given more than its key.
            pd.spare = NonNull::new(spare);
        }
        Ok(Arc::new(pd, GFP_KERNEL)?)
    }

    /// The key of the spare region, if there is one: what it names is not valid.
    pub(super) fn spare_key(&self) -> Option<u32> {
        // SAFETY: The region is valid (type invariant), and its key never changes.
        self.spare.map(|spare| unsafe { spare.as_ref().lkey })
    }

    pub(super) fn as_raw(&self) -> *mut sys::ib_pd {
        self.raw.as_ptr()
    }

    /// The device that it is on.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The lkey with which local work requests name memory by its DMA address.
    pub(super) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: The PD is valid (type invariant) and the field never changes.
        unsafe { self.raw.as_ref().local_dma_lkey }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if let Some(spare) = self.spare {
            // SAFETY: The region is ours (type invariant); QPs, whose work requests name it, held a
            // reference to this object and are gone.
            let ret = unsafe { sys::ib_dereg_mr_user(spare.as_ptr(), core::ptr::null_mut()) };
            if ret != 0 {
                pr_err!("a spare memory region could not be deregistered: error {ret}\n");
            }
        }
        // SAFETY: The PD is ours (type invariant); whatever was made in it held a reference to
        // this object and is gone.
        let ret = unsafe { sys::ib_dealloc_pd_user(self.as_raw(), core::ptr::null_mut()) };
        if ret != 0 {
            pr_err!("a PD was still in use: error {ret}\n");
        }
    }
}
