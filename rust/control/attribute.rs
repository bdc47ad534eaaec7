// SPDX-License-Identifier: GPL-2.0

//! What the attributes of all directories have in common.
//!
//! A value that is refused leaves the old one, gives an errno, and writes one line to the kernel
//! log that says what was wrong and what is allowed.

use crate::{
    perf::failure::{Failure, Outcome},
    value::{self, Bounds, Refusal},
};
use core::fmt::Write;
use kernel::{page::PAGE_SIZE, prelude::*};

/// Writes text into the page that configfs gives.
pub(super) struct Page<'a> {
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
pub(super) fn show(
    page: &mut [u8; PAGE_SIZE],
    f: impl FnOnce(&mut Page<'_>) -> Result,
) -> Result<usize> {
    let mut page = Page { page, len: 0 };
    f(&mut page)?;
    Ok(page.len)
}

/// Says in the log why a write to an attribute of `parent/name` was refused, and gives the errno.
pub(super) fn refuse(parent: &str, name: &CStr, attribute: &str, failure: Failure) -> Error {
    let name = name.to_str().unwrap_or("?");
    pr_err!("{parent}/{name}: {attribute}: {failure}\n");
    failure.code
}

/// The failure that a value is which does not parse.
pub(super) fn not_allowed(
    value: &[u8],
    refusal: Refusal,
    allowed: core::fmt::Arguments<'_>,
) -> Failure {
    let code = match refusal {
        Refusal::Malformed => EINVAL,
        Refusal::OutOfRange => ERANGE,
    };
    not_allowed_as(code, value, allowed)
}

/// The same with an errno of the caller's.
pub(super) fn not_allowed_as(
    code: Error,
    value: &[u8],
    allowed: core::fmt::Arguments<'_>,
) -> Failure {
    // Not all of what user space wrote belongs into the log.
    let shown = value::text(value).filter(|text| text.len() <= 64);
    match shown {
        Some(text) => Failure::new(code, fmt!("'{text}' is not allowed; allowed: {allowed}")),
        None => Failure::new(code, fmt!("no printable word; allowed: {allowed}")),
    }
}

/// A number within bounds.
pub(super) fn parse_number(value: &[u8], bounds: Bounds) -> Outcome<u64> {
    parse(value, fmt!("{bounds}"), |text| value::number(text, bounds))
}

/// One of some words.
pub(super) fn parse_word<T>(
    value: &[u8],
    allowed: &str,
    parse_text: impl FnOnce(&str) -> Option<T>,
) -> Outcome<T> {
    parse(value, fmt!("{allowed}"), |text| {
        parse_text(text).ok_or(Refusal::Malformed)
    })
}

/// What `parse_text` takes.
pub(super) fn parse<'a, T>(
    value: &'a [u8],
    allowed: core::fmt::Arguments<'_>,
    parse_text: impl FnOnce(&'a str) -> Result<T, Refusal>,
) -> Outcome<T> {
    let parsed = value::text(value)
        .ok_or(Refusal::Malformed)
        .and_then(parse_text);
    parsed.map_err(|refusal| not_allowed(value, refusal, allowed))
}
