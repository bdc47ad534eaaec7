// SPDX-License-Identifier: GPL-2.0

//! The raw C names: what bindgen makes of the RDMA headers and of our helpers.
//!
//! Types that `kernel::bindings` has are used from there, so both speak of the same types.
//! Nothing above `verbs` and `kapi` may name this module.

#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ptr_cast_constness,
    clippy::ref_as_ptr,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    unused_imports,
    clippy::undocumented_unsafe_blocks
)]

pub(crate) use kernel::bindings::*;
use kernel::ffi;
use pin_init::MaybeZeroable;

type __kernel_size_t = usize;
type __kernel_ssize_t = isize;
type __kernel_ptrdiff_t = isize;

include!(concat!(
    env!("RIVET_OBJ"),
    "/rust/sys/bindings_generated.rs"
));
