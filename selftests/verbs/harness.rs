// SPDX-License-Identifier: GPL-2.0

//! Cases, their results, and the checks in them.

#![forbid(unsafe_code)]

use crate::{kapi::time::now_ns, rig::Rig, verbs::dma::live_mappings};
use core::{hint::black_box, panic::Location};
use kernel::prelude::*;

/// A line of the results, behind the module's name.
macro_rules! say {
    ($($args:tt)*) => {
        pr_info!("ktap: {}\n", fmt!($($args)*))
    };
}

/// Fails the case unless `$cond` holds.
macro_rules! check {
    ($cond:expr) => {
        if !($cond) {
            return Err($crate::harness::Fail::check(stringify!($cond)));
        }
    };
}

/// Fails the case unless both are the same, and says what they are.
macro_rules! check_eq {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if *left != *right {
            $crate::harness::say!("# {:?} is not {:?}", left, right);
            return Err($crate::harness::Fail::check(stringify!($left == $right)));
        }
    }};
}

/// Fails the case unless the result is that error.
macro_rules! check_err {
    ($result:expr, $code:expr) => {
        match $crate::harness::Code::code(&$result) {
            Some(e) if e == $code => {}
            got => {
                $crate::harness::say!("# {:?}, not {:?}", got, $code);
                return Err($crate::harness::Fail::check(stringify!($result is $code)));
            }
        }
    };
}

pub(crate) use {check, check_eq, check_err, say};

/// The error of a result of any kind.
pub(crate) trait Code {
    /// `None` if it is none.
    fn code(&self) -> Option<Error>;
}

impl<T> Code for Result<T> {
    fn code(&self) -> Option<Error> {
        self.as_ref().err().copied()
    }
}

impl<T, S> Code for core::result::Result<T, (Error, S)> {
    fn code(&self) -> Option<Error> {
        self.as_ref().err().map(|(e, _)| *e)
    }
}

impl<T> Code for core::result::Result<T, Fail> {
    fn code(&self) -> Option<Error> {
        match self.as_ref().err().map(|fail| &fail.why) {
            Some(Why::Code(e)) => Some(*e),
            _ => None,
        }
    }
}

enum Why {
    Check(&'static str),
    Code(Error),
    Skip(&'static str),
}

/// Why a case did not pass, and where.
pub(crate) struct Fail {
    why: Why,
    at: &'static Location<'static>,
}

impl Fail {
    /// A check did not hold.
    #[track_caller]
    pub(crate) fn check(what: &'static str) -> Self {
        Self {
            why: Why::Check(what),
            at: Location::caller(),
        }
    }

    /// What the case needs is not there.
    #[track_caller]
    pub(crate) fn skip(what: &'static str) -> Self {
        Self {
            why: Why::Skip(what),
            at: Location::caller(),
        }
    }

    /// Says why and where.
    pub(crate) fn say(&self) {
        let Fail { why, at } = self;
        match why {
            Why::Skip(what) | Why::Check(what) => say!("# {}:{}: {}", at.file(), at.line(), what),
            Why::Code(e) => say!("# {}:{}: error {}", at.file(), at.line(), e.to_errno()),
        }
    }
}

impl From<Error> for Fail {
    #[track_caller]
    fn from(e: Error) -> Self {
        Self {
            why: Why::Code(e),
            at: Location::caller(),
        }
    }
}

impl<T> From<(Error, T)> for Fail {
    #[track_caller]
    fn from((e, _): (Error, T)) -> Self {
        Self {
            why: Why::Code(e),
            at: Location::caller(),
        }
    }
}

impl From<kernel::alloc::AllocError> for Fail {
    #[track_caller]
    fn from(_: kernel::alloc::AllocError) -> Self {
        Self {
            why: Why::Code(ENOMEM),
            at: Location::caller(),
        }
    }
}

/// What a case ends with.
pub(crate) type Outcome<T = ()> = core::result::Result<T, Fail>;

/// A named case.
pub(crate) type Case = (&'static str, fn(&Rig) -> Outcome);

/// Numbers the results.
pub(crate) struct Tally {
    number: usize,
}

impl Tally {
    /// Prints the plan.
    pub(crate) fn begin(cases: usize) -> Self {
        say!("KTAP version 1");
        say!("1..{}", cases);
        Self { number: 0 }
    }

    /// The number of the next case.
    pub(crate) fn next(&mut self) -> usize {
        self.number += 1;
        self.number
    }

    /// Runs a case. Nothing that it mapped may be left.
    #[inline(never)]
    pub(crate) fn run(&mut self, case: &Case, rig: &Rig) {
        let (name, run) = case;
        let mapped = live_mappings();
        let begin = now_ns();
        let outcome = black_box(*run)(rig).and_then(|()| {
            check_eq!(live_mappings(), mapped);
            Ok(())
        });
        let number = self.next();
        report(number, name, outcome);
        let ms = (now_ns() - begin) / crate::kapi::time::MS;
        if ms >= 2000 {
            say!("# {} took {} ms", *name, ms);
        }
    }
}

/// Prints a result.
pub(crate) fn report(number: usize, name: &str, outcome: Outcome) {
    match outcome {
        Ok(()) => say!("ok {} verbs.{}", number, name),
        Err(Fail {
            why: Why::Skip(what),
            ..
        }) => say!("ok {} verbs.{} # SKIP {}", number, name, what),
        Err(fail) => {
            fail.say();
            say!("not ok {} verbs.{}", number, name);
        }
    }
}
