//! The status server: who is answered what.
//!
//! `/status` is for nodes that want to join and are no members yet, so that everybody may ask. What
//! the tracker says of applications is for members of the cluster, and where there is a token, for
//! those who know it.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::selector::Labels;

/// A request as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub method: &'a str,
    /// Without the query.
    pub path: &'a str,
    pub peer: IpAddr,
    pub token: Token,
}

/// What the request says of the cluster's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// There is none to know.
    NotNeeded,
    Right,
    WrongOrMissing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Status,
    /// About an application on this node; about the cluster alone where the name is empty.
    App(String),
    /// About an application on all nodes.
    ClusterApp(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the token is missing or wrong")]
    Unauthorized,
    #[error("only members of the cluster may ask")]
    Forbidden,
    #[error("there is nothing here")]
    NotFound,
    /// Existing clients know these words.
    #[error("405 - Method Not Allowed")]
    MethodNotAllowed,
}

impl Refusal {
    pub fn code(self) -> u16 {
        match self {
            Refusal::Unauthorized => 401,
            Refusal::Forbidden => 403,
            Refusal::NotFound => 404,
            Refusal::MethodNotAllowed => 405,
        }
    }

    /// Whether it is about who asks, and not about what is asked.
    pub fn is_of_a_stranger(self) -> bool {
        match self {
            Refusal::Unauthorized | Refusal::Forbidden => true,
            Refusal::NotFound | Refusal::MethodNotAllowed => false,
        }
    }
}

/// Decides who is answered, from the cluster's prefix and from elsewhere.
pub fn route(request: &Request<'_>, prefix: IpNet) -> Result<Route, Refusal> {
    if request.path == "/status" {
        let gets = request.method == "GET";
        return if gets { Ok(Route::Status) } else { Err(Refusal::MethodNotAllowed) };
    }
    let route = match (below(request.path, "/app"), below(request.path, "/cluster-app")) {
        (Some(app), _) => Route::App(decode(app).ok_or(Refusal::NotFound)?),
        (None, Some(app)) => Route::ClusterApp(decode(app).ok_or(Refusal::NotFound)?),
        (None, None) => return Err(Refusal::NotFound),
    };
    if !prefix.contains(&request.peer.to_canonical()) {
        return Err(Refusal::Forbidden);
    }
    match request.token {
        Token::NotNeeded | Token::Right => Ok(route),
        Token::WrongOrMissing => Err(Refusal::Unauthorized),
    }
}

/// What follows a folder in a path: nothing for the folder itself.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(folder)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

/// The token that a query names, as in `?token=…`.
pub fn token_of(query: &str) -> Option<String> {
    query.split('&').find_map(|part| part.strip_prefix("token=")).and_then(decode)
}

/// An application's name as a part of a path.
pub fn encode(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let part =
        |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(part).collect()
}

/// Undoes the percent signs; `None` where what comes out is no text.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// What the node is in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    pub controlplane: bool,
    pub etcd: bool,
}

impl Roles {
    /// By the labels of the Node. Their value is `true`, or empty as some installers leave it.
    pub fn of(labels: &Labels) -> Self {
        let has = |role: &str| {
            let label = labels.get(&format!("node-role.kubernetes.io/{role}"));
            label.is_some_and(|value| value != "false")
        };
        let controlplane = ["control-plane", "controlplane", "master"].into_iter().any(has);
        Self { controlplane, etcd: has("etcd") }
    }
}

/// The text of `/status`. A node is the cluster to whoever wants to join when it holds the cluster's
/// data, or reaches those who do. Nobody knows is no.
pub fn status_text(roles: Option<Roles>, reaches_etcd: bool) -> &'static str {
    let joined = roles.is_some_and(|roles| roles.controlplane && (roles.etcd || reaches_etcd));
    if joined { "cluster" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: &str, path: &str, peer: &str, token: Token) -> String {
        let request = Request { method, path, peer: peer.parse().unwrap(), token };
        match route(&request, "10.244.244.0/28".parse().unwrap()) {
            Ok(Route::Status) => "status".to_owned(),
            Ok(Route::App(app)) => format!("app {app}"),
            Ok(Route::ClusterApp(app)) => format!("cluster-app {app}"),
            Err(refusal) => refusal.code().to_string(),
        }
    }

    #[test]
    fn every_path_has_its_answer() {
        let rows = [
            ("GET", "/status", "status"),
            ("POST", "/status", "405"),
            ("HEAD", "/status", "405"),
            ("GET", "/status/", "404"),
            ("GET", "/app", "app "),
            ("GET", "/app/", "app "),
            ("POST", "/app/web", "app web"),
            ("GET", "/app/My%20App%2f", "app My App/"),
            ("GET", "/app/%ff", "404"),
            ("GET", "/app/%4", "404"),
            ("GET", "/apple", "404"),
            ("GET", "/cluster-app", "cluster-app "),
            ("GET", "/cluster-app/web", "cluster-app web"),
            ("GET", "/", "404"),
            ("GET", "", "404"),
        ];
        for (method, path, expected) in rows {
            assert_eq!(ask(method, path, "10.244.244.3", Token::NotNeeded), expected, "{path}");
        }
    }

    #[test]
    fn applications_are_shown_to_members_who_know_the_token() {
        let app = |peer, token| ask("GET", "/app/web", peer, token);
        assert_eq!(app("10.244.244.3", Token::Right), "app web");
        assert_eq!(app("::ffff:10.244.244.3", Token::Right), "app web");
        assert_eq!(app("10.244.244.3", Token::WrongOrMissing), "401");
        assert_eq!(app("192.168.1.1", Token::Right), "403");
        assert_eq!(app("192.168.1.1", Token::WrongOrMissing), "403");
        assert_eq!(ask("GET", "/status", "192.168.1.1", Token::WrongOrMissing), "status");
    }

    #[test]
    fn a_name_comes_through_a_path_as_it_is() {
        for name in ["web", "My App/ü?#%2f", ""] {
            let path = format!("/app/{}", encode(name));
            assert!(path.is_ascii() && !path.contains(['?', '#', ' ']), "{path}");
            let asked = ask("POST", &path, "10.244.244.3", Token::NotNeeded);
            assert_eq!(asked, format!("app {name}"));
        }
    }

    #[test]
    fn a_token_may_stand_in_the_query() {
        let rows = [
            ("token=abc", Some("abc")),
            ("a=b&token=a%2Bb&token=c", Some("a+b")),
            ("token=", Some("")),
            ("token=%zz", None),
            ("mytoken=abc", None),
            ("", None),
        ];
        for (query, expected) in rows {
            assert_eq!(token_of(query).as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn only_a_controlplane_node_with_etcd_at_hand_is_the_cluster() {
        let labels = |names: &[(&str, &str)]| {
            let full = |(name, value): &(&str, &str)| {
                (format!("node-role.kubernetes.io/{name}"), (*value).to_owned())
            };
            Roles::of(&names.iter().map(full).collect())
        };
        let rows = [
            (vec![("control-plane", "true"), ("etcd", "true")], false, "cluster"),
            (vec![("master", "true"), ("etcd", "")], false, "cluster"),
            (vec![("control-plane", "true")], true, "cluster"),
            (vec![("control-plane", "true")], false, ""),
            (vec![("control-plane", "false"), ("etcd", "true")], true, ""),
            (vec![("etcd", "true")], true, ""),
            (vec![], true, ""),
        ];
        for (names, reaches, expected) in rows {
            assert_eq!(status_text(Some(labels(&names)), reaches), expected, "{names:?}");
        }
        assert_eq!(status_text(None, true), "", "the Node cannot be seen");
    }
}
