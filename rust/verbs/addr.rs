// SPDX-License-Identifier: GPL-2.0

//! IP addresses and the network namespace in which they mean something.

use crate::sys;
use core::{fmt, ptr::NonNull};
use kernel::{error::to_result, prelude::*};

/// A reference to a network namespace: it lives on, without a name, as long as this does.
///
/// # Invariants
///
/// `0` is a namespace with a reference that belongs to this object.
pub(crate) struct NetNs(NonNull<sys::net>);

// SAFETY: The reference count is atomic.
unsafe impl Send for NetNs {}
// SAFETY: `&NetNs` offers the pointer to functions of the core only.
unsafe impl Sync for NetNs {}

impl NetNs {
    /// The namespace of the calling task. Process context.
    pub(crate) fn current() -> Result<Self> {
        // SAFETY: A task that runs our code in process context has its namespaces.
        let net = unsafe { sys::rivet_get_current_net() };
        // INVARIANT: The helper took a reference for us.
        Ok(Self(NonNull::new(net).ok_or(ESRCH)?))
    }

    pub(super) fn as_raw(&self) -> *mut sys::net {
        self.0.as_ptr()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // SAFETY: The reference is ours (type invariant).
        unsafe { sys::rivet_put_net(self.as_raw()) };
    }
}

/// An IPv4 or IPv6 address with a port.
#[derive(Clone, Copy)]
pub(crate) struct SocketAddr(sys::__kernel_sockaddr_storage);

// SAFETY: Plain bytes.
unsafe impl Send for SocketAddr {}
// SAFETY: Plain bytes.
unsafe impl Sync for SocketAddr {}

impl SocketAddr {
    /// Parses `host`: dotted IPv4 or IPv6, the latter with `%interface` of `net` where it is
    /// link-local.
    ///
    /// # Errors
    ///
    /// `EINVAL` for anything else.
    pub(crate) fn parse(net: &NetNs, host: &CStr, port: u16) -> Result<Self> {
        let mut addr = sys::__kernel_sockaddr_storage::default();
        // SAFETY: The namespace is referenced, the string terminated, and `addr` ours.
        to_result(unsafe {
            sys::rivet_parse_addr(net.as_raw(), host.as_char_ptr(), port, &mut addr)
        })?;
        Ok(Self(addr))
    }

    pub(super) fn as_raw(&self) -> *const sys::sockaddr {
        core::ptr::from_ref(&self.0).cast()
    }

    pub(super) fn as_raw_mut(&mut self) -> *mut sys::sockaddr {
        core::ptr::from_mut(&mut self.0).cast()
    }
}

impl fmt::Display for SocketAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: The family is the first field of every sockaddr.
        match u32::from(unsafe { (*self.as_raw()).sa_family }) {
            sys::AF_INET => {
                // SAFETY: The family says what it is, and the storage is large enough.
                let a = unsafe { &*self.as_raw().cast::<sys::sockaddr_in>() };
                let [b0, b1, b2, b3] = u32::from_be(a.sin_addr.s_addr).to_be_bytes();
                write!(f, "{b0}.{b1}.{b2}.{b3}:{}", u16::from_be(a.sin_port))
            }
            sys::AF_INET6 => {
                // SAFETY: The family says what it is, and the storage is large enough.
                let a = unsafe { &*self.as_raw().cast::<sys::sockaddr_in6>() };
                // SAFETY: Any bytes are a valid address.
                let bytes = unsafe { a.sin6_addr.in6_u.u6_addr8 };
                let addr = core::net::Ipv6Addr::from(bytes);
                write!(f, "[{addr}]:{}", u16::from_be(a.sin6_port))
            }
            family => write!(f, "address family {family}"),
        }
    }
}
