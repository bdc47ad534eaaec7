// SPDX-License-Identifier: GPL-2.0

//! Printing.

/// Lets types that implement `core::fmt::Display` be arguments of `pr_info!` and `fmt!`, which ask
/// for the kernel's trait of that name. Types that are tested on the host know only the first.
macro_rules! kernel_display {
    ($($type:ty),* $(,)?) => {
        $(
            impl kernel::fmt::Display for $type {
                fn fmt(
                    &self,
                    f: &mut core::fmt::Formatter<'_>,
                ) -> core::fmt::Result {
                    core::fmt::Display::fmt(self, f)
                }
            }
        )*
    };
}

pub(crate) use kernel_display;
