// SPDX-License-Identifier: GPL-2.0

//! What the fabric says, by the names of the standards. Pure: it is tested on the host too.

use core::fmt;

/// Makes an enum of a C enum, with a catch-all for values that are not known yet.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum $name {
            $($(#[$vmeta])* $variant,)*
            /// A value that this version does not know.
            Other(u32),
        }

        impl $name {
            /// From the value in C.
            pub(crate) fn from_raw(value: u32) -> Self {
                match value {
                    $($value => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($text),)*
                    Self::Other(value) => write!(f, "status {value}"),
                }
            }
        }
    };
}

named! {
    /// How a work request ended (`enum ib_wc_status`; IBA vol. 1, 11.6.2).
    WcStatus {
        /// It did what it was posted for.
        Success = 0, "success";
        /// A message longer than the receive, or a length that the local QP does not allow.
        LocalLength = 1, "local length error";
        /// Something inside of the local QP is inconsistent.
        LocalQpOperation = 2, "local QP operation error";
        /// The same for a reliable datagram context.
        LocalEecOperation = 3, "local EE context operation error";
        /// An SGE names memory that the work request may not use.
        LocalProtection = 4, "local protection error";
        /// The QP went to the error state before the work request was done.
        Flushed = 5, "flushed";
        /// A memory window could not be bound.
        MwBind = 6, "memory window bind error";
        /// The responder answered something that fits no request.
        BadResponse = 7, "bad response";
        /// An arriving operation was not allowed on local memory.
        LocalAccess = 8, "local access error";
        /// The responder does not take such a request.
        RemoteInvalidRequest = 9, "remote invalid request";
        /// The responder's memory may not be accessed so (a bad or revoked rkey, say).
        RemoteAccess = 10, "remote access error";
        /// The responder could not complete the operation.
        RemoteOperation = 11, "remote operation error";
        /// No acknowledgement after all retries: the peer or the path is gone.
        RetryExceeded = 12, "transport retries exceeded";
        /// The peer had no receive posted, too often.
        RnrRetryExceeded = 13, "receiver-not-ready retries exceeded";
        /// Of reliable datagrams.
        LocalRddViolation = 14, "local RDD violation";
        /// Of reliable datagrams.
        RemoteInvalidRdRequest = 15, "remote invalid RD request";
        /// The responder aborted.
        RemoteAborted = 16, "remote aborted";
        /// Of reliable datagrams.
        InvalidEecn = 17, "invalid EE context number";
        /// Of reliable datagrams.
        InvalidEecState = 18, "invalid EE context state";
        /// The device is of no more use.
        Fatal = 19, "fatal error";
        /// No response in time.
        ResponseTimeout = 20, "response timeout";
        /// None of the above.
        General = 21, "general error";
    }
}

named! {
    /// Why a connection was refused (`enum ib_cm_rej_reason`; IBA vol. 1, 12.6.7.2). iWARP gives
    /// an errno instead, which shows as `Other`.
    RejectReason {
        /// No QP left at the peer.
        NoQp = 1, "no QP available";
        /// No EE context left.
        NoEec = 2, "no EE context available";
        /// Other resources are lacking.
        NoResources = 3, "no resources available";
        /// The peer gave up waiting for us.
        Timeout = 4, "timeout";
        /// The request itself is not supported.
        Unsupported = 5, "unsupported request";
        /// The communication id is not valid.
        InvalidCommId = 6, "invalid communication ID";
        /// The instance of the communication id is not valid.
        InvalidCommInstance = 7, "invalid communication instance";
        /// Nobody listens there.
        InvalidServiceId = 8, "invalid service ID: nobody listens on that address and port";
        /// The transport service type does not fit.
        InvalidTransportType = 9, "invalid transport service type";
        /// The connection is stale: the peer remembers an older one of this QP.
        StaleConnection = 10, "stale connection";
        /// The reliable datagram channel is not there.
        RdcNotExist = 11, "RDC does not exist";
        /// The primary GID is not accepted.
        InvalidGid = 12, "invalid primary GID";
        /// The primary LID is not accepted.
        InvalidLid = 13, "invalid primary LID";
        /// The service level is not accepted.
        InvalidSl = 14, "invalid service level";
        /// The traffic class is not accepted.
        InvalidTrafficClass = 15, "invalid traffic class";
        /// The hop limit is not accepted.
        InvalidHopLimit = 16, "invalid hop limit";
        /// The packet rate is not accepted.
        InvalidPacketRate = 17, "invalid packet rate";
        /// The alternate GID is not accepted.
        InvalidAltGid = 18, "invalid alternate GID";
        /// The alternate LID is not accepted.
        InvalidAltLid = 19, "invalid alternate LID";
        /// The alternate service level is not accepted.
        InvalidAltSl = 20, "invalid alternate service level";
        /// The alternate traffic class is not accepted.
        InvalidAltTrafficClass = 21, "invalid alternate traffic class";
        /// The alternate hop limit is not accepted.
        InvalidAltHopLimit = 22, "invalid alternate hop limit";
        /// The alternate packet rate is not accepted.
        InvalidAltPacketRate = 23, "invalid alternate packet rate";
        /// Another port of the peer shall be used.
        PortCmRedirect = 24, "port and CM redirection";
        /// Another port of the peer shall be used.
        PortRedirect = 25, "port redirection";
        /// The path MTU is larger than the peer takes.
        InvalidMtu = 26, "invalid path MTU";
        /// The peer cannot answer that many READs and atomics.
        InsufficientRespResources = 27, "insufficient responder resources";
        /// The service on that port said no; its private data may say why.
        Consumer = 28, "rejected by the service";
        /// The peer does not take RNR retries.
        InvalidRnrRetry = 29, "invalid RNR retry count";
        /// Two ends tried to connect with the same communication id.
        DuplicateLocalCommId = 30, "duplicate local communication ID";
        /// The class version does not fit.
        InvalidClassVersion = 31, "invalid class version";
        /// The flow label is not accepted.
        InvalidFlowLabel = 32, "invalid flow label";
        /// The alternate flow label is not accepted.
        InvalidAltFlowLabel = 33, "invalid alternate flow label";
        /// The vendor's options are not accepted.
        VendorOption = 35, "vendor option not supported";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_unknown_values() {
        assert_eq!(
            WcStatus::from_raw(12).to_string(),
            "transport retries exceeded"
        );
        assert_eq!(WcStatus::from_raw(5), WcStatus::Flushed);
        assert_eq!(WcStatus::from_raw(99).to_string(), "status 99");
        assert_eq!(RejectReason::from_raw(28), RejectReason::Consumer);
        assert_eq!(RejectReason::from_raw(111), RejectReason::Other(111));
    }
}
