//! Login with a password, limited in rate.

use std::{net::Ipv6Addr, num::NonZeroU32, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock};
use jiff::Timestamp;
use wharf_api::{error::ErrorCode, user::LoggedIn};
use wharf_core::{access::User, name::check_user_name};

use crate::{
    access::{Caller, audit, token},
    app::AppState,
    error::{ApiError, ApiResult},
};

/// Attempts for one name from one address: a person mistypes a few times, then waits.
const PER_NAME_BURST: NonZeroU32 = NonZeroU32::new(5).unwrap();
const PER_NAME_PERIOD: Duration = Duration::from_secs(10);
/// Attempts from one address whatever the name: several people may sit behind it.
const PER_ADDRESS_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();
const PER_ADDRESS_PERIOD: Duration = Duration::from_secs(3);

/// Counts attempts. The counts are this server's own: with several servers an attacker gets as
/// many times the rate, which is still hopeless.
pub struct LoginLimits {
    per_name: DefaultKeyedRateLimiter<(String, String)>,
    per_address: DefaultKeyedRateLimiter<String>,
}

impl LoginLimits {
    pub fn new() -> Self {
        let quota = |burst, period| {
            Quota::with_period(period).unwrap_or(Quota::per_minute(burst)).allow_burst(burst)
        };
        Self {
            per_name: RateLimiter::keyed(quota(PER_NAME_BURST, PER_NAME_PERIOD)),
            per_address: RateLimiter::keyed(quota(PER_ADDRESS_BURST, PER_ADDRESS_PERIOD)),
        }
    }

    /// Counts an attempt to guess the password of `name`; an error if there were too many.
    pub fn check(&self, name: &str, origin: &str) -> ApiResult<()> {
        let now = governor::clock::DefaultClock::default().now();
        let network = network_of(origin);
        let waits = [
            self.per_address.check_key(&network).err(),
            self.per_name.check_key(&(name.to_owned(), network)).err(),
        ];
        let wait = waits.into_iter().flatten().map(|refusal| refusal.wait_time_from(now)).max();
        match wait {
            None => Ok(()),
            Some(wait) => {
                let seconds = wait.as_secs() + 1;
                let mut error =
                    ApiError::new(ErrorCode::TooManyRequests, "too many login attempts")
                        .hint(format!("try again in {seconds} s"));
                error.retry_after_seconds = Some(seconds);
                Err(error)
            }
        }
    }

    /// Forgets addresses and names that have been quiet.
    pub fn forget_quiet(&self) {
        self.per_name.retain_recent();
        self.per_address.retain_recent();
    }
}

/// Whoever has an IPv6 address has the whole /64 around it.
fn network_of(origin: &str) -> String {
    match origin.parse::<Ipv6Addr>() {
        Ok(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).to_string()
        }
        Err(_) => origin.to_owned(),
    }
}

impl Default for LoginLimits {
    fn default() -> Self {
        Self::new()
    }
}

/// Exchanges a password for a token. A wrong name and a wrong password look the same.
pub async fn login(
    app: &AppState,
    caller: &Caller,
    name: &str,
    password: &str,
) -> ApiResult<LoggedIn> {
    let wrong = || {
        ApiError::new(ErrorCode::Unauthorized, "the name or the password is wrong")
            .hint("an administrator can set a new password with `wharf user passwd NAME`")
    };
    if check_user_name(name).is_err() {
        return Err(wrong());
    }
    app.login_limits.check(name, &caller.origin)?;
    let attempt = Caller { name: name.to_owned(), ..caller.clone() };
    let resource = format!("user/{name}");
    let user = app.store.read::<User>(name).await?;
    let hash = user.as_ref().map(|user| user.value.password_hash.as_str());
    let right = app.passwords.verify(password, hash).await?;
    let (Some(user), true) = (user, right) else {
        audit::record_refusal(app, &attempt, "login", &resource).await;
        return Err(wrong());
    };
    let lifetime = u64::from(app.config.tokens.login_hours) * 3600;
    let now = Timestamp::now();
    let (record, text) = token::make(&user, "login", lifetime, now);
    let txn = token::create_txn(&record, now)?;
    match app.commit(&attempt, "login", &resource, txn, now).await? {
        Some(_) => Ok(LoggedIn { token: text, expires_at: record.expires_at }),
        None => Err(ApiError::conflict()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_ipv6_network_share_their_attempts_and_ipv4_addresses_do_not() {
        let limits = LoginLimits::new();
        let tries = |origin: fn(u32) -> String| {
            (0..30).filter(|i| limits.check("admin", &origin(*i)).is_ok()).count()
        };
        assert_eq!(tries(|i| format!("2001:db8::{i:x}")), 5);
        assert_eq!(tries(|i| format!("192.0.2.{i}")), 30);
    }
}
