// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/rivet/perf`: a directory for each end, a file for each setting.

use super::{
    attribute::{not_allowed, parse_number, parse_word, refuse, show},
    policies::Policies,
};
use crate::{
    nvme::fabrics::NQN,
    perf::{
        client::Goal,
        end::{Config, End, DEFAULT_PORT},
        failure::Outcome,
        params::{
            Op, Role, Transport, CONNECTIONS, COUNT, DEPTH, DURATION_MS, NSID, PORT, SGES, SIZE,
            TIMEOUT_MS,
        },
        submit::{BUFFERS, SUBMITTERS},
    },
    value::{text, Bounds, Refusal},
    verbs::{NetNs, SocketAddr},
};
use core::fmt::Write;
use kernel::{
    configfs::{configfs_attrs, AttributeOperations, Group, GroupOperations},
    debugfs::Dir,
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
};

/// Data of the directory that ends are made in.
pub(crate) struct PerfDir {
    policies: Policies,
    /// `rivet/perf` of debugfs, where lanes are shown.
    debug: Dir,
}

/// The group `perf`; `debug` is Rivet's directory in debugfs.
pub(super) fn group(
    policies: Policies,
    debug: &Dir,
) -> Result<impl PinInit<Group<PerfDir>, Error>> {
    let item_type = configfs_attrs! {
        container: Group<PerfDir>,
        data: PerfDir,
        child: Directory,
        attributes: [],
    };
    let name = CString::try_from_fmt(fmt!("perf"))?;
    let debug = debug.subdir(c"perf");
    Ok(Group::new(name, item_type, Ok(PerfDir { policies, debug })))
}

/// An end as a directory.
#[pin_data]
pub(crate) struct Directory {
    #[pin]
    end: End,
    policies: Policies,
}

#[vtable]
impl GroupOperations for PerfDir {
    type Child = Directory;

    fn make_group(&self, name: &CStr) -> Result<impl PinInit<Group<Directory>, Error>> {
        let item_type = configfs_attrs! {
            container: Group<Directory>,
            data: Directory,
            attributes: [
                role: 0,
                address: 1,
                port: 2,
                device: 3,
                transport: 4,
                op: 5,
                size: 6,
                sges: 7,
                depth: 8,
                connections: 9,
                count: 10,
                duration_ms: 11,
                timeout_ms: 12,
                verify: 13,
                policy: 14,
                start: 15,
                stop: 16,
                state: 17,
                error: 18,
                result: 19,
                histogram: 20,
                stats: 21,
                submitters: 22,
                buffers: 23,
                nqn: 24,
                hostnqn: 25,
                nsid: 26,
            ],
        };
        let end = End::new(CString::try_from(name)?, self.debug.clone())?;
        let policies = self.policies.clone();
        let directory = try_pin_init!(Directory { end <- end, policies });
        Ok(Group::new(CString::try_from(name)?, item_type, directory))
    }
}

/// An attribute that sets something.
macro_rules! setting {
    ($id:literal, $name:literal, show: |$config:ident, $out:ident| $show:expr, store: |$end:ident, $value:ident| $store:expr) => {
        setting!($id, $name,
            show: |$config, $out| $show,
            store: |$end, $value, _policies| $store
        );
    };
    ($id:literal, $name:literal, show: |$config:ident, $out:ident| $show:expr, store: |$end:ident, $value:ident, $policies:ident| $store:expr) => {
        #[vtable]
        impl AttributeOperations<$id> for Directory {
            type Data = Directory;

            fn show(data: &Directory, page: &mut [u8; PAGE_SIZE]) -> Result<usize> {
                show(page, |$out| {
                    data.end.with_config(|$config: &Config| $show)?;
                    Ok(())
                })
            }

            fn store(data: &Directory, $value: &[u8]) -> Result {
                let ($end, $policies) = (&data.end, &data.policies);
                let stored: Outcome = (|| $store)();
                stored.map_err(|failure| refuse("perf", &$end.name, $name, failure))
            }
        }
    };
}

/// A setting that is one of some words. A server that has none takes any.
macro_rules! choice {
    ($id:literal, $name:literal, $field:ident, $type:ty, default: |$config:ident| $default:expr) => {
        setting!($id, $name,
            show: |$config, out| match $config.$field {
                Some(value) => writeln!(out, "{value}"),
                None => writeln!(out, "{}", $default),
            },
            store: |end, value| {
                let parsed = parse_word(value, <$type>::ALLOWED, <$type>::parse)?;
                end.change(|config| config.$field = Some(parsed))
            }
        );
    };
}

/// A setting that is a number.
macro_rules! number {
    ($id:literal, $name:literal, $field:ident, $type:ty, $bounds:expr, default: |$config:ident| $default:expr) => {
        setting!($id, $name,
            show: |$config, out| match $config.$field {
                Some(value) => writeln!(out, "{value}"),
                None => writeln!(out, "{}", $default),
            },
            store: |end, value| {
                // Within bounds, so it fits.
                let parsed = parse_number(value, $bounds)? as $type;
                end.change(|config| config.$field = Some(parsed))
            }
        );
    };
}

/// What a setting shows that is not set: a client's default, a server's "any".
struct Unset<T>(bool, T);

impl<T: core::fmt::Display> core::fmt::Display for Unset<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            true => f.write_str("any"),
            false => self.1.fmt(f),
        }
    }
}

fn unset<T>(config: &Config, default: T) -> Unset<T> {
    Unset(config.role == Some(Role::Server), default)
}

choice!(0, "role", role, Role, default: |config| "unset");
choice!(4, "transport", transport, Transport, default: |config| unset(config, config.load().transport));
choice!(5, "op", op, Op, default: |config| unset(config, config.load().op));
number!(2, "port", port, u16, PORT, default: |config| config.port());
number!(6, "size", size, u32, SIZE, default: |config| unset(config, config.load().size));
number!(7, "sges", sges, u32, SGES, default: |config| unset(config, 1));
number!(8, "depth", depth, u32, DEPTH, default: |config| unset(config, config.load().depth));
number!(9, "connections", connections, u32, CONNECTIONS, default: |config| unset(config, config.load().connections));
number!(12, "timeout_ms", timeout_ms, u32, TIMEOUT_MS, default: |config| config.timeout_ms());

number!(22, "submitters", submitters, u32, SUBMITTERS, default: |config| unset(config, 0));
number!(26, "nsid", nsid, u32, NSID, default: |config| config.nsid());
number!(23, "buffers", buffers, u32, BUFFERS, default: |config| unset(config, 0));

setting!(1, "address",
    show: |config, out| {
        let address = config.address.as_ref().and_then(|address| address.to_str().ok());
        writeln!(out, "{}", address.unwrap_or("unset"))
    },
    store: |end, value| {
        let allowed = fmt!("an IPv4 or IPv6 address");
        // The kernel's parser takes anything behind a colon behind IPv4.
        let port = |text: &str| {
            matches!((text.find('.'), text.find(':')), (Some(dot), Some(colon)) if dot < colon)
        };
        let text = text(value).filter(|text| text.len() < 64 && !port(text));
        let text = text.ok_or_else(|| not_allowed(value, Refusal::Malformed, allowed))?;
        let text = CString::try_from_fmt(fmt!("{text}"))?;
        let net = NetNs::current()?;
        SocketAddr::parse(&net, &text, DEFAULT_PORT)
            .map_err(|_| not_allowed(value, Refusal::Malformed, allowed))?;
        end.change(|config| config.address = Some(text))
    }
);

/// A setting that is an NQN; `$unset` is shown for none.
macro_rules! nqn {
    ($id:literal, $name:literal, $field:ident, $unset:literal) => {
        setting!($id, $name,
            show: |config, out| {
                let name = config.$field.as_ref().and_then(|name| name.to_str().ok());
                writeln!(out, "{}", name.unwrap_or($unset))
            },
            store: |end, value| {
                // As the standard has it; what is behind that the target judges.
                let name = text(value).filter(|text| {
                    text.len() <= NQN && text.starts_with("nqn.") && !text.contains(' ')
                });
                let name = name.ok_or_else(|| {
                    not_allowed(
                        value,
                        Refusal::Malformed,
                        fmt!("nqn. and more, up to {NQN} characters without spaces"),
                    )
                })?;
                let name = CString::try_from_fmt(fmt!("{name}"))?;
                end.change(|config| config.$field = Some(name))
            }
        );
    };
}

nqn!(24, "nqn", nqn, "unset");
nqn!(25, "hostnqn", hostnqn, "by chance");

/// Bytes of a device name, with its end (`IB_DEVICE_NAME_MAX`).
const DEVICE_NAME: usize = 64;

setting!(3, "device",
    show: |config, out| match core::str::from_utf8(&config.device) {
        Ok(name) if !name.is_empty() => writeln!(out, "{name}"),
        _ => writeln!(out, "any"),
    },
    store: |end, value| {
        let text = text(value).filter(|text| text.len() < DEVICE_NAME);
        let text = text.ok_or_else(|| {
            not_allowed(value, Refusal::Malformed, fmt!("any, or the name of an RDMA device"))
        })?;
        let mut name = KVec::new();
        if text != "any" {
            name.extend_from_slice(text.as_bytes(), GFP_KERNEL)?;
        }
        end.change(|config| config.device = name)
    }
);

setting!(10, "count",
    show: |config, out| match config.goal() {
        Goal::Count(n) => writeln!(out, "{n}"),
        Goal::Duration(_) => writeln!(out, "0"),
    },
    store: |end, value| {
        let n = parse_number(value, COUNT)?;
        end.change(|config| config.goal = match n {
            0 => None,
            n => Some(Goal::Count(n)),
        })
    }
);

setting!(11, "duration_ms",
    show: |config, out| match config.goal() {
        Goal::Count(_) => writeln!(out, "0"),
        Goal::Duration(ms) => writeln!(out, "{ms}"),
    },
    store: |end, value| {
        let ms = parse_number(value, DURATION_MS)?;
        end.change(|config| config.goal = match ms {
            0 => None,
            ms => Some(Goal::Duration(ms)),
        })
    }
);

setting!(13, "verify",
    show: |config, out| writeln!(out, "{}", u8::from(config.load().verify)),
    store: |end, value| {
        let verify = parse_number(value, Bounds { min: 0, max: 1 })? == 1;
        // A server may not have it: 0 is as if it had never been set.
        end.change(|config| config.verify = verify.then_some(true))
    }
);

setting!(14, "policy",
    show: |config, out| match config.policy().to_str() {
        Ok(name) => writeln!(out, "{name}"),
        Err(_) => Ok(()),
    },
    store: |end, value, policies| {
        let name = policies.check(value)?;
        end.change(|config| config.policy = Some(name))
    }
);

/// Only this may be written to `start` and `stop`.
const ONE: Bounds = Bounds { min: 1, max: 1 };

setting!(15, "start",
    show: |_config, out| writeln!(out, "write 1"),
    store: |end, value, policies| {
        parse_number(value, ONE)?;
        let name = end.with_config(|config| CString::try_from(config.policy()))?;
        end.start(policies.take(&name))
    }
);

setting!(16, "stop",
    show: |_config, out| writeln!(out, "write 1"),
    store: |end, value| {
        parse_number(value, ONE)?;
        end.stop();
        Ok(())
    }
);

/// An attribute that only shows something of the board.
macro_rules! shown {
    ($id:literal, |$board:ident, $out:ident| $show:expr) => {
        #[vtable]
        impl AttributeOperations<$id> for Directory {
            type Data = Directory;

            fn show(data: &Directory, page: &mut [u8; PAGE_SIZE]) -> Result<usize> {
                let $board = data.end.board();
                show(page, |$out| $show)
            }
        }
    };
}

shown!(17, |board, out| Ok(writeln!(out, "{}", board.state())?));
shown!(18, |board, out| board.write_error(out));
shown!(19, |board, out| board.write_result(out));
shown!(20, |board, out| board.write_histogram(out));
shown!(21, |board, out| board.write_stats(out));
