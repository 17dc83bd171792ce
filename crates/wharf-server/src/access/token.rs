//! Bearer tokens.

use std::collections::HashMap;

use jiff::Timestamp;
use subtle::ConstantTimeEq;
use wharf_api::error::ErrorCode;
use wharf_core::access::{PresentedToken, Role, Token, User};
use wharf_store::{Page, Store, StoreError, StoreResult, Stored, Txn, typed::key_of};

use crate::{
    access::{Caller, CallerKind, after, new_id, random_text, user},
    app::AppState,
    error::{ApiError, ApiResult},
};

const DAY: u64 = 24 * 3600;
const DEFAULT_LIFETIME_SECONDS: u64 = 30 * DAY;
/// A token that holds for ever is found by somebody some day.
const MAX_LIFETIME_SECONDS: u64 = 366 * DAY;
const DESCRIPTION_MAX: usize = 200;
const TOKENS_PER_VIEWER: usize = 100;

/// Finds the user of a token. `None` for anything that does not hold: malformed, unknown, expired,
/// of a user that is gone.
pub async fn authenticate(
    store: &Store,
    text: &str,
    now: Timestamp,
) -> StoreResult<Option<(Stored<User>, Token)>> {
    let Some(presented) = PresentedToken::parse(text) else { return Ok(None) };
    let id = Token::record_id(presented.user, presented.id);
    let Some(token) = readable(store.read::<Token>(&id).await)? else { return Ok(None) };
    let stored = hex::decode(&token.value.secret_sha256).unwrap_or_default();
    if !bool::from(stored.ct_eq(&presented.secret_sha256())) || token.value.is_expired(now) {
        return Ok(None);
    }
    let user = readable(store.read::<User>(presented.user).await)?;
    let user = user.filter(|user| user.value.token_epoch == token.value.user_epoch);
    Ok(user.map(|user| (user, token.value)))
}

/// A record that cannot be read lets nobody in, and is no failure of the store.
fn readable<T>(result: StoreResult<Option<T>>) -> StoreResult<Option<T>> {
    match result {
        Err(StoreError::Unreadable { key, reason }) => {
            tracing::error!(key, reason, "a record cannot be read");
            Ok(None)
        }
        other => other,
    }
}

/// A new token's record, and the token itself, which is shown once and not kept.
pub fn make(
    user: &Stored<User>,
    description: &str,
    lifetime_seconds: u64,
    now: Timestamp,
) -> (Token, String) {
    let id = new_id(now);
    // 43 of 62 characters are 256 bits.
    let text = PresentedToken::render(&user.id, &id, &random_text::<43>());
    let secret_sha256 =
        PresentedToken::parse(&text).map(|t| hex::encode(t.secret_sha256())).unwrap_or_default();
    let record = Token {
        id,
        user: user.id.clone(),
        user_epoch: user.value.token_epoch.clone(),
        description: description.to_owned(),
        secret_sha256,
        created_at: now,
        expires_at: after(now, lifetime_seconds),
    };
    (record, text)
}

/// Stores a token. Should the user change meanwhile, the token does not hold: it is bound to the
/// epoch that was read.
pub fn create_txn(token: &Token, now: Timestamp) -> StoreResult<Txn> {
    Txn::new().create(&Token::record_id(&token.user, &token.id), token, now)
}

/// Whether what a caller was let in for still holds, role included.
pub async fn still_holds(store: &Store, caller: &Caller) -> StoreResult<bool> {
    let CallerKind::User { token, .. } = &caller.kind else { return Ok(true) };
    let id = Token::record_id(&caller.name, token);
    let token = readable(store.read::<Token>(&id).await)?;
    let user = readable(store.read::<User>(&caller.name).await)?;
    Ok(token.zip(user).is_some_and(|(token, user)| {
        user.value.token_epoch == token.value.user_epoch && user.value.role == caller.role
    }))
}

pub async fn create(
    app: &AppState,
    caller: &Caller,
    name: &str,
    description: &str,
    lifetime_seconds: Option<u64>,
) -> ApiResult<(Token, String)> {
    caller.require_self_or_admin(name)?;
    let lifetime = lifetime_seconds.unwrap_or(DEFAULT_LIFETIME_SECONDS);
    if !(1..=MAX_LIFETIME_SECONDS).contains(&lifetime) {
        return Err(ApiError::field(
            "expiresInSeconds",
            ErrorCode::InvalidOption,
            format!("a token holds for 1 to {MAX_LIFETIME_SECONDS} seconds"),
        ));
    }
    if description.chars().count() > DESCRIPTION_MAX {
        return Err(ApiError::field(
            "description",
            ErrorCode::MaxLengthExceeded,
            format!("the description must have at most {DESCRIPTION_MAX} characters"),
        ));
    }
    let user = user::find(&app.store, name).await?;
    if caller.role != Role::Admin {
        check_count(app, name).await?;
    }
    let now = Timestamp::now();
    let (record, text) = make(&user, description, lifetime, now);
    let txn = create_txn(&record, now)?;
    let resource = format!("token/{name}/{}", record.id);
    match app.commit(caller, "token.create", &resource, txn, now).await? {
        Some(_) => Ok((record, text)),
        None => Err(ApiError::conflict()),
    }
}

/// What users make for themselves is limited, so that none of them fills the disk.
async fn check_count(app: &AppState, name: &str) -> ApiResult<()> {
    let page = Page { after: None, limit: TOKENS_PER_VIEWER, descending: false };
    let prefix = key_of::<Token>(&Token::record_id(name, ""));
    if app.store.list(&prefix, page).await?.entries.len() < TOKENS_PER_VIEWER {
        return Ok(());
    }
    Err(ApiError::denied(format!("{name:?} has {TOKENS_PER_VIEWER} tokens already"))
        .hint("delete some, or wait until some have expired"))
}

pub async fn list(app: &AppState, caller: &Caller, name: &str) -> ApiResult<Vec<Stored<Token>>> {
    caller.require_self_or_admin(name)?;
    let user = user::find(&app.store, name).await?;
    let (tokens, _) = app.store.read_all::<Token>(&format!("{name}/")).await?;
    let live = |token: &Stored<Token>| token.value.user_epoch == user.value.token_epoch;
    Ok(tokens.into_iter().flatten().filter(live).collect())
}

pub async fn delete(app: &AppState, caller: &Caller, name: &str, id: &str) -> ApiResult<()> {
    caller.require_self_or_admin(name)?;
    user::find(&app.store, name).await?;
    let missing = || ApiError::not_found("token", id);
    if !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(missing());
    }
    let record_id = Token::record_id(name, id);
    let token = app.store.read::<Token>(&record_id).await?.ok_or_else(missing)?;
    let resource = format!("token/{record_id}");
    let now = Timestamp::now();
    // A token is never changed, so a refusal means that it is gone: as asked.
    app.commit(caller, "token.delete", &resource, Txn::new().remove(&token), now).await.map(drop)
}

/// Deletes tokens that have expired or whose user is gone.
pub async fn prune(store: &Store, now: Timestamp) -> StoreResult<()> {
    let (users, _) = store.read_all::<User>("").await?;
    let users: HashMap<String, String> =
        users.into_iter().flatten().map(|user| (user.id, user.value.token_epoch)).collect();
    let (tokens, _) = store.read_all::<Token>("").await?;
    for token in tokens.into_iter().flatten() {
        let orphan = users.get(&token.value.user) != Some(&token.value.user_epoch);
        if orphan || token.value.is_expired(now) {
            store.commit(Txn::new().remove(&token)).await.map(drop)?;
        }
    }
    Ok(())
}
