// SPDX-License-Identifier: GPL-2.0

//! What to look at when a connection cannot be made or breaks: told behind the stage and the status,
//! in the error of an end and in the kernel's log. Pure: it is tested on the host too.

use core::fmt;

/// What making a connection ended in, or goes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Finding the device and the neighbour that lead to the peer's address.
    Address,
    /// Finding the path from there.
    Route,
    /// The connect request, which nobody answered.
    Request,
    /// The connect request, which was answered with an error.
    Refusal,
    /// What both ends have to tell each other once they are connected.
    Setup,
}

impl Stage {
    /// In words.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Stage::Address => "resolving the address",
            Stage::Route => "resolving the path",
            Stage::Request | Stage::Refusal => "the answer to the connect request",
            Stage::Setup => "the server's word that all is ready",
        }
    }
}

const ENODEV: i32 = 19;
const EADDRNOTAVAIL: i32 = 99;
const ENETUNREACH: i32 = 101;
const ETIMEDOUT: i32 = 110;
const ECONNREFUSED: i32 = 111;
const EHOSTUNREACH: i32 = 113;

/// What to look at if `stage` ended with `errno`, of either sign.
pub(crate) fn look_at(stage: Stage, errno: i32) -> &'static str {
    match (stage, errno.saturating_abs()) {
        (Stage::Address, ENETUNREACH | EHOSTUNREACH) => "there is no route to it: see ip route get",
        (Stage::Address, ETIMEDOUT) => {
            "nobody in the network answers for it: see ip neigh and ping, from this end's namespace"
        }
        (Stage::Address, ENODEV) => {
            "its route leaves by an interface that is no RDMA device's, or that has no GID for the \
             local address: see ip route get, rdma link and /sys/class/infiniband/*/ports/*/gids"
        }
        (Stage::Address, EADDRNOTAVAIL) => "the local address is not there: see ip addr",
        (Stage::Address, _) => "see ip route get, ip neigh and rdma link",
        (Stage::Route, _) => {
            "the device has no GID for the local address, or its interface is down: see rdma link and \
             /sys/class/infiniband/*/ports/*/gids"
        }
        (Stage::Request, _) => {
            "the peer's RDMA device is down or has no such address, the network loses what is sent to \
             UDP port 4791 (a firewall, say), or it is behind an address translation (NAT), which \
             RoCE does not pass: see rdma link there, and tcpdump at both ends"
        }
        (Stage::Refusal, ECONNREFUSED) => "nobody listens on that address and port, or who does refuses",
        (Stage::Refusal | Stage::Setup, _) => "see the kernel's log of the peer",
    }
}

/// An errno, and what to look at if the stage ended with it.
pub(crate) struct EndedWith(pub(crate) Stage, pub(crate) i32);

impl fmt::Display for EndedWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}; {}", self.1, look_at(self.0, self.1))
    }
}

/// What to look at if a connection that was made carries nothing: how many bytes of payload its
/// packets have at most.
pub(crate) struct LongPackets(pub(crate) u32);

impl fmt::Display for LongPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mtu = self.0;
        write!(
            f,
            "packets are lost, perhaps just long ones ({mtu} bytes and headers): see mtu in ip link at \
             both ends and on the way, and ping -M do -s {mtu}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_do_not_matter_and_each_stage_has_words() {
        for stage in [
            Stage::Address,
            Stage::Route,
            Stage::Request,
            Stage::Refusal,
            Stage::Setup,
        ] {
            for errno in [0, 1, 19, 99, 101, 110, 111, 113, 4000, i32::MAX, i32::MIN] {
                assert!(!look_at(stage, errno).is_empty() && !stage.as_str().is_empty());
                assert_eq!(
                    look_at(stage, errno),
                    look_at(stage, errno.saturating_neg())
                );
            }
        }
    }

    #[test]
    fn statuses_are_told_apart() {
        assert!(look_at(Stage::Address, -101).contains("no route"));
        assert!(look_at(Stage::Address, -110).contains("neigh"));
        assert!(look_at(Stage::Address, -19).contains("GID"));
        assert!(look_at(Stage::Request, -110).contains("NAT"));
        assert!(look_at(Stage::Refusal, 111).contains("listens"));
    }
}
