// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/rivet/nvme`: what the NVMe host's controllers are connected by.

use super::{
    attribute::{refuse, show},
    policies::Policies,
    Root,
};
use crate::{engine::policy::InUse, kapi::configfs::DefaultGroup, nvme};
use core::fmt::Write;
use kernel::{
    configfs::{configfs_attrs, AttributeOperations, Group, GroupOperations, Subsystem},
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
};

/// The directory, and the host. Fields are dropped in order.
pub(super) struct Nvme {
    _host: nvme::Service,
    _directory: DefaultGroup<Root, NvmeDir>,
}

impl Nvme {
    /// Puts the directory below `root`, and starts the host. Sleeps.
    pub(super) fn register(root: Arc<Subsystem<Root>>, policies: Policies) -> Result<Self> {
        let choice = Arc::pin_init(
            try_pin_init!(Choice {
                policies,
                name <- new_mutex!(CString::try_from(c"default")?),
            }? Error),
            GFP_KERNEL,
        )?;
        let item_type = configfs_attrs! {
            container: Group<NvmeDir>,
            data: NvmeDir,
            attributes: [
                host_policy: 0,
            ],
        };
        let dir = NvmeDir(choice.clone());
        let group = Group::new(CString::try_from(c"nvme")?, item_type, Ok(dir));
        let directory = DefaultGroup::register(root, group, KVec::new())?;
        Ok(Self {
            _host: nvme::start(choice)?,
            _directory: directory,
        })
    }
}

/// The policy that controllers are connected by.
#[pin_data]
struct Choice {
    policies: Policies,
    #[pin]
    name: Mutex<CString>,
}

impl nvme::Policies for Choice {
    fn take(&self) -> Result<InUse> {
        let name = CString::try_from(&**self.name.lock())?;
        let taken = self.policies.take(&name);
        taken.map_err(|failure| refuse("nvme", c"host", "host_policy", failure))
    }
}

/// Data of the directory.
pub(super) struct NvmeDir(Arc<Choice>);

/// What can be made in it: nothing.
pub(super) struct Nothing;

#[vtable]
impl GroupOperations for NvmeDir {
    type Child = Nothing;

    fn make_group(&self, _name: &CStr) -> Result<impl PinInit<Group<Nothing>, Error>> {
        Err::<Result<Group<Nothing>>, _>(EPERM)
    }
}

#[vtable]
impl AttributeOperations<0> for NvmeDir {
    type Data = NvmeDir;

    fn show(data: &NvmeDir, page: &mut [u8; PAGE_SIZE]) -> Result<usize> {
        let name = data.0.name.lock();
        let text = name.to_str().unwrap_or("?");
        show(page, |out| Ok(writeln!(out, "{text}")?))
    }

    fn store(data: &NvmeDir, value: &[u8]) -> Result {
        let checked = data.0.policies.check(value);
        let name = checked.map_err(|failure| refuse("nvme", c"host", "host_policy", failure))?;
        *data.0.name.lock() = name;
        Ok(())
    }
}
