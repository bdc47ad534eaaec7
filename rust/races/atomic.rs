// SPDX-License-Identifier: GPL-2.0

//! What stands in for `kernel::sync::atomic`: the same names and orderings, over loom's atomics.
//!
//! `Full` is as in the kernel's memory model: a full barrier before and one after the operation.
//! The kernel's `Relaxed` keeps dependencies, which loom's does not; so what passes here does not
//! rest on them. A store is an exchange whose result is not used: loom lets plain stores come between
//! the two halves of other threads' exchanges, which no machine does.
//!
//! Each step is noted with its place in the source, so that [`super::check`] can mutate them one by
//! one: weaken its ordering, or tear it, if it reads and writes at once, into two.

use super::check;
use core::{marker::PhantomData, panic::Location};
use loom::sync::atomic::{fence, AtomicU64, Ordering as Order};

/// A memory ordering.
pub(crate) trait Ordering {
    /// Which.
    const KIND: Kind;
}

/// The memory orderings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Relaxed,
    Acquire,
    Release,
    Full,
}

macro_rules! orderings {
    ($($name:ident)*) => {
        $(
            pub(crate) struct $name;

            impl Ordering for $name {
                const KIND: Kind = Kind::$name;
            }
        )*
    };
}

orderings!(Relaxed Acquire Release Full);

/// What fits into an atomic.
pub(crate) trait Word: Copy {
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

macro_rules! words {
    ($($type:ty)*) => {
        $(
            impl Word for $type {
                fn to_word(self) -> u64 {
                    self as u64
                }

                fn from_word(word: u64) -> Self {
                    word as Self
                }
            }
        )*
    };
}

words!(u32 u64 usize isize);

impl Word for bool {
    fn to_word(self) -> u64 {
        self.into()
    }

    fn from_word(word: u64) -> Self {
        word != 0
    }
}

/// As `kernel::sync::atomic::Atomic`.
pub(crate) struct Atomic<T>(AtomicU64, PhantomData<T>);

impl<T: Word> Atomic<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(AtomicU64::new(value.to_word()), PhantomData)
    }

    #[track_caller]
    pub(crate) fn load<O: Ordering>(&self, _: O) -> T {
        let step = check::step(O::KIND, false, Location::caller());
        T::from_word(match step.kind {
            Kind::Relaxed => self.0.load(Order::Relaxed),
            Kind::Acquire => self.0.load(Order::Acquire),
            Kind::Release | Kind::Full => panic!("no ordering of a load"),
        })
    }

    #[track_caller]
    pub(crate) fn store<O: Ordering>(&self, value: T, _: O) {
        let step = check::step(O::KIND, false, Location::caller());
        let value = value.to_word();
        match step.kind {
            Kind::Relaxed => self.0.swap(value, Order::Relaxed),
            Kind::Release => self.0.swap(value, Order::Release),
            Kind::Acquire | Kind::Full => panic!("no ordering of a store"),
        };
    }

    #[track_caller]
    pub(crate) fn xchg<O: Ordering>(&self, value: T, _: O) -> T {
        let step = check::step(O::KIND, true, Location::caller());
        let value = value.to_word();
        let was = self.modify(step, |word, order| word.swap(value, order), |_| value);
        T::from_word(was)
    }

    #[track_caller]
    pub(crate) fn cmpxchg<O: Ordering>(&self, old: T, new: T, _: O) -> Result<T, T> {
        let step = check::step(O::KIND, true, Location::caller());
        let (old, new) = (old.to_word(), new.to_word());
        let was = self.modify(
            step,
            // One that fails orders nothing.
            |word, order| {
                let result = word.compare_exchange(old, new, order, Order::Relaxed);
                result.unwrap_or_else(|was| was)
            },
            |was| if was == old { new } else { was },
        );
        match was == old {
            true => Ok(T::from_word(was)),
            false => Err(T::from_word(was)),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_add<O: Ordering>(&self, value: T, _: O) -> T {
        let step = check::step(O::KIND, true, Location::caller());
        let value = value.to_word();
        let was = self.modify(
            step,
            |word, order| word.fetch_add(value, order),
            |was| was.wrapping_add(value),
        );
        T::from_word(was)
    }

    #[track_caller]
    pub(crate) fn fetch_sub<O: Ordering>(&self, value: T, _: O) -> T {
        let step = check::step(O::KIND, true, Location::caller());
        let value = value.to_word();
        let was = self.modify(
            step,
            |word, order| word.fetch_sub(value, order),
            |was| was.wrapping_sub(value),
        );
        T::from_word(was)
    }

    /// Reads and writes: at once, or, torn, with a gap.
    fn modify(
        &self,
        step: check::Step,
        whole: impl FnOnce(&AtomicU64, Order) -> u64,
        new: impl FnOnce(u64) -> u64,
    ) -> u64 {
        let (load, store, both) = match step.kind {
            Kind::Relaxed => (Order::Relaxed, Order::Relaxed, Order::Relaxed),
            Kind::Acquire => (Order::Acquire, Order::Relaxed, Order::Acquire),
            Kind::Release => (Order::Relaxed, Order::Release, Order::Release),
            Kind::Full => (Order::Acquire, Order::Release, Order::AcqRel),
        };
        let barrier = || {
            if step.kind == Kind::Full {
                fence(Order::SeqCst);
            }
        };
        barrier();
        let was = match step.torn {
            true => {
                let was = self.0.load(load);
                self.0.store(new(was), store);
                was
            }
            false => whole(&self.0, both),
        };
        barrier();
        was
    }
}
