// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/rivet/perf`: a directory for each end, a file for each setting.
//!
//! A value that is refused leaves the old one, gives an errno, and writes one line to the kernel
//! log that says what was wrong and what is allowed.

use crate::perf::{
    client::Goal,
    end::{Config, End, DEFAULT_PORT},
    failure::{Failure, Outcome},
    params::{
        self, Bounds, Completion, Op, Refusal, Role, Transport, CONNECTIONS, COUNT, DEPTH,
        DURATION_MS, PORT, SGES, SIZE, TIMEOUT_MS,
    },
};
use crate::verbs::{NetNs, SocketAddr};
use core::fmt::Write;
use kernel::{
    configfs::{configfs_attrs, AttributeOperations, Group, GroupOperations},
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
};

/// Data of the directory that ends are made in: none.
pub(crate) struct PerfDir;

/// The group `perf`.
pub(crate) fn group() -> Result<impl PinInit<Group<PerfDir>, Error>> {
    let item_type = configfs_attrs! {
        container: Group<PerfDir>,
        data: PerfDir,
        child: Directory,
        attributes: [],
    };
    let name = CString::try_from_fmt(fmt!("perf"))?;
    Ok(Group::new(name, item_type, Ok(PerfDir)))
}

/// An end as a directory.
#[pin_data]
pub(crate) struct Directory {
    #[pin]
    end: End,
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
                completion: 14,
                start: 15,
                stop: 16,
                state: 17,
                error: 18,
                result: 19,
                histogram: 20,
            ],
        };
        let end = End::new(CString::try_from(name)?)?;
        let directory = try_pin_init!(Directory { end <- end });
        Ok(Group::new(CString::try_from(name)?, item_type, directory))
    }
}

/// Writes text into the page that configfs gives.
struct Page<'a> {
    page: &'a mut [u8; PAGE_SIZE],
    len: usize,
}

impl Write for Page<'_> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.len + s.len();
        let room = self.page.get_mut(self.len..end).ok_or(core::fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Renders an attribute.
fn show(page: &mut [u8; PAGE_SIZE], f: impl FnOnce(&mut Page<'_>) -> Result) -> Result<usize> {
    let mut page = Page { page, len: 0 };
    f(&mut page)?;
    Ok(page.len)
}

/// Says in the log why a write was refused, and gives the errno.
fn refuse(end: &End, attribute: &str, failure: Failure) -> Error {
    let name = end.name.to_str().unwrap_or("?");
    pr_err!("perf/{name}: {attribute}: {failure}\n");
    failure.code
}

/// The failure that a value is which does not parse.
fn not_allowed(value: &[u8], refusal: Refusal, allowed: core::fmt::Arguments<'_>) -> Failure {
    // Not all of what user space wrote belongs into the log.
    let shown = params::text(value).filter(|text| text.len() <= 64);
    let code = match refusal {
        Refusal::Malformed => EINVAL,
        Refusal::OutOfRange => ERANGE,
    };
    match shown {
        Some(text) => Failure::new(code, fmt!("'{text}' is not allowed; allowed: {allowed}")),
        None => Failure::new(code, fmt!("no printable word; allowed: {allowed}")),
    }
}

fn parse_number(value: &[u8], bounds: Bounds) -> Outcome<u64> {
    let number = match params::text(value) {
        Some(text) => params::number(text, bounds),
        None => Err(Refusal::Malformed),
    };
    number.map_err(|refusal| not_allowed(value, refusal, fmt!("{bounds}")))
}

/// An attribute that sets something.
macro_rules! setting {
    ($id:literal, $name:literal, show: |$config:ident, $out:ident| $show:expr, store: |$end:ident, $value:ident| $store:expr) => {
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
                let $end = &data.end;
                let stored: Outcome = (|| $store)();
                stored.map_err(|failure| refuse($end, $name, failure))
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
                let parsed = params::text(value).and_then(<$type>::parse).ok_or_else(|| {
                    not_allowed(value, Refusal::Malformed, fmt!("{}", <$type>::ALLOWED))
                })?;
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
choice!(14, "completion", completion, Completion, default: |config| config.completion());
number!(2, "port", port, u16, PORT, default: |config| DEFAULT_PORT);
number!(6, "size", size, u32, SIZE, default: |config| unset(config, config.load().size));
number!(7, "sges", sges, u32, SGES, default: |config| unset(config, 1));
number!(8, "depth", depth, u32, DEPTH, default: |config| unset(config, config.load().depth));
number!(9, "connections", connections, u32, CONNECTIONS, default: |config| unset(config, config.load().connections));
number!(12, "timeout_ms", timeout_ms, u32, TIMEOUT_MS, default: |config| config.timeout_ms());

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
        let text = params::text(value).filter(|text| text.len() < 64 && !port(text));
        let text = text.ok_or_else(|| not_allowed(value, Refusal::Malformed, allowed))?;
        let text = CString::try_from_fmt(fmt!("{text}"))?;
        let net = NetNs::current()?;
        SocketAddr::parse(&net, &text, DEFAULT_PORT)
            .map_err(|_| not_allowed(value, Refusal::Malformed, allowed))?;
        end.change(|config| config.address = Some(text))
    }
);

/// Bytes of a device name, with its end (`IB_DEVICE_NAME_MAX`).
const DEVICE_NAME: usize = 64;

setting!(3, "device",
    show: |config, out| match core::str::from_utf8(&config.device) {
        Ok(name) if !name.is_empty() => writeln!(out, "{name}"),
        _ => writeln!(out, "any"),
    },
    store: |end, value| {
        let text = params::text(value).filter(|text| text.len() < DEVICE_NAME);
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
        end.change(|config| config.verify = Some(verify))
    }
);

/// Only this may be written to `start` and `stop`.
const ONE: Bounds = Bounds { min: 1, max: 1 };

setting!(15, "start",
    show: |_config, out| writeln!(out, "write 1"),
    store: |end, value| {
        parse_number(value, ONE)?;
        end.start()
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
