//! A host of a test: a directory, and programs that only answer.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::root::{Commands, Ran, Root};

/// What programs say, by the beginning of their command; `Err` is an error of theirs. Every other
/// one succeeds and says nothing.
#[derive(Default)]
pub(crate) struct Answers(pub Vec<(&'static str, Result<&'static str, &'static str>)>);

impl Commands for Answers {
    fn run(&self, program: &str, arguments: &[&str], _deadline: Duration) -> io::Result<Ran> {
        let command = format!("{program} {}", arguments.join(" "));
        let known = self.0.iter().find(|(begin, _)| command.starts_with(begin));
        let (success, stdout, stderr) = match known.map(|(_, answer)| answer) {
            None => (true, "", ""),
            Some(Ok(text)) => (true, *text, ""),
            Some(Err(text)) => (false, "", *text),
        };
        Ok(Ran { success, stdout: stdout.to_owned(), stderr: stderr.to_owned() })
    }
}

pub(crate) fn fake_root() -> (tempfile::TempDir, Root) {
    let directory = tempfile::tempdir().unwrap();
    let root = answering(&directory, Vec::new());
    fs::create_dir(root.path("/run")).unwrap();
    put(directory.path(), "/proc/self/mountinfo", "");
    (directory, root)
}

/// The same host, whose programs say something.
pub(crate) fn answering(
    directory: &tempfile::TempDir,
    answers: Vec<(&'static str, Result<&'static str, &'static str>)>,
) -> Root {
    Root::new(directory.path(), Box::new(Answers(answers)))
}

pub(crate) fn put(base: &Path, path: &str, content: &str) {
    let path = base.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}
