//! Why an operation did not succeed, in words for a person.

use wharf_core::install::host::HostFailure;

/// One sentence with the host, what was tried and what came of it; and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Empty where the server itself failed.
    pub host: String,
    pub message: String,
    pub exit_code: Option<i32>,
    /// The last lines that the host said.
    pub stderr_tail: Option<String>,
    pub hint: Option<String>,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            host: String::new(),
            message: message.into(),
            exit_code: None,
            stderr_tail: None,
            hint: None,
        }
    }

    pub fn on(host: &str, message: impl Into<String>) -> Self {
        Self { host: host.to_owned(), ..Self::new(message) }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What the agent on a host could not do.
    pub fn of_host(host: &str, failure: HostFailure) -> Self {
        let HostFailure { step, message, detail, hint } = failure;
        Self {
            host: host.to_owned(),
            message: format!("{step}: {message}"),
            exit_code: None,
            stderr_tail: (!detail.is_empty()).then_some(detail),
            hint,
        }
    }

    /// All of it as one text.
    pub fn sentence(&self) -> String {
        let mut text = match self.host.is_empty() {
            true => self.message.clone(),
            false => format!("host {}: {}", self.host, self.message),
        };
        if let Some(code) = self.exit_code {
            text.push_str(&format!(" (exit code {code})"));
        }
        if let Some(tail) = &self.stderr_tail {
            text.push_str(&format!("\n{tail}"));
        }
        text
    }
}

/// Several at once are told as one: each with what belongs to it.
pub fn join(mut failures: Vec<Failure>) -> Option<Failure> {
    if failures.len() < 2 {
        return failures.pop();
    }
    let sentences: Vec<String> = failures.iter().map(Failure::sentence).collect();
    let mut hints: Vec<String> = Vec::new();
    for hint in failures.into_iter().filter_map(|failure| failure.hint) {
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    let hint = (!hints.is_empty()).then(|| hints.join("; "));
    Some(Failure { hint, ..Failure::new(sentences.join("\n")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_the_host_the_step_and_the_last_lines() {
        let failure = Failure::of_host(
            "n1",
            HostFailure {
                step: "start wharf-etcd.service".to_owned(),
                message: "the unit failed".to_owned(),
                detail: "bind: address already in use".to_owned(),
                hint: Some("free the port".to_owned()),
            },
        );
        assert_eq!(
            failure.sentence(),
            "host n1: start wharf-etcd.service: the unit failed\nbind: address already in use"
        );
    }

    #[test]
    fn failures_of_several_hosts_become_one_that_names_them_all() {
        let failed = Failure { exit_code: Some(3), ..Failure::on("n1", "refused") };
        let all = vec![
            failed.hint("knock"),
            Failure::on("n2", "timed out").hint("wait"),
            Failure::on("n3", "timed out").hint("wait"),
        ];
        let joined = join(all.clone()).unwrap();
        let told = "host n1: refused (exit code 3)\nhost n2: timed out\nhost n3: timed out";
        assert_eq!(joined.sentence(), told);
        assert_eq!(joined.hint.as_deref(), Some("knock; wait"));
        assert_eq!(join(all[..1].to_vec()).as_ref(), all.first());
        assert_eq!(join(Vec::new()), None);
    }
}
