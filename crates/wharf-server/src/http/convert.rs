//! From records to the wire and back.

pub mod agent;
pub mod app;
pub mod cluster;
pub mod drain;
pub mod node;
pub mod operation;
pub mod repair;
pub mod volume;

use std::collections::BTreeSet;

use wharf_api::{
    error::ErrorCode,
    resource::{Head, Links},
    server as wire_server, user as wire,
};
use wharf_core::access::{AuditOutcome, AuditRecord, Role, Scope, Token, User};
use wharf_store::Stored;

use crate::{
    engine::Member,
    error::{ApiError, ApiResult},
};

/// Links of a resource that can be changed and removed.
fn links(collection: &str, id: &str, children: &[&str]) -> Links {
    let own = format!("{collection}/{id}");
    let mut links = Links::from([
        ("self".to_owned(), own.clone()),
        ("update".to_owned(), own.clone()),
        ("remove".to_owned(), own.clone()),
        ("collection".to_owned(), collection.to_owned()),
    ]);
    links.extend(children.iter().map(|child| ((*child).to_owned(), format!("{own}/{child}"))));
    links
}

fn only_self(collection: &str, id: &str) -> Links {
    Links::from([
        ("self".to_owned(), format!("{collection}/{id}")),
        ("collection".to_owned(), collection.to_owned()),
    ])
}

pub fn role_to_wire(role: &Role) -> (wire::RoleName, Option<Vec<String>>) {
    match role {
        Role::Admin => (wire::RoleName::Admin, None),
        Role::Viewer { clusters: Scope::All } => (wire::RoleName::Viewer, None),
        Role::Viewer { clusters: Scope::Only(names) } => {
            (wire::RoleName::Viewer, Some(names.iter().cloned().collect()))
        }
    }
}

pub fn role_from_wire(role: wire::RoleName, clusters: Option<Vec<String>>) -> ApiResult<Role> {
    match (role, clusters) {
        (wire::RoleName::Admin, None) => Ok(Role::Admin),
        (wire::RoleName::Admin, Some(_)) => Err(ApiError::field(
            "clusters",
            ErrorCode::InvalidOption,
            "an admin sees all clusters: leave `clusters` out, or choose the role viewer",
        )),
        (wire::RoleName::Viewer, None) => Ok(Role::Viewer { clusters: Scope::All }),
        (wire::RoleName::Viewer, Some(names)) => {
            Ok(Role::Viewer { clusters: Scope::Only(BTreeSet::from_iter(names)) })
        }
    }
}

pub fn user(prefix: &str, stored: &Stored<User>, password: Option<String>) -> wire::User {
    let (role, clusters) = role_to_wire(&stored.value.role);
    let collection = format!("{prefix}/users");
    let head = Head {
        id: stored.id.clone(),
        type_: "user".to_owned(),
        links: links(&collection, &stored.id, &["tokens"]),
        creation_timestamp: stored.value.created_at,
        deletion_timestamp: None,
    };
    wire::User { head, name: stored.value.name.clone(), role, clusters, password }
}

pub fn token(prefix: &str, record: &Token, text: Option<String>) -> wire::Token {
    let collection = format!("{prefix}/users/{}/tokens", record.user);
    let mut links = only_self(&collection, &record.id);
    links.insert("remove".to_owned(), format!("{collection}/{}", record.id));
    let head = Head {
        id: record.id.clone(),
        type_: "token".to_owned(),
        links,
        creation_timestamp: record.created_at,
        deletion_timestamp: None,
    };
    wire::Token {
        head,
        user: record.user.clone(),
        description: record.description.clone(),
        expires_at: record.expires_at,
        token: text,
    }
}

pub fn audit(prefix: &str, stored: Stored<AuditRecord>) -> wire::Audit {
    let record = stored.value;
    let head = Head {
        links: only_self(&format!("{prefix}/audit"), &stored.id),
        id: stored.id,
        type_: "audit".to_owned(),
        creation_timestamp: record.time,
        deletion_timestamp: None,
    };
    wire::Audit {
        head,
        time: record.time,
        user: record.user,
        origin: record.origin,
        request_id: record.request_id,
        action: record.action,
        resource: record.resource,
        cluster: record.cluster,
        reason: record.reason,
        outcome: match record.outcome {
            AuditOutcome::Done => wire::Outcome::Done,
            AuditOutcome::Refused => wire::Outcome::Refused,
        },
    }
}

pub fn member(prefix: &str, member: &Member, this: bool) -> wire_server::Member {
    let head = Head {
        id: member.id.0.clone(),
        type_: "member".to_owned(),
        links: only_self(&format!("{prefix}/members"), &member.id.0),
        creation_timestamp: member.started_at,
        deletion_timestamp: None,
    };
    wire_server::Member {
        head,
        address: member.address.clone(),
        version: member.version.clone(),
        started_at: member.started_at,
        this,
    }
}
