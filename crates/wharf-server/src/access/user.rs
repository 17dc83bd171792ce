//! Users.

use jiff::Timestamp;
use wharf_api::{error::ErrorCode, error::FieldFault};
use wharf_core::{
    access::{Role, Scope, User},
    name::check_user_name,
};
use wharf_store::{Compare, Revision, Store, StoreResult, Stored, Txn, typed::key_of};

use crate::{
    access::{Caller, audit, password, random_text},
    app::AppState,
    error::{ApiError, ApiResult},
};

/// How often a change is tried again when others write the same record.
const TRIES: usize = 5;

pub async fn list(store: &Store) -> StoreResult<Vec<Stored<User>>> {
    let (users, _) = store.read_all::<User>("").await?;
    Ok(users.into_iter().flatten().collect())
}

pub async fn get(app: &AppState, caller: &Caller, name: &str) -> ApiResult<Stored<User>> {
    caller.require_self_or_admin(name)?;
    find(&app.store, name).await
}

/// A user; names that cannot be are not there either.
pub async fn find(store: &Store, name: &str) -> ApiResult<Stored<User>> {
    match check_user_name(name) {
        Ok(()) => store.read::<User>(name).await?.ok_or_else(|| ApiError::not_found("user", name)),
        Err(_) => Err(ApiError::not_found("user", name)),
    }
}

/// Creates a user; the password comes back only if the server chose it.
pub async fn create(
    app: &AppState,
    caller: &Caller,
    name: &str,
    role: Role,
    given: Option<String>,
) -> ApiResult<(Stored<User>, Option<String>)> {
    check_new(name, &role)?;
    if let Some(given) = &given {
        password::check(given)?;
    }
    let chosen = given.is_none().then(password::generate);
    let secret = given.or_else(|| chosen.clone()).unwrap_or_default();
    let now = Timestamp::now();
    let user = User {
        name: name.to_owned(),
        role,
        password_hash: app.passwords.hash(&secret).await?,
        token_epoch: random_text::<16>(),
        created_at: now,
    };
    let txn = Txn::new().create(name, &user, now)?;
    match app.commit(caller, "user.create", &format!("user/{name}"), txn, now).await? {
        Some(revision) => {
            let id = name.to_owned();
            Ok((Stored { id, value: user, created: revision, revision, at: now }, chosen))
        }
        None => Err(ApiError::new(
            ErrorCode::DuplicateResource,
            format!("there is already a user {name:?}"),
        )),
    }
}

fn check_new(name: &str, role: &Role) -> ApiResult<()> {
    let mut faults = Vec::new();
    if let Err(fault) = check_user_name(name) {
        faults.push(FieldFault {
            field: "name".to_owned(),
            code: ErrorCode::InvalidFormat,
            message: format!("the user's name {fault}"),
        });
    }
    if let Role::Viewer { clusters: Scope::Only(names) } = role {
        faults.extend(names.iter().enumerate().filter(|(_, name)| name.is_empty()).map(
            |(i, _)| FieldFault {
                field: format!("clusters[{i}]"),
                code: ErrorCode::NotNullable,
                message: "a cluster's name must not be empty".to_owned(),
            },
        ));
    }
    if faults.is_empty() { Ok(()) } else { Err(ApiError::invalid(faults)) }
}

pub async fn set_role(
    app: &AppState,
    caller: &Caller,
    name: &str,
    role: Role,
    if_match: Option<Revision>,
) -> ApiResult<Stored<User>> {
    check_new(name, &role)?;
    change(app, caller, "user.update", name, if_match, |user| user.role = role.clone()).await
}

/// Sets a password and ends all tokens that were made under the old one.
pub async fn set_password(
    app: &AppState,
    caller: &Caller,
    name: &str,
    new: &str,
    old: Option<&str>,
) -> ApiResult<()> {
    caller.require_self_or_admin(name)?;
    password::check(new)?;
    let user = find(&app.store, name).await?;
    if caller.is_user(name) {
        let hash = user.value.password_hash.as_str();
        app.login_limits.check(name, &caller.origin)?;
        let right = match old {
            Some(old) => app.passwords.verify(old, Some(hash)).await?,
            None => false,
        };
        if !right {
            audit::record_refusal(app, caller, "user.password", &format!("user/{name}")).await;
            return Err(ApiError::denied("the old password is missing or wrong"));
        }
    }
    let hash = app.passwords.hash(new).await?;
    change(app, caller, "user.password", name, None, |user| {
        user.password_hash.clone_from(&hash);
        user.token_epoch = random_text::<16>();
    })
    .await
    .map(drop)
}

pub async fn delete(
    app: &AppState,
    caller: &Caller,
    name: &str,
    if_match: Option<Revision>,
) -> ApiResult<()> {
    for _ in 0..TRIES {
        let user = find(&app.store, name).await?;
        check_revision(&user, if_match)?;
        let txn = guard_last_admin(&app.store, &user, Txn::new().remove(&user), true).await?;
        let now = Timestamp::now();
        if app.commit(caller, "user.delete", &format!("user/{name}"), txn, now).await?.is_some() {
            return Ok(());
        }
    }
    Err(ApiError::conflict())
}

async fn change(
    app: &AppState,
    caller: &Caller,
    action: &str,
    name: &str,
    if_match: Option<Revision>,
    edit: impl Fn(&mut User),
) -> ApiResult<Stored<User>> {
    for _ in 0..TRIES {
        let old = find(&app.store, name).await?;
        check_revision(&old, if_match)?;
        let mut value = old.value.clone();
        edit(&mut value);
        let now = Timestamp::now();
        let txn = Txn::new().replace(&old, &value, now)?;
        let demoted = old.value.role == Role::Admin && value.role != Role::Admin;
        let txn = guard_last_admin(&app.store, &old, txn, demoted).await?;
        let done = app.commit(caller, action, &format!("user/{name}"), txn, now).await?;
        if let Some(revision) = done {
            return Ok(Stored { value, revision, at: now, ..old });
        }
    }
    Err(ApiError::conflict())
}

fn check_revision(user: &Stored<User>, if_match: Option<Revision>) -> ApiResult<()> {
    match if_match {
        Some(revision) if revision != user.revision => Err(ApiError::new(
            ErrorCode::PreconditionFailed,
            format!("the user {:?} has changed since revision {revision}", user.id),
        )
        .hint("read it again and repeat the change")),
        _ => Ok(()),
    }
}

/// Without any admin nobody could make one again: the change is bound to another admin's record.
async fn guard_last_admin(
    store: &Store,
    user: &Stored<User>,
    txn: Txn,
    loses_admin: bool,
) -> ApiResult<Txn> {
    if !loses_admin || user.value.role != Role::Admin {
        return Ok(txn);
    }
    let users = list(store).await?;
    let other = users.iter().find(|u| u.value.role == Role::Admin && u.id != user.id);
    match other {
        Some(other) => Ok(txn.when(Compare::ModifiedAt(key_of::<User>(&other.id), other.revision))),
        None => Err(ApiError::denied(format!("{:?} is the only admin", user.id))
            .hint("make another user an admin first")),
    }
}

/// Makes the first admin if there is no user at all; the password comes back if it was made here.
pub async fn bootstrap(
    store: &Store,
    passwords: &password::Passwords,
    given: Option<String>,
) -> ApiResult<Option<String>> {
    let page = wharf_store::Page { after: None, limit: 1, descending: false };
    if !store.list("user/", page).await?.entries.is_empty() {
        return Ok(None);
    }
    let chosen = given.is_none().then(password::generate);
    let secret = given.or_else(|| chosen.clone()).unwrap_or_default();
    let now = Timestamp::now();
    let admin = User {
        name: "admin".to_owned(),
        role: Role::Admin,
        password_hash: passwords.hash(&secret).await?,
        token_epoch: random_text::<16>(),
        created_at: now,
    };
    match store.commit(Txn::new().create("admin", &admin, now)?).await? {
        wharf_store::Outcome::Committed(_) => Ok(chosen),
        // Another server of the same store was first, and told its password.
        wharf_store::Outcome::Refused => Ok(None),
    }
}
