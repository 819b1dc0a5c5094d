//! The one place where a kind of error becomes a gRPC code.

use std::fmt;

use tonic::{Code, Status};

use crate::model::capability::Unsupported;
use crate::model::parameters::BadParameter;
use crate::model::placement::NoPlace;
use crate::model::publish::BadContext;
use crate::model::{capacity, volume};
use crate::{node, store};

/// Longest message: a status travels in HTTP/2 headers, which have an end.
const MESSAGE_MAX: usize = 2 << 10;

/// What kind of trouble it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The request is wrong as it is.
    InvalidArgument,
    /// No such volume.
    NotFound,
    /// It exists with other properties than those asked for.
    AlreadyExists,
    /// Something else must be done first.
    FailedPrecondition,
    /// A capacity that cannot be met.
    OutOfRange,
    /// No room.
    ResourceExhausted,
    /// Another call for this volume runs.
    Aborted,
    /// Try again later.
    Unavailable,
    /// The deadline came first.
    DeadlineExceeded,
    /// It should not have happened.
    Internal,
}

impl Kind {
    /// The table.
    fn code(self) -> Code {
        match self {
            Self::InvalidArgument => Code::InvalidArgument,
            Self::NotFound => Code::NotFound,
            Self::AlreadyExists => Code::AlreadyExists,
            Self::FailedPrecondition => Code::FailedPrecondition,
            Self::OutOfRange => Code::OutOfRange,
            Self::ResourceExhausted => Code::ResourceExhausted,
            Self::Aborted => Code::Aborted,
            Self::Unavailable => Code::Unavailable,
            Self::DeadlineExceeded => Code::DeadlineExceeded,
            Self::Internal => Code::Internal,
        }
    }

    fn of_node(kind: node::ErrorKind) -> Self {
        match kind {
            node::ErrorKind::InvalidArgument => Self::InvalidArgument,
            node::ErrorKind::FailedPrecondition => Self::FailedPrecondition,
            node::ErrorKind::NotFound => Self::NotFound,
            node::ErrorKind::AlreadyExists => Self::AlreadyExists,
            node::ErrorKind::OutOfRange => Self::OutOfRange,
            node::ErrorKind::Unavailable => Self::Unavailable,
            node::ErrorKind::DeadlineExceeded => Self::DeadlineExceeded,
            node::ErrorKind::Internal => Self::Internal,
        }
    }

    fn of_store(error: &store::Error) -> Self {
        match error {
            // The object came, or changed, under the call: the next try sees it.
            store::Error::Exists(..) | store::Error::Conflict(..) => Self::Aborted,
            store::Error::NotFound(..) => Self::NotFound,
            store::Error::BadName(_) => Self::InvalidArgument,
            // The API server is gone, starting, or too busy: it is worth another try.
            error if error.may_pass() => Self::Unavailable,
            store::Error::Io { .. }
            | store::Error::NoClient(_)
            | store::Error::Refused { .. }
            | store::Error::Failed { .. } => Self::Internal,
        }
    }

    /// The reasons of a condition that is false. What is internal is tried again by the agent.
    pub(super) fn of_reason(reason: &str) -> Self {
        match reason {
            volume::reason::POOL_NOT_FOUND | volume::reason::BAD_PROPERTY => Self::InvalidArgument,
            volume::reason::NO_SPACE => Self::ResourceExhausted,
            volume::reason::SOURCE_MISSING => Self::NotFound,
            volume::reason::POOL_REPLACED
            | volume::reason::DATASET_MISSING
            | volume::reason::DATASET_FOREIGN => Self::FailedPrecondition,
            _ => Self::Internal,
        }
    }
}

/// Why a call is answered with an error: the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) kind: Kind,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidArgument, message)
    }
}

impl Refusal {
    /// The same, with what is known of the removal of what was begun.
    pub(super) fn unless_removed(self, removed: Result<(), Self>) -> Self {
        match removed {
            Ok(()) => self,
            Err(late) => Self::new(
                self.kind,
                format!("{self}; what was begun is not removed yet: {late}"),
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut message = refusal.message;
        if message.len() > MESSAGE_MAX {
            let end = (0..=MESSAGE_MAX)
                .rev()
                .find(|end| message.is_char_boundary(*end))
                .unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        Self::new(refusal.kind.code(), message)
    }
}

impl From<node::Error> for Refusal {
    fn from(error: node::Error) -> Self {
        Self::new(Kind::of_node(error.kind()), error.to_string())
    }
}

impl From<store::Error> for Refusal {
    fn from(error: store::Error) -> Self {
        Self::new(Kind::of_store(&error), error.to_string())
    }
}

impl From<capacity::Error> for Refusal {
    fn from(error: capacity::Error) -> Self {
        let kind = match error {
            capacity::Error::Invalid(_) => Kind::InvalidArgument,
            capacity::Error::OutOfRange(_) => Kind::OutOfRange,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<NoPlace> for Refusal {
    fn from(error: NoPlace) -> Self {
        let kind = match error {
            NoPlace::UnknownPool { .. } => Kind::InvalidArgument,
            NoPlace::Unusable(_) => Kind::Unavailable,
            // Quotas are raised and pools grow: the size itself is fine.
            NoPlace::TooLarge { .. } | NoPlace::Full { .. } => Kind::ResourceExhausted,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<BadParameter> for Refusal {
    fn from(error: BadParameter) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<Unsupported> for Refusal {
    fn from(error: Unsupported) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<BadContext> for Refusal {
    fn from(error: BadContext) -> Self {
        Self::invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(refusal: impl Into<Refusal>) -> Code {
        Status::from(refusal.into()).code()
    }

    #[test]
    fn every_kind_of_the_node_has_its_code() {
        use node::ErrorKind as E;
        for (kind, expected) in [
            (E::InvalidArgument, Code::InvalidArgument),
            (E::FailedPrecondition, Code::FailedPrecondition),
            (E::NotFound, Code::NotFound),
            (E::AlreadyExists, Code::AlreadyExists),
            (E::OutOfRange, Code::OutOfRange),
            (E::Unavailable, Code::Unavailable),
            (E::DeadlineExceeded, Code::DeadlineExceeded),
            (E::Internal, Code::Internal),
        ] {
            assert_eq!(code(node::Error::new(kind, "x")), expected, "{kind:?}");
        }
    }

    #[test]
    fn every_error_of_the_store_has_its_code() {
        let io = store::Error::Io {
            call: "rename",
            path: "/x".into(),
            source: std::io::Error::other("no"),
        };
        let refused = |code| store::Error::Refused {
            verb: "PUT".into(),
            path: "/x".into(),
            code,
            reason: "x".into(),
            message: "no".into(),
        };
        let failed = store::Error::Failed {
            verb: "GET".into(),
            path: "/x".into(),
            problem: "connection refused".into(),
        };
        for (error, expected) in [
            (store::Error::Exists("volume", "v".into()), Code::Aborted),
            (store::Error::Conflict("volume", "v".into()), Code::Aborted),
            (store::Error::NotFound("volume", "v".into()), Code::NotFound),
            (store::Error::BadName("v".into()), Code::InvalidArgument),
            (io, Code::Internal),
            (store::Error::NoClient("x".into()), Code::Internal),
            (refused(422), Code::Internal),
            (refused(403), Code::Unavailable),
            (refused(429), Code::Unavailable),
            (refused(503), Code::Unavailable),
            (failed, Code::Unavailable),
        ] {
            let said = error.to_string();
            assert_eq!(code(error), expected, "{said}");
        }
    }

    #[test]
    fn every_final_reason_has_its_code() {
        use volume::reason;
        for (reason, expected) in [
            (reason::POOL_NOT_FOUND, Kind::InvalidArgument),
            (reason::BAD_PROPERTY, Kind::InvalidArgument),
            (reason::NO_SPACE, Kind::ResourceExhausted),
            (reason::SOURCE_MISSING, Kind::NotFound),
            (reason::BUSY, Kind::Internal),
            (reason::POOL_REPLACED, Kind::FailedPrecondition),
            (reason::DATASET_MISSING, Kind::FailedPrecondition),
            (reason::DATASET_FOREIGN, Kind::FailedPrecondition),
            (reason::KERNEL, Kind::Internal),
            ("SomethingElse", Kind::Internal),
        ] {
            assert_eq!(Kind::of_reason(reason), expected, "{reason}");
        }
    }

    #[test]
    fn every_kind_of_the_edge_has_its_code() {
        for (kind, expected) in [
            (Kind::InvalidArgument, Code::InvalidArgument),
            (Kind::NotFound, Code::NotFound),
            (Kind::AlreadyExists, Code::AlreadyExists),
            (Kind::FailedPrecondition, Code::FailedPrecondition),
            (Kind::OutOfRange, Code::OutOfRange),
            (Kind::ResourceExhausted, Code::ResourceExhausted),
            (Kind::Aborted, Code::Aborted),
            (Kind::Unavailable, Code::Unavailable),
            (Kind::DeadlineExceeded, Code::DeadlineExceeded),
            (Kind::Internal, Code::Internal),
        ] {
            assert_eq!(code(Refusal::new(kind, "x")), expected, "{kind:?}");
        }
        assert_eq!(
            code(capacity::Error::OutOfRange("x".into())),
            Code::OutOfRange
        );
        assert_eq!(
            code(capacity::Error::Invalid("x".into())),
            Code::InvalidArgument
        );
    }

    #[test]
    fn every_reason_for_no_place_has_its_code() {
        for (error, expected) in [
            (
                NoPlace::UnknownPool {
                    asked: "a".into(),
                    known: "b".into(),
                },
                Code::InvalidArgument,
            ),
            (NoPlace::Unusable("a".into()), Code::Unavailable),
            (
                NoPlace::TooLarge {
                    bytes: 2,
                    wholes: "a".into(),
                },
                Code::ResourceExhausted,
            ),
            (
                NoPlace::Full {
                    bytes: 1,
                    rooms: "a".into(),
                },
                Code::ResourceExhausted,
            ),
        ] {
            let said = error.to_string();
            assert_eq!(code(error), expected, "{said}");
        }
    }

    #[test]
    fn a_message_fits_into_a_header() {
        let status = Status::from(Refusal::invalid("é".repeat(4000)));
        assert!(status.message().len() <= MESSAGE_MAX + '…'.len_utf8());
    }
}
