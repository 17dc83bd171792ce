//! What a failure looks like: `error:` with its causes, `hint:` with what to do next, and the exit
//! code. The kinds are told apart by type, never by text.

use std::{error::Error as StdError, fmt::Write as _, io, process::ExitCode};

use wharf_agent::config::ConfigError as AgentConfigError;
use wharf_api::{
    client::{At, ClientError},
    error::{ErrorBody, ErrorCode},
};

#[cfg(feature = "server")]
use server::explain_server;

use crate::{output, trust};

#[cfg(feature = "server")]
mod server;

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    /// The caller's rights or the state of the thing do not allow it.
    Refused = 4,
    Unreachable = 5,
    TimedOut = 6,
}

/// A failure that arises in the command line itself.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Told {
    pub exit: Exit,
    pub message: String,
    pub hint: Option<String>,
}

impl Told {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// What a person is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Explained {
    pub exit: Exit,
    pub hint: Option<String>,
    /// Faults of single fields, one a line.
    pub details: Vec<String>,
}

/// Writes the failure to stderr and says with which code to end.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let explained = explain(error);
    if explained.exit != Exit::Done {
        output::note(render(error, &explained).trim_end());
    }
    ExitCode::from(explained.exit as u8)
}

fn render(error: &anyhow::Error, explained: &Explained) -> String {
    let mut text = format!("error: {}", render_causes(error));
    for detail in &explained.details {
        let _ = write!(text, "\n  {detail}");
    }
    if let Some(hint) = &explained.hint {
        let _ = write!(text, "\nhint: {hint}");
    }
    text
}

/// The error and its causes in one line.
pub fn render_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    let mut causes: Vec<&(dyn StdError + 'static)> = error.chain().skip(1).collect();
    // The HTTP library tells its whole way down; only where it ended is news.
    if let Some(http) = causes.iter().position(|cause| cause.is::<reqwest::Error>()) {
        causes.drain(http..causes.len() - 1);
    }
    for cause in causes.iter().map(ToString::to_string) {
        // Others repeat the cause in their own text; once is enough.
        if !text.ends_with(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

/// The outermost cause of a known type decides.
pub fn explain(error: &anyhow::Error) -> Explained {
    let plain = |exit, hint| Explained { exit, hint, details: Vec::new() };
    for cause in error.chain() {
        if let Some(told) = cause.downcast_ref::<Told>() {
            return plain(told.exit, told.hint.clone());
        }
        if let Some(closed) = cause.downcast_ref::<output::WriteError>() {
            // `wharf user list | head -1`: the reader has what it wanted.
            let done = closed.0.kind() == io::ErrorKind::BrokenPipe;
            return plain(if done { Exit::Done } else { Exit::Failed }, None);
        }
        if let Some(error) = cause.downcast_ref::<ClientError>() {
            return explain_client(error);
        }
        if let Some(error) = cause.downcast_ref::<AgentConfigError>() {
            return plain(Exit::Usage, error.hint());
        }
        if let Some((exit, hint)) = explain_server(cause) {
            return plain(exit, hint);
        }
    }
    plain(Exit::Failed, None)
}

/// Failures of a server cannot come from a program without one.
#[cfg(not(feature = "server"))]
fn explain_server(_: &(dyn StdError + 'static)) -> Option<(Exit, Option<String>)> {
    None
}

fn explain_client(error: &ClientError) -> Explained {
    let (exit, hint) = match error {
        ClientError::Api(body) => {
            let details = body.details.iter().map(|f| format!("{}: {}", f.field, f.message));
            return Explained {
                exit: api_exit(body),
                hint: body.hint.clone().or_else(|| api_hint(body.code)),
                // One fault is the message itself.
                details: if body.details.len() > 1 { details.collect() } else { Vec::new() },
            };
        }
        ClientError::Unreachable { at, source } => explain_unreachable(at, source),
        ClientError::StreamBroken { .. } => (Exit::Unreachable, None),
        ClientError::TimedOut { .. } => {
            (Exit::TimedOut, Some("look into the server's log, then try again".to_owned()))
        }
        ClientError::BadAnswer { .. } => {
            (Exit::Failed, Some("check that the address is that of a wharf server".to_owned()))
        }
        ClientError::BadCa(_) => (
            Exit::Failed,
            Some("--ca takes a file with the authority's certificate in PEM".to_owned()),
        ),
    };
    Explained { exit, hint, details: Vec::new() }
}

fn api_exit(body: &ErrorBody) -> Exit {
    match body.code {
        ErrorCode::Unauthorized
        | ErrorCode::PermissionDenied
        | ErrorCode::Conflict
        | ErrorCode::PreconditionFailed
        | ErrorCode::DuplicateResource
        | ErrorCode::TooManyRequests => Exit::Refused,
        ErrorCode::NotFound => Exit::NotFound,
        ErrorCode::RequestTimeout => Exit::TimedOut,
        ErrorCode::ClusterUnavailable | ErrorCode::Unavailable => Exit::Unreachable,
        ErrorCode::MalformedBody
        | ErrorCode::InvalidRequest
        | ErrorCode::MethodNotAllow
        | ErrorCode::BodyTooLarge
        | ErrorCode::UnsupportedMediaType
        | ErrorCode::InvalidFormat
        | ErrorCode::NotNullable
        | ErrorCode::InvalidOption
        | ErrorCode::MissingRequired
        | ErrorCode::InvalidAction
        | ErrorCode::InvalidBodyContent
        | ErrorCode::MinLengthExceeded
        | ErrorCode::MaxLengthExceeded
        | ErrorCode::ServerError
        | ErrorCode::StorageFull => Exit::Failed,
        ErrorCode::Unknown => status_exit(body.status),
    }
}

/// A newer server may have codes that this client does not know; their status still tells much.
fn status_exit(status: u16) -> Exit {
    match status {
        401 | 403 | 409 | 412 | 423 | 429 => Exit::Refused,
        404 | 410 => Exit::NotFound,
        408 | 504 => Exit::TimedOut,
        502 | 503 => Exit::Unreachable,
        _ => Exit::Failed,
    }
}

fn api_hint(code: ErrorCode) -> Option<String> {
    let hint = match code {
        ErrorCode::Unauthorized => "log in with `wharf login`",
        ErrorCode::TooManyRequests => "wait a minute, then try again",
        ErrorCode::ServerError => "the server's log says more",
        ErrorCode::InvalidAction | ErrorCode::MethodNotAllow => {
            "client and server may differ in version: compare them with `wharf version`"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

fn explain_unreachable(at: &At, source: &reqwest::Error) -> (Exit, Option<String>) {
    match at {
        At::Socket(path) => match io_kind(source) {
            Some(io::ErrorKind::PermissionDenied) => {
                let hint = "the socket is its owner's alone; run the command as that user, or `wharf login`";
                (Exit::Refused, Some(hint.to_owned()))
            }
            Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                let dir = path.parent().unwrap_or(path).display();
                (Exit::Unreachable, Some(format!("start it with `wharf server --data-dir {dir}`")))
            }
            // Somebody listens there.
            Some(_) | None => {
                let hint = "the server runs but took no request: it is stopping, or has as many connections as it allows; try again";
                (Exit::Unreachable, Some(hint.to_owned()))
            }
        },
        At::Url(url) => {
            let hint = match trust::certificate_fault(source) {
                Some(fault) => trust::fault_hint(&fault, url),
                None => "check the address, and that the server runs there".to_owned(),
            };
            (Exit::Unreachable, Some(hint))
        }
    }
}

fn io_kind(error: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    anyhow::Chain::new(error)
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind)
}

#[cfg(test)]
mod tests {
    use wharf_store::StoreError;

    use super::*;

    fn api(code: ErrorCode, status: u16) -> anyhow::Error {
        let body = ErrorBody { status, ..ErrorBody::new(code, "no") };
        ClientError::Api(Box::new(body)).into()
    }

    #[test]
    fn answers_of_the_api_become_exit_codes() {
        for (code, exit) in [
            (ErrorCode::Unauthorized, 4),
            (ErrorCode::PermissionDenied, 4),
            (ErrorCode::NotFound, 3),
            (ErrorCode::InvalidAction, 1),
            (ErrorCode::RequestTimeout, 6),
            (ErrorCode::Conflict, 4),
            (ErrorCode::PreconditionFailed, 4),
            (ErrorCode::DuplicateResource, 4),
            (ErrorCode::TooManyRequests, 4),
            (ErrorCode::InvalidFormat, 1),
            (ErrorCode::InvalidBodyContent, 1),
            (ErrorCode::ServerError, 1),
            (ErrorCode::StorageFull, 1),
            (ErrorCode::Unavailable, 5),
            (ErrorCode::ClusterUnavailable, 5),
        ] {
            assert_eq!(explain(&api(code, code.status())).exit as u8, exit, "{code:?}");
        }
    }

    #[test]
    fn codes_from_a_newer_server_are_judged_by_their_status() {
        for (status, exit) in [(401, 4), (403, 4), (404, 3), (409, 4), (504, 6), (503, 5), (500, 1)]
        {
            assert_eq!(explain(&api(ErrorCode::Unknown, status)).exit as u8, exit, "{status}");
        }
    }

    async fn ask(url: &str, timeout: std::time::Duration) -> reqwest::Error {
        let client = reqwest::Client::builder().tls_certs_only([]).no_proxy().timeout(timeout);
        client.build().unwrap().get(url).send().await.unwrap_err()
    }

    #[tokio::test]
    async fn servers_that_are_away_are_told_from_those_that_are_silent() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let source = ask(&url, std::time::Duration::from_millis(50)).await;
        let error = ClientError::TimedOut { at: At::Url(url.clone()), source };
        assert_eq!(explain(&error.into()).exit as u8, 6);

        drop(silent);
        let source = ask(&url, std::time::Duration::from_secs(30)).await;
        let error = ClientError::Unreachable { at: At::Url(url.clone()), source }.into();
        assert_eq!(explain(&error).exit as u8, 5);
        let text = render_causes(&error);
        assert_eq!(
            text,
            format!("cannot reach the server at {url}: Connection refused (os error 111)")
        );
    }

    #[test]
    fn no_rights_advise_to_log_in_unless_the_server_knows_better() {
        let error = api(ErrorCode::Unauthorized, 401);
        assert_eq!(explain(&error).hint.as_deref(), Some("log in with `wharf login`"));
        let body = ErrorBody::new(ErrorCode::Unauthorized, "no").hint("ask your admin");
        let error = ClientError::Api(Box::new(body)).into();
        assert_eq!(explain(&error).hint.as_deref(), Some("ask your admin"));
    }

    #[test]
    fn a_server_that_failed_says_under_which_id_its_log_has_more() {
        for code in [ErrorCode::ServerError, ErrorCode::Unavailable, ErrorCode::StorageFull] {
            let body = ErrorBody::new(code, "it failed").hint("look for r7 in the log");
            let error: anyhow::Error = ClientError::Api(Box::new(body)).into();
            let text = render(&error, &explain(&error));
            assert_eq!(text, "error: it failed\nhint: look for r7 in the log");
        }
    }

    #[test]
    fn failures_of_the_command_line_carry_their_own_code() {
        let error = anyhow::Error::new(Told::usage("no such thing").hint("try another"));
        let explained = explain(&error);
        assert_eq!((explained.exit as u8, explained.hint.as_deref()), (2, Some("try another")));
        assert_eq!(render(&error, &explained), "error: no such thing\nhint: try another");
        assert_eq!(explain(&anyhow::anyhow!("whatever")).exit as u8, 1);
    }

    #[test]
    fn context_around_an_error_hides_neither_code_nor_causes() {
        let error = api(ErrorCode::NotFound, 404).context("cannot delete user alice");
        let explained = explain(&error);
        assert_eq!(explained.exit as u8, 3);
        assert_eq!(render(&error, &explained), "error: cannot delete user alice: no");
    }

    #[test]
    fn stores_in_use_are_refused_and_unreachable_ones_unreachable() {
        let in_use = StoreError::InUse { dir: "/d".into(), pid: Some(7) };
        assert_eq!(explain(&in_use.into()).exit as u8, 4);
        let away = StoreError::Unreachable { endpoints: "e".to_owned(), source: "x".into() };
        assert_eq!(explain(&away.into()).exit as u8, 5);
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let closed = output::WriteError(io::ErrorKind::BrokenPipe.into());
        assert_eq!(explain(&closed.into()).exit as u8, 0);
        let full = output::WriteError(io::ErrorKind::StorageFull.into());
        assert_eq!(explain(&full.into()).exit as u8, 1);
    }

    #[test]
    fn all_faults_of_a_body_are_listed() {
        let fault = |field: &str| wharf_api::error::FieldFault {
            field: field.to_owned(),
            code: ErrorCode::MissingRequired,
            message: "is missing".to_owned(),
        };
        let body = ErrorBody::invalid(vec![fault("name"), fault("role")]);
        let error = ClientError::Api(Box::new(body)).into();
        let text = render(&error, &explain(&error));
        assert_eq!(text, "error: is missing\n  name: is missing\n  role: is missing");
    }
}
