//! Errors on the wire: one body, a table of stable codes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $status:literal,)*) => {
        /// What went wrong, in a form that programs may rely on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
            /// A code that this client does not know.
            #[serde(other)]
            Unknown,
        }

        impl ErrorCode {
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The HTTP status that goes with the code.
            pub fn status(self) -> u16 {
                match self {
                    $(ErrorCode::$name => $status,)*
                    ErrorCode::Unknown => 500,
                }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or not UTF-8.
    MalformedBody = 400,
    /// A query parameter or header cannot be understood.
    InvalidRequest = 400,
    /// No token, or one that does not hold.
    Unauthorized = 401,
    /// The role does not allow it, or the state does not.
    PermissionDenied = 403,
    NotFound = 404,
    MethodNotAllow = 405,
    /// The request took longer than the server allows.
    RequestTimeout = 408,
    /// It collides with what is there.
    Conflict = 409,
    /// `If-Match` names an older revision.
    PreconditionFailed = 412,
    BodyTooLarge = 413,
    UnsupportedMediaType = 415,
    /// The name is taken.
    DuplicateResource = 422,
    /// A field's text has the wrong form.
    InvalidFormat = 422,
    /// A field that may not be empty is.
    NotNullable = 422,
    /// A field's value is not one of the allowed.
    InvalidOption = 422,
    /// A field is missing.
    MissingRequired = 422,
    /// The query parameter `action` names none that this resource has.
    InvalidAction = 404,
    /// The body does not have the form of the resource; `details` name the fields.
    InvalidBodyContent = 422,
    MinLengthExceeded = 422,
    MaxLengthExceeded = 422,
    /// Too many attempts; `Retry-After` says when to try again.
    TooManyRequests = 429,
    /// The server's fault; its log has the details under the request id.
    ServerError = 500,
    /// The cluster cannot be reached at the moment.
    ClusterUnavailable = 503,
    /// The store cannot be reached or the server is stopping.
    Unavailable = 503,
    /// The server's disk is full; nothing acknowledged was lost.
    StorageFull = 507,
}

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    #[schema(example = "error")]
    pub type_: String,
    pub code: ErrorCode,
    /// The HTTP status again, for clients that see only the body.
    pub status: u16,
    pub message: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// All faults of an invalid body at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<FieldFault>,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldFault {
    /// The path of the field.
    #[schema(example = "nodes[1].address")]
    pub field: String,
    pub code: ErrorCode,
    pub message: String,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            type_: "error".to_owned(),
            code,
            status: code.status(),
            message: message.into(),
            hint: None,
            details: Vec::new(),
        }
    }

    /// An invalid body: the message is the first fault's text.
    pub fn invalid(details: Vec<FieldFault>) -> Self {
        let message = details
            .first()
            .map_or_else(|| "the body is invalid".to_owned(), |fault| fault.message.clone());
        Self { details, ..Self::new(ErrorCode::InvalidBodyContent, message) }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_error_status_and_survives_the_wire() {
        for code in ErrorCode::ALL {
            assert!((400..600).contains(&code.status()), "{code:?}");
            let text = serde_json::to_string(code).unwrap();
            assert_eq!(serde_json::from_str::<ErrorCode>(&text).unwrap(), *code);
        }
        assert_eq!(
            serde_json::from_str::<ErrorCode>("\"FromTheFuture\"").unwrap(),
            ErrorCode::Unknown
        );
    }

    #[test]
    fn an_invalid_body_speaks_with_its_first_fault() {
        let fault = |field: &str| FieldFault {
            field: field.to_owned(),
            code: ErrorCode::MissingRequired,
            message: format!("field {field} is missing"),
        };
        let body = ErrorBody::invalid(vec![fault("name"), fault("role")]);
        assert_eq!(body.message, "field name is missing");
        assert_eq!(body.status, 422);
        assert_eq!(body.details.len(), 2);
    }
}
