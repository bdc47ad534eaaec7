// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/rivet/nvme`: what the NVMe host's controllers are connected by.

use super::{
    attribute::{parse_number, refuse, show},
    policies::Policies,
    Root,
};
use crate::{
    engine::policy::InUse, kapi::configfs::DefaultGroup, nvme, perf::failure::Failure,
    value::Bounds,
};
use core::fmt::Write;
use kernel::{
    configfs::{configfs_attrs, AttributeOperations, Group, GroupOperations, Subsystem},
    debugfs::Dir,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
};

/// The directory, with the host in it.
pub(super) struct Nvme {
    _directory: DefaultGroup<Root, NvmeDir>,
}

impl Nvme {
    /// Starts the host, and puts the directory below `root`; `debug` is Rivet's directory in debugfs.
    /// Sleeps.
    pub(super) fn register(
        root: Arc<Subsystem<Root>>,
        policies: Policies,
        debug: &Dir,
    ) -> Result<Self> {
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
                claim_rdma: 1,
            ],
        };
        let host = nvme::start(choice.clone(), debug.subdir(c"nvme"))?;
        let dir = NvmeDir { host, choice };
        let group = Group::new(CString::try_from(c"nvme")?, item_type, Ok(dir));
        Ok(Self {
            _directory: DefaultGroup::register(root, group, KVec::new())?,
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
pub(super) struct NvmeDir {
    host: nvme::Service,
    choice: Arc<Choice>,
}

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
        let name = data.choice.name.lock();
        let text = name.to_str().unwrap_or("?");
        show(page, |out| Ok(writeln!(out, "{text}")?))
    }

    fn store(data: &NvmeDir, value: &[u8]) -> Result {
        let checked = data.choice.policies.check(value);
        let name = checked.map_err(|failure| refuse("nvme", c"host", "host_policy", failure))?;
        *data.choice.name.lock() = name;
        Ok(())
    }
}

#[vtable]
impl AttributeOperations<1> for NvmeDir {
    type Data = NvmeDir;

    fn show(data: &NvmeDir, page: &mut [u8; PAGE_SIZE]) -> Result<usize> {
        let claimed = u8::from(data.host.has_rdma());
        show(page, |out| Ok(writeln!(out, "{claimed}")?))
    }

    fn store(data: &NvmeDir, value: &[u8]) -> Result {
        let refuse = |failure| refuse("nvme", c"host", "claim_rdma", failure);
        let claim = parse_number(value, Bounds { min: 0, max: 1 }).map_err(refuse)? == 1;
        data.host.claim_rdma(claim).map_err(|e| {
            refuse(match e {
                e if e == EEXIST => Failure::new(
                    e,
                    fmt!("nvme-rdma is loaded and has that name; it has to be removed before"),
                ),
                e => e.into(),
            })
        })
    }
}
