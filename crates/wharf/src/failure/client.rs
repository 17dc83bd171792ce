//! What failures between the command line and a server look like.

use std::{error::Error as StdError, io};

use wharf_api::{
    client::{At, ClientError},
    error::{ErrorBody, ErrorCode},
};

use super::{Exit, Explained};
use crate::trust;

/// The HTTP library tells its whole way down; only where it ended is news.
pub fn shorten<'a>(
    mut causes: Vec<&'a (dyn StdError + 'static)>,
) -> Vec<&'a (dyn StdError + 'static)> {
    if let Some(http) = causes.iter().position(|cause| cause.is::<reqwest::Error>()) {
        causes.drain(http..causes.len() - 1);
    }
    causes
}

/// `None` for those of others.
pub fn explain(cause: &(dyn StdError + 'static)) -> Option<Explained> {
    cause.downcast_ref::<ClientError>().map(explain_client)
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
    use super::{
        super::{explain, render, render_causes},
        *,
    };

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
    fn context_around_an_error_hides_neither_code_nor_causes() {
        let error = api(ErrorCode::NotFound, 404).context("cannot delete user alice");
        let explained = explain(&error);
        assert_eq!(explained.exit as u8, 3);
        assert_eq!(render(&error, &explained), "error: cannot delete user alice: no");
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
