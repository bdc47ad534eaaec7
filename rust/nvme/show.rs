// SPDX-License-Identifier: GPL-2.0

//! What debugfs shows of a queue: `rivet/nvme/nvme0/queue1`.

use crate::engine::stats::{LaneStats, PollerStats};
use kernel::{
    debugfs::{Dir, File},
    prelude::*,
    str::CString,
    sync::Arc,
};

/// A queue's counters. They begin anew with each connection.
pub(super) struct View {
    /// Commands that the queue has at a time.
    pub(super) depth: u16,
    pub(super) lane: Arc<LaneStats>,
    /// Of its CPU, with all lanes there; none for a polled queue.
    pub(super) poller: Option<(u32, Arc<PollerStats>)>,
}

/// As long as it lives there is a file.
pub(super) struct Shown {
    _file: Pin<KBox<File<View>>>,
}

impl View {
    /// Puts a file for queue `qid` into `dir`. Sleeps.
    pub(super) fn show(self, dir: &Dir, qid: u16) -> Result<Shown> {
        let name = CString::try_from_fmt(fmt!("queue{qid}"))?;
        let file = dir.read_callback_file(&name, Ok(self), &|view: &View, f| {
            writeln!(f, "depth {}", view.depth)?;
            view.lane.read().write(f)?;
            match &view.poller {
                Some((cpu, stats)) => {
                    writeln!(f, "cpu {cpu}")?;
                    stats.read().write(f)
                }
                None => writeln!(f, "polled 1"),
            }
        });
        Ok(Shown {
            _file: KBox::pin_init::<Error>(file, GFP_KERNEL)?,
        })
    }
}

/// The directory of controller `number`. Sleeps.
pub(super) fn directory(dir: &Dir, number: i32) -> Result<Dir> {
    let name = CString::try_from_fmt(fmt!("nvme{number}"))?;
    Ok(dir.subdir(&name))
}
