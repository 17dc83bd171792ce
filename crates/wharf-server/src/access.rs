//! Users, passwords, tokens and the audit log: the functions that API and pages call.

pub mod audit;
pub mod login;
pub mod password;
pub mod token;
pub mod user;

use jiff::Timestamp;
use wharf_core::access::{Need, Role};

pub use login::LoginLimits;
pub use password::Passwords;

use crate::error::{ApiError, ApiResult};

/// Who is asking, established before anything else of a request is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub role: Role,
    /// An address, or `socket`.
    pub origin: String,
    pub request_id: String,
    pub kind: CallerKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerKind {
    /// Nobody that we know; only routes that need nobody see this.
    Nobody,
    /// The owner of the data directory, over the Unix socket.
    Local,
    /// Somebody with a token of this id, which holds until then.
    User { token: String, until: Timestamp },
}

impl Caller {
    pub fn require(&self, need: Need) -> ApiResult<()> {
        if self.kind == CallerKind::Nobody && need != Need::Nobody {
            return Err(unauthorized());
        }
        if !self.role.satisfies(need) {
            return Err(ApiError::denied("your role does not allow this")
                .hint("ask an administrator to do it or to change your role"));
        }
        Ok(())
    }

    /// For what users may do to themselves and admins to all.
    pub fn require_self_or_admin(&self, user: &str) -> ApiResult<()> {
        if self.is_user(user) { Ok(()) } else { self.require(Need::Admin) }
    }

    pub fn is_user(&self, name: &str) -> bool {
        matches!(self.kind, CallerKind::User { .. }) && self.name == name
    }

    /// Whether what the caller is allowed depends on this record.
    pub fn rests_on(&self, resource: &str) -> bool {
        match (&self.kind, resource.split_once('/')) {
            (CallerKind::User { .. }, Some(("user", name))) => name == self.name,
            (CallerKind::User { token, .. }, Some(("token", id))) => {
                id.split_once('/') == Some((self.name.as_str(), token.as_str()))
            }
            _ => false,
        }
    }
}

pub fn unauthorized() -> ApiError {
    ApiError::new(wharf_api::error::ErrorCode::Unauthorized, "a valid token is needed")
        .hint("log in with `wharf login`, or send `Authorization: Bearer TOKEN`")
}

/// Random letters and digits, `N` of them, about 5.95 bits each.
pub(crate) fn random_text<const N: usize>() -> String {
    use rand::RngExt;
    let mut rng = rand::rng();
    (0..N).map(|_| char::from(rng.sample(rand::distr::Alphanumeric))).collect()
}

/// An id that sorts by time, so that new records lie side by side on the disk; the random part
/// keeps two of one millisecond apart.
pub(crate) fn new_id(now: Timestamp) -> String {
    let random: u32 = rand::RngExt::random(&mut rand::rng());
    format!("{:012x}{random:08x}", now.as_millisecond().max(0))
}

/// The smallest of those ids of that time or later.
pub(crate) fn first_id_at(time: Timestamp) -> String {
    format!("{:012x}", time.as_millisecond().max(0))
}

pub(crate) fn after(now: Timestamp, seconds: u64) -> Timestamp {
    let span = std::time::Duration::from_secs(seconds);
    now.checked_add(span).unwrap_or(Timestamp::MAX)
}
