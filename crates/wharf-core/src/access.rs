//! Who may do what: users, roles, tokens, and the record of what was done.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::record::Kind;

/// What a user may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Look at clusters, change nothing.
    Viewer { clusters: Scope },
}

/// Which clusters a viewer sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    All,
    Only(BTreeSet<String>),
}

/// What a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Nothing: login, health, the API's description.
    Nobody,
    /// Any user; what is shown is cut to the caller's clusters.
    Viewer,
    Admin,
}

impl Role {
    pub fn satisfies(&self, need: Need) -> bool {
        match (self, need) {
            (_, Need::Nobody | Need::Viewer) | (Role::Admin, Need::Admin) => true,
            (Role::Viewer { .. }, Need::Admin) => false,
        }
    }

    pub fn sees_cluster(&self, cluster: &str) -> bool {
        match self {
            Role::Admin | Role::Viewer { clusters: Scope::All } => true,
            Role::Viewer { clusters: Scope::Only(names) } => names.contains(cluster),
        }
    }
}

/// A person or program that may log in. The id is the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub name: String,
    #[serde(flatten)]
    pub role: Role,
    /// argon2id in the PHC format.
    pub password_hash: String,
    /// Random, and new with each password. Tokens are bound to it: they end with the password
    /// under which they were made, and a later user of the same name does not inherit them.
    pub token_epoch: String,
    pub created_at: Timestamp,
}

impl Kind for User {
    const KIND: &'static str = "user";
}

/// A bearer token, stored only as a hash. The id is `<user>/<token id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub id: String,
    pub user: String,
    /// The user's `token_epoch` when the token was made.
    pub user_epoch: String,
    pub description: String,
    /// SHA-256 of the secret, in hex. The secret has 256 random bits, so no slow hash is needed.
    pub secret_sha256: String,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

impl Kind for Token {
    const KIND: &'static str = "token";
}

impl Token {
    pub fn record_id(user: &str, id: &str) -> String {
        format!("{user}/{id}")
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
    }
}

/// A token as its bearer presents it: `wharf.<user>.<id>.<secret>`. The user and the id find the
/// record by its key; only the secret is secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PresentedToken<'a> {
    pub user: &'a str,
    pub id: &'a str,
    secret: &'a str,
}

impl<'a> PresentedToken<'a> {
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.strip_prefix("wharf.")?.split('.');
        let (user, id, secret) = (parts.next()?, parts.next()?, parts.next()?);
        let plain = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric());
        let whole = parts.next().is_none()
            && crate::name::check_user_name(user).is_ok()
            && plain(id)
            && plain(secret);
        whole.then_some(PresentedToken { user, id, secret })
    }

    pub fn render(user: &str, id: &str, secret: &str) -> String {
        format!("wharf.{user}.{id}.{secret}")
    }

    pub fn secret_sha256(&self) -> [u8; 32] {
        Sha256::digest(self.secret.as_bytes()).into()
    }
}

/// One thing that somebody did or tried, without secrets. The id sorts by time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    pub time: Timestamp,
    /// The user's name; `local` for the Unix socket.
    pub user: String,
    /// Where the call came from: an address, or `socket`.
    pub origin: String,
    pub request_id: String,
    /// What was done, as `<kind>.<verb>`: `user.create`, `login`.
    pub action: String,
    /// To which record, as `<kind>/<id>`.
    pub resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// What the caller gave as the reason, where one is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub outcome: AuditOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    Done,
    Refused,
}

impl Kind for AuditRecord {
    const KIND: &'static str = "audit";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_of_some_clusters_sees_only_those() {
        let viewer = Role::Viewer { clusters: Scope::Only(["a".to_owned()].into()) };
        assert!(viewer.sees_cluster("a"));
        assert!(!viewer.sees_cluster("b"));
        assert!(Role::Viewer { clusters: Scope::All }.sees_cluster("b"));
        assert!(Role::Admin.sees_cluster("b"));
    }

    #[test]
    fn needs_and_roles() {
        let viewer = Role::Viewer { clusters: Scope::All };
        for (need, viewer_may) in [(Need::Nobody, true), (Need::Viewer, true), (Need::Admin, false)]
        {
            assert_eq!(viewer.satisfies(need), viewer_may, "{need:?}");
            assert!(Role::Admin.satisfies(need), "{need:?}");
        }
    }

    #[test]
    fn a_rendered_token_parses_back() {
        let text = PresentedToken::render("alice-2", "9f", "S3cret");
        let token = PresentedToken::parse(&text).unwrap();
        assert_eq!((token.user, token.id, token.secret), ("alice-2", "9f", "S3cret"));
    }

    #[test]
    fn nonsense_is_no_token() {
        for text in [
            "",
            "wharf",
            "wharf.",
            "wharf.a.b",
            "wharf.a.b.",
            "wharf.a.b.c.d",
            "wharf.A.b.c",
            "wharf.a/b.c.d",
            "wharf.a.b/c.d",
            "wharf.a.b.ü",
            "x.a.b.c",
            "wharf..b.c",
        ] {
            assert!(PresentedToken::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn roles_are_stored_in_a_readable_form() {
        let scoped = Role::Viewer { clusters: Scope::Only(["a".to_owned()].into()) };
        for (role, json) in [
            (Role::Admin, r#"{"role":"admin"}"#),
            (Role::Viewer { clusters: Scope::All }, r#"{"role":"viewer","clusters":"all"}"#),
            (scoped, r#"{"role":"viewer","clusters":{"only":["a"]}}"#),
        ] {
            assert_eq!(serde_json::to_string(&role).unwrap(), json);
            assert_eq!(serde_json::from_str::<Role>(json).unwrap(), role);
        }
    }
}
