// SPDX-License-Identifier: GPL-2.0

//! Why something ended: an errno for programs and words for people.

use crate::verbs::Device;
use core::fmt;
use kernel::{prelude::*, str::CString};

/// An error with its cause in words.
pub(crate) struct Failure {
    /// The errno.
    pub(crate) code: Error,
    text: Option<CString>,
}

impl Failure {
    /// With words; without them if there is no memory for them.
    pub(crate) fn new(code: Error, text: fmt::Arguments<'_>) -> Self {
        Self {
            code,
            text: CString::try_from_fmt(text).ok(),
        }
    }
}

/// Fails if the device is being removed. Any context that may allocate.
pub(crate) fn check_device(device: &Device) -> Result<(), Failure> {
    if !device.is_gone() {
        return Ok(());
    }
    let name = device.name();
    let name = name.as_str();
    Err(Failure::new(
        ENODEV,
        fmt!("the device {name} is being removed"),
    ))
}

impl From<Error> for Failure {
    fn from(code: Error) -> Self {
        Self { code, text: None }
    }
}

impl From<kernel::alloc::AllocError> for Failure {
    fn from(_: kernel::alloc::AllocError) -> Self {
        Self::new(ENOMEM, fmt!("out of memory"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text.as_ref().and_then(|text| text.to_str().ok());
        match text {
            Some(text) => f.write_str(text),
            None => write!(f, "error {}", self.code.to_errno()),
        }
    }
}

/// What fails with a cause.
pub(crate) type Outcome<T = ()> = core::result::Result<T, Failure>;

/// Gives an error that comes from below its cause.
pub(crate) trait Because<T> {
    /// `what` could not be done.
    fn because(self, what: &str) -> Outcome<T>;
}

impl<T> Because<T> for Result<T> {
    fn because(self, what: &str) -> Outcome<T> {
        self.map_err(|code| Failure::new(code, fmt!("{what}: error {}", code.to_errno())))
    }
}
