//! Passwords: argon2id, off the runtime's threads, a few at a time.

use std::sync::Arc;

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use tokio::sync::Semaphore;
use wharf_api::error::ErrorCode;

use crate::error::{ApiError, ApiResult};

/// Long enough that the rate limit makes guessing hopeless.
pub const MIN_LENGTH: usize = 12;
/// More only costs the server time.
pub const MAX_LENGTH: usize = 1024;
/// A hash takes 19 MiB and some 20 ms of a core; more at once would starve everything else.
const AT_ONCE: usize = 2;

pub struct Passwords {
    slots: Arc<Semaphore>,
    /// The hash of no password, checked for unknown users, so that they take as long as known ones.
    decoy: String,
}

impl Passwords {
    pub fn new() -> Result<Self, argon2::password_hash::Error> {
        let nobody = super::random_text::<32>();
        let decoy = Argon2::default().hash_password(nobody.as_bytes())?.to_string();
        Ok(Self { slots: Arc::new(Semaphore::new(AT_ONCE)), decoy })
    }

    pub async fn hash(&self, password: &str) -> ApiResult<String> {
        let password = password.to_owned();
        self.run(move || {
            Argon2::default().hash_password(password.as_bytes()).map(|hash| hash.to_string())
        })
        .await?
        .map_err(|e| ApiError::internal(e.to_string()))
    }

    /// Whether the password is right; without a hash it takes as long and is wrong.
    pub async fn verify(&self, password: &str, hash: Option<&str>) -> ApiResult<bool> {
        let password = password.to_owned();
        let known = hash.is_some();
        let hash = hash.unwrap_or(&self.decoy).to_owned();
        let right = self
            .run(move || {
                PasswordHash::new(&hash).is_ok_and(|hash| {
                    Argon2::default().verify_password(password.as_bytes(), &hash).is_ok()
                })
            })
            .await?;
        Ok(known && right)
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> ApiResult<T> {
        let slot = self.slots.clone().acquire_owned().await.map_err(ApiError::internal)?;
        let work = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(slot);
            result
        });
        work.await.map_err(ApiError::internal)
    }
}

/// A password of about 119 bits, for a person to copy.
pub fn generate() -> String {
    super::random_text::<20>()
}

pub fn check(password: &str) -> ApiResult<()> {
    let length = password.chars().count();
    if length < MIN_LENGTH {
        return Err(ApiError::field(
            "password",
            ErrorCode::MinLengthExceeded,
            format!("the password must have at least {MIN_LENGTH} characters"),
        ));
    }
    if password.len() > MAX_LENGTH {
        return Err(ApiError::field(
            "password",
            ErrorCode::MaxLengthExceeded,
            format!("the password must have at most {MAX_LENGTH} bytes"),
        ));
    }
    Ok(())
}
