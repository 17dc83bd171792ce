//! The tests: built once, then run two programs at a time.
//!
//! A program that waits for machines leaves the processors to the other. What each says is kept in
//! a file; only that of one that failed is shown.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Mutex,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Findings, VerifyArgs, cargo};
use crate::target_dir;

const LANES: usize = 2;
/// In the names of unit tests that boot a machine.
const IN_A_GUEST: &str = "in_a_guest::";

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    package: String,
    target: String,
    /// Where its package is: tests find their files from there.
    directory: PathBuf,
    executable: PathBuf,
}

impl Program {
    /// The longest begins first, so that it does not run on when all others are done.
    fn order(&self) -> (bool, &Self) {
        (self.target != "cluster", self)
    }
}

pub fn run(args: &VerifyArgs) -> Result<Findings> {
    let mut programs = build(args)?;
    programs.sort_by(|one, other| one.order().cmp(&other.order()));
    let logs = target_dir().join("tests");
    std::fs::create_dir_all(&logs).with_context(|| format!("making {}", logs.display()))?;
    let queue = Mutex::new(programs.iter());
    let lane = || -> Result<Findings> {
        let mut findings = Findings::default();
        loop {
            // Not in the head of a `while let`: that would hold the lock while the program runs.
            let next = queue.lock().ok().and_then(|mut queue| queue.next());
            let Some(program) = next else { return Ok(findings) };
            findings.add(&run_one(program, &logs, args)?);
        }
    };
    let mut findings = Findings::default();
    thread::scope(|scope| -> Result<()> {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        for lane in lanes {
            findings.add(&lane.join().map_err(|_| anyhow::anyhow!("a lane panicked"))??);
        }
        Ok(())
    })?;
    Ok(findings)
}

fn run_one(program: &Program, logs: &Path, args: &VerifyArgs) -> Result<Findings> {
    let Program { package, target, directory, executable } = program;
    let log = logs.join(format!("{package}-{target}.log"));
    let file = File::create(&log).with_context(|| format!("making {}", log.display()))?;
    let mut command = std::process::Command::new(executable);
    command.current_dir(directory).env("CARGO_MANIFEST_DIR", directory).stdin(Stdio::null());
    command.stdout(file.try_clone()?).stderr(file);
    if args.long {
        command.env("WHARF_LONG", "1");
    }
    if args.fast {
        command.args(["--skip", IN_A_GUEST]);
    }
    let begun = Instant::now();
    let ok = command.status().with_context(|| format!("running {}", executable.display()))?;
    let said = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    let mut findings = counted(&said);
    // A program that is ended by a signal has counted nothing.
    if !ok.success() && findings.failed == 0 {
        findings.failed = 1;
    }
    let verdict = if findings.failed == 0 { "ok" } else { "FAILED" };
    let (passed, seconds) = (findings.passed, begun.elapsed().as_secs_f64());
    if findings.failed > 0 {
        println!("{said}\n{ok}");
    }
    println!("{verdict:<7} {passed:>4} passed {seconds:>6.1} s  {package} {target}");
    Ok(findings)
}

/// The sums of what the runner of tests says at its end.
fn counted(said: &str) -> Findings {
    let mut findings = Findings::default();
    for counts in said.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        findings.passed += count_before(counts, " passed");
        findings.failed += count_before(counts, " failed");
        findings.skipped += count_before(counts, " ignored");
    }
    findings
}

/// The number right before a word, as in `ok. 12 passed; 0 failed`.
fn count_before(text: &str, word: &str) -> usize {
    let head = text.split(word).next().unwrap_or_default();
    let digits = head.rsplit(' ').next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

fn build(args: &VerifyArgs) -> Result<Vec<Program>> {
    let mut command = cargo(&["test", "--workspace", "--locked", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    if args.fast {
        command
            .args(["--lib", "--bins", "--test", "access", "--test", "input", "--test", "events"]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("the output of cargo is missing")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        programs.extend(built(&line?));
    }
    if !child.wait()?.success() || programs.is_empty() {
        bail!("the tests could not be built");
    }
    Ok(programs)
}

/// The test program that a message of cargo speaks of, if it does.
fn built(message: &str) -> Option<Program> {
    #[derive(Deserialize)]
    struct Message {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let message: Message = serde_json::from_str(message).ok()?;
    let executable = message.executable.filter(|_| message.profile.test)?;
    let directory = message.manifest_path.parent()?.to_owned();
    let package = directory.file_name()?.to_string_lossy().into_owned();
    Some(Program { package, target: message.target.name, directory, executable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_runners_last_line() {
        let line = "FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(count_before(line, " passed"), 12);
        assert_eq!(count_before(line, " failed"), 3);
        assert_eq!(count_before(line, " ignored"), 1);
        assert_eq!(count_before("nonsense", " passed"), 0);
    }

    #[test]
    fn programs_of_tests_are_told_from_other_messages() {
        let message = |test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/one/Cargo.toml",
                "target":{{"name":"two"}},"profile":{{"test":{test}}},"executable":"/t/two-1"}}"#
            )
        };
        let program = built(&message(true)).unwrap();
        assert_eq!((program.package.as_str(), program.target.as_str()), ("one", "two"));
        assert_eq!(program.directory, Path::new("/w/crates/one"));
        assert_eq!(built(&message(false)), None, "an example or a program");
        assert_eq!(built(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
