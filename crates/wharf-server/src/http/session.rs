//! The console's session: a cookie that holds an ordinary token, and the proof that a request
//! comes from a page of this server.
//!
//! A browser sends a cookie for whoever makes it ask. So whatever acts on a cookie also looks at
//! where the request comes from ([`Source`]), and forms carry a text that only pages of the same
//! session know ([`form_token`]).

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use sha2::{Digest, Sha256};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The cookie's name. The prefix makes browsers refuse it unless it is for this host alone and came
/// over HTTPS; over plain HTTP, which there is on loopback only, it cannot have it.
pub fn cookie_name(http: bool) -> &'static str {
    if http { "wharf" } else { "__Host-wharf" }
}

/// The token in the console's cookie.
pub fn token_in_cookie(headers: &HeaderMap, http: bool) -> Option<String> {
    let wanted = cookie_name(http);
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| name.trim() == wanted).map(|(_, token)| token.trim().to_owned())
}

/// Sets the cookie, for as long as the token holds.
pub fn set_cookie(token: &str, seconds: i64, http: bool) -> Option<HeaderValue> {
    let secure = if http { "" } else { "; Secure" };
    let name = cookie_name(http);
    let text =
        format!("{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&text).ok()
}

/// Takes the cookie away.
pub fn clear_cookie(http: bool) -> Option<HeaderValue> {
    set_cookie("", 0, http)
}

/// A text that the forms of a session carry. Whoever has it has seen a page of that session; the
/// token itself, which must not stand in a page, cannot be got from it.
pub fn form_token(token: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"wharf console form\0");
    hash.update(token.as_bytes());
    hex::encode(hash.finalize())
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A page of this server.
    Own,
    /// A page of somebody else's.
    Foreign,
    /// It does not say; programs do not.
    Unknown,
}

impl Source {
    /// The browser's own word comes first: it holds behind a proxy that changes the host, too.
    /// Browsers give it only where the connection is trusted, so the origin is the second best.
    pub fn of(headers: &HeaderMap, uri: &Uri) -> Self {
        if let Some(site) = headers.get(SEC_FETCH_SITE) {
            return if site == "same-origin" { Source::Own } else { Source::Foreign };
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Source::Unknown };
        let origin = origin.to_str().unwrap_or_default();
        let place = origin.split_once("://").map(|(_, place)| place);
        match place.zip(host_of(headers, uri)) {
            Some((place, host)) if place.eq_ignore_ascii_case(host) => Source::Own,
            _ => Source::Foreign,
        }
    }
}

/// The name under which the caller reached this server; HTTP/2 has it in the address.
pub fn host_of<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    header.or_else(|| uri.authority().map(|authority| authority.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn only_pages_of_this_server_are_its_own() {
        let host = ("host", "wharf.example:8443");
        for (given, expected) in [
            (vec![host], Source::Unknown),
            (vec![host, ("origin", "https://wharf.example:8443")], Source::Own),
            (vec![host, ("origin", "https://wharf.example")], Source::Foreign),
            (vec![host, ("origin", "https://evil.example")], Source::Foreign),
            (vec![host, ("origin", "null")], Source::Foreign),
            (vec![("origin", "https://wharf.example:8443")], Source::Foreign),
            (vec![host, ("sec-fetch-site", "same-origin")], Source::Own),
            (vec![host, ("sec-fetch-site", "same-site")], Source::Foreign),
            (vec![host, ("sec-fetch-site", "none")], Source::Foreign),
            (
                vec![
                    host,
                    ("sec-fetch-site", "cross-site"),
                    ("origin", "https://wharf.example:8443"),
                ],
                Source::Foreign,
            ),
        ] {
            assert_eq!(Source::of(&headers(&given), &Uri::from_static("/")), expected, "{given:?}");
        }
        let uri = Uri::from_static("https://wharf.example:8443/console");
        let given = headers(&[("origin", "https://wharf.example:8443")]);
        assert_eq!(Source::of(&given, &uri), Source::Own);
    }

    #[test]
    fn over_https_only_the_cookie_of_https_counts() {
        let given = headers(&[("cookie", "a=b; wharf=plain; __Host-wharf=secure")]);
        assert_eq!(token_in_cookie(&given, true).as_deref(), Some("plain"));
        assert_eq!(token_in_cookie(&given, false).as_deref(), Some("secure"));
        assert_eq!(token_in_cookie(&headers(&[("cookie", "wharf=x")]), false), None);
        let set = set_cookie("t", 60, false).unwrap();
        let set = set.to_str().unwrap();
        assert_eq!(set, "__Host-wharf=t; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure");
    }

    #[test]
    fn a_form_token_is_of_one_session_and_does_not_show_it() {
        let token = "wharf.admin.1.secret";
        assert_ne!(form_token(token), form_token("wharf.admin.2.secret"));
        assert!(!form_token(token).contains("secret"));
    }
}
