//! Reading a kubeconfig that somebody else may have written.
//!
//! Only what is in the text itself is used. Programs to run, files to read and switched-off
//! checks are refused by their name, so that nobody makes the server run or read something.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use serde::Deserialize;
use serde_json::Value;

/// A kubeconfig is a few kilobytes; this leaves room for many contexts.
const MAX_BYTES: usize = 1 << 20;

/// What the text says wrongly. No value of the text is ever in here, it may be a secret.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum KubeconfigError {
    #[error("it is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("it is not YAML{}", line.map(|line| format!(" (line {line})")).unwrap_or_default())]
    NotYaml { line: Option<u64> },
    #[error("it is not a kubeconfig: it has no list of clusters, contexts and users")]
    NotAKubeconfig,
    #[error("it names no current-context")]
    NoContext,
    #[error("there is no {kind} named {name:?}")]
    Missing { kind: &'static str, name: String },
    #[error("{field} is refused: {reason}")]
    Refused { field: String, reason: &'static str },
    #[error("{field} is not known")]
    Unknown { field: String },
    #[error("{field} is missing")]
    MissingField { field: &'static str },
    #[error("{field} is not {expected}")]
    Bad { field: &'static str, expected: &'static str },
}

type Result<T> = std::result::Result<T, KubeconfigError>;

/// What is needed to reach a cluster.
pub(crate) struct Access {
    pub server: Uri,
    pub server_name: Option<ServerName<'static>>,
    pub authorities: Vec<CertificateDer<'static>>,
    pub identity: Identity,
}

pub(crate) enum Identity {
    Certificate { chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static> },
    Token(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: String,
    clusters: Vec<Named>,
    contexts: Vec<Named>,
    users: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(flatten)]
    body: BTreeMap<String, Value>,
}

type Fields = BTreeMap<String, Value>;

/// Of a cluster's fields: refused with the reason.
const REFUSED_OF_CLUSTER: &[(&str, &str)] = &[
    ("certificate-authority", "files are not read; use certificate-authority-data"),
    ("insecure-skip-tls-verify", "the server's certificate is always checked"),
    ("proxy-url", "proxies are not used"),
];
const KNOWN_OF_CLUSTER: &[&str] = &[
    "server",
    "certificate-authority-data",
    "tls-server-name",
    "disable-compression",
    "extensions",
];
/// Of a user's fields.
const REFUSED_OF_USER: &[(&str, &str)] = &[
    ("exec", "programs are not run"),
    ("auth-provider", "plugins are not run"),
    ("client-certificate", "files are not read; use client-certificate-data"),
    ("client-key", "files are not read; use client-key-data"),
    ("tokenFile", "files are not read; use token"),
    ("username", "Kubernetes knows no passwords"),
    ("password", "Kubernetes knows no passwords"),
    ("as", "the identity itself must have the rights"),
    ("as-uid", "the identity itself must have the rights"),
    ("as-groups", "the identity itself must have the rights"),
    ("as-user-extra", "the identity itself must have the rights"),
];
const KNOWN_OF_USER: &[&str] =
    &["client-certificate-data", "client-key-data", "token", "extensions"];

/// Takes what the current context names out of a kubeconfig.
pub(crate) fn parse(text: &str) -> Result<Access> {
    if text.len() > MAX_BYTES {
        return Err(KubeconfigError::TooLarge);
    }
    let value: Value = serde_saphyr::from_str(text).map_err(|error| KubeconfigError::NotYaml {
        line: error.location().map(|place| place.line()),
    })?;
    let file: File = serde_json::from_value(value).map_err(|_| KubeconfigError::NotAKubeconfig)?;
    if file.current_context.is_empty() {
        return Err(KubeconfigError::NoContext);
    }
    let context = find(&file.contexts, "context", &file.current_context)?;
    let name_in = |field: &'static str| {
        context.get(field).and_then(Value::as_str).ok_or(KubeconfigError::MissingField { field })
    };
    let cluster = find(&file.clusters, "cluster", name_in("cluster")?)?;
    let user = find(&file.users, "user", name_in("user")?)?;
    check(&cluster, REFUSED_OF_CLUSTER, KNOWN_OF_CLUSTER)?;
    check(&user, REFUSED_OF_USER, KNOWN_OF_USER)?;
    Ok(Access {
        server: server(text_of(&cluster, "server")?)?,
        server_name: server_name(&cluster)?,
        authorities: certificates(&cluster, "certificate-authority-data")?,
        identity: identity(&user)?,
    })
}

/// The fields of the entry with this name; they are under the name of their kind.
fn find(entries: &[Named], kind: &'static str, name: &str) -> Result<Fields> {
    let entry = entries.iter().find(|entry| entry.name == name);
    let body = entry.and_then(|entry| entry.body.get(kind)).and_then(Value::as_object);
    match body {
        Some(fields) => {
            Ok(fields.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        None => Err(KubeconfigError::Missing { kind, name: name.to_owned() }),
    }
}

fn check(fields: &Fields, refused: &[(&str, &'static str)], known: &[&str]) -> Result<()> {
    for (field, value) in fields {
        // A field that is spelled out but off, as some tools do, asks for nothing.
        let is_off = match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        if is_off || known.contains(&field.as_str()) {
            continue;
        }
        let field = field.clone();
        return Err(match refused.iter().find(|(name, _)| *name == field) {
            Some((_, reason)) => KubeconfigError::Refused { field, reason },
            None => KubeconfigError::Unknown { field },
        });
    }
    Ok(())
}

fn text_of<'a>(fields: &'a Fields, field: &'static str) -> Result<&'a str> {
    match fields.get(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        Some(Value::Null) | Some(Value::String(_)) | None => {
            Err(KubeconfigError::MissingField { field })
        }
        Some(_) => Err(KubeconfigError::Bad { field, expected: "a text" }),
    }
}

pub(crate) fn server(text: &str) -> Result<Uri> {
    let bad = KubeconfigError::Bad { field: "server", expected: "an https:// address" };
    let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| bad.clone())?;
    let is_https = uri.scheme_str() == Some("https") && uri.host().is_some();
    if is_https && uri.query().is_none() { Ok(uri) } else { Err(bad) }
}

fn server_name(cluster: &Fields) -> Result<Option<ServerName<'static>>> {
    let field = "tls-server-name";
    match text_of(cluster, field) {
        Err(KubeconfigError::MissingField { .. }) => Ok(None),
        Err(error) => Err(error),
        Ok(name) => ServerName::try_from(name.to_owned())
            .map(Some)
            .map_err(|_| KubeconfigError::Bad { field, expected: "a name or an address" }),
    }
}

fn decode(fields: &Fields, field: &'static str) -> Result<Vec<u8>> {
    let text: String = text_of(fields, field)?.split_whitespace().collect();
    STANDARD.decode(text).map_err(|_| KubeconfigError::Bad { field, expected: "base64" })
}

fn certificates(fields: &Fields, field: &'static str) -> Result<Vec<CertificateDer<'static>>> {
    let bad = KubeconfigError::Bad { field, expected: "a list of PEM certificates" };
    let pem = decode(fields, field)?;
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(bad),
    }
}

fn identity(user: &Fields) -> Result<Identity> {
    let token = text_of(user, "token");
    let has = |field| text_of(user, field).is_ok();
    if !has("client-certificate-data") && !has("client-key-data") {
        return match token {
            Ok(token) => Ok(Identity::Token(token.to_owned())),
            Err(_) => Err(KubeconfigError::MissingField { field: "client-certificate-data" }),
        };
    }
    let chain = certificates(user, "client-certificate-data")?;
    let field = "client-key-data";
    let key = PrivateKeyDer::from_pem_slice(&decode(user, field)?)
        .map_err(|_| KubeconfigError::Bad { field, expected: "a PEM private key" })?;
    Ok(Identity::Certificate { chain, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "server: 'https://10.0.0.1:6443'";

    fn text(cluster: &str, user: &str) -> String {
        format!(
            "current-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: other, cluster: {{proxy-url: x}}}}, {{name: k, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n\
             preferences: {{}}\nkind: Config\napiVersion: v1\n"
        )
    }

    fn error(text: &str) -> String {
        parse(text).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_would_run_or_read_something_is_refused_by_its_name() {
        let of_user = [
            "exec: {command: touch, apiVersion: client.authentication.k8s.io/v1}",
            "auth-provider: {name: gcp}",
            "client-certificate: /etc/passwd",
            "client-key: /etc/passwd",
            "tokenFile: /etc/passwd",
            "username: admin",
            "password: secret",
            "as: somebody",
        ];
        for field in of_user {
            let name = field.split(':').next().unwrap();
            let said = error(&text(SERVER, &format!("token: t, {field}")));
            assert!(said.starts_with(&format!("{name} is refused: ")), "{said}");
        }
        let of_cluster = [
            "certificate-authority: /etc/passwd",
            "insecure-skip-tls-verify: true",
            "proxy-url: 'http://10.0.0.9'",
        ];
        for field in of_cluster {
            let name = field.split(':').next().unwrap();
            let said = error(&text(&format!("{SERVER}, {field}"), "token: t"));
            assert!(said.starts_with(&format!("{name} is refused: ")), "{said}");
        }
        assert_eq!(error(&text(&format!("{SERVER}, magic: 1"), "token: t")), "magic is not known");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named_without_its_value() {
        let rows = [
            (String::new(), "it is not a kubeconfig"),
            ("clusters: {".to_owned(), "it is not YAML (line "),
            ("a: 1".to_owned(), "it is not a kubeconfig"),
            ("clusters: []\ncontexts: []\nusers: []".to_owned(), "it names no current-context"),
            (text("", "token: t"), "server is missing"),
            (text("server: 'http://a'", "token: t"), "server is not an https:// address"),
            (text("server: 'file:///etc'", "token: t"), "server is not an https:// address"),
            (text(SERVER, "token: t"), "certificate-authority-data is missing"),
            (
                text(&format!("{SERVER}, certificate-authority-data: '%'"), "token: t"),
                "certificate-authority-data is not base64",
            ),
            (
                text(&format!("{SERVER}, certificate-authority-data: c2VjcmV0"), "token: t"),
                "certificate-authority-data is not a list of PEM certificates",
            ),
            (text(SERVER, "").replace("name: k", "name: z"), "there is no cluster named \"k\""),
        ];
        for (text, expected) in rows {
            let said = error(&text);
            assert!(said.starts_with(expected), "{said:?} for {text}");
        }
    }

    #[test]
    fn a_switched_off_switch_is_no_reason_to_refuse() {
        let off = format!("{SERVER}, insecure-skip-tls-verify: false");
        assert_eq!(error(&text(&off, "token: t")), "certificate-authority-data is missing");
    }

    #[test]
    fn a_huge_text_is_refused_unread() {
        assert_eq!(parse(&" ".repeat(MAX_BYTES + 1)).err(), Some(KubeconfigError::TooLarge));
    }
}
