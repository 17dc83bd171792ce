//! `cargo verify`: everything that must hold before a change lands.
//!
//! Steps run in order of their price and all of them run, so that one pass shows all faults.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{assets, needs, target_dir, tidy, workspace};

mod programs;

/// Check everything: format, lints, licences, order of the tree, tests on real parts
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Only what is quick: no machines, no etcd, no benchmarks; for everyday work
    #[arg(long, conflicts_with = "long")]
    fast: bool,
    /// More repetitions of the tests that repeat something
    #[arg(long)]
    long: bool,
}

/// What a step found.
#[derive(Debug, Default)]
struct Findings {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// What to say beside the result.
    note: String,
}

impl Findings {
    fn one(ok: bool) -> Self {
        Self { passed: usize::from(ok), failed: usize::from(!ok), ..Self::default() }
    }

    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

struct Step {
    name: &'static str,
    run: fn(&VerifyArgs) -> Result<Findings>,
    /// Whether `--fast` has it too.
    fast: bool,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", run: fmt, fast: true },
    Step { name: "tidy", run: |_| tidied(), fast: true },
    Step { name: "clippy", run: clippy, fast: true },
    Step { name: "deny", run: deny, fast: false },
    Step { name: "assets", run: build_assets, fast: false },
    Step { name: "tests", run: programs::run, fast: true },
    Step { name: "doctests", run: doctests, fast: false },
];

pub fn run(args: &VerifyArgs) -> Result<()> {
    needs::ensure_build()?;
    let begun = Instant::now();
    let commit = committed()?;
    let mut results = Vec::new();
    for step in STEPS.iter().filter(|step| step.fast || !args.fast) {
        eprintln!("==> {}", step.name);
        let at = Instant::now();
        let findings = (step.run)(args).unwrap_or_else(|error| Findings {
            failed: 1,
            note: format!("{error:#}"),
            ..Findings::default()
        });
        results.push((step.name, findings, at.elapsed()));
    }
    report(&results, begun.elapsed());
    let failed: Vec<&str> =
        results.iter().filter(|(_, f, _)| f.failed > 0).map(|(name, _, _)| *name).collect();
    if !failed.is_empty() {
        bail!("verify failed: {}", failed.join(", "));
    }
    if args.fast {
        eprintln!("next: cargo verify, before the change lands");
        return Ok(());
    }
    if commit.is_none() || committed()? != commit {
        eprintln!("what was checked is not what is committed, so this pass is not noted");
        return Ok(());
    }
    let note = target_dir().join("verify.ok");
    std::fs::write(&note, commit.unwrap_or_default() + "\n")
        .with_context(|| format!("writing {}", note.display()))
}

fn report(results: &[(&str, Findings, Duration)], total: Duration) {
    println!();
    for (name, findings, time) in results {
        let verdict = if findings.failed == 0 { "ok" } else { "FAILED" };
        println!(
            "{name:<8} {verdict:<7} {:>5} passed {:>3} failed {:>3} skipped {:>6.0} s  {}",
            findings.passed,
            findings.failed,
            findings.skipped,
            time.as_secs_f64(),
            findings.note.lines().next().unwrap_or_default()
        );
    }
    let sum = |count: fn(&Findings) -> usize| -> usize {
        results.iter().map(|(_, findings, _)| count(findings)).sum()
    };
    println!("\nin {:.0} s", total.as_secs_f64());
    println!(
        "{} passed, {} failed, {} skipped",
        sum(|f| f.passed),
        sum(|f| f.failed),
        sum(|f| f.skipped)
    );
}

/// The commit that the tree is at; `None` if there are changes that are not committed.
fn committed() -> Result<Option<String>> {
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(workspace()).args(args).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let clean = git(&["status", "--porcelain"])?.is_empty();
    Ok(clean.then_some(git(&["rev-parse", "HEAD"])?))
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace()).args(args).stdin(Stdio::null());
    command
}

fn succeeds(mut command: Command) -> Result<Findings> {
    Ok(Findings::one(command.status()?.success()))
}

fn fmt(_: &VerifyArgs) -> Result<Findings> {
    succeeds(cargo(&["fmt", "--all", "--check"]))
}

fn clippy(_: &VerifyArgs) -> Result<Findings> {
    succeeds(cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "--deny",
        "warnings",
    ]))
}

fn tidied() -> Result<Findings> {
    let faults = tidy::faults(workspace())?;
    for fault in &faults {
        eprintln!("{fault}");
    }
    Ok(Findings {
        passed: usize::from(faults.is_empty()),
        failed: faults.len(),
        ..Findings::default()
    })
}

/// Licences, bans and sources always; advisories where their database can be fetched.
fn deny(_: &VerifyArgs) -> Result<Findings> {
    let program = needs::ensure_cargo_deny()?;
    let check = |what: &[&str]| -> Result<bool> {
        let mut command = Command::new(&program);
        command.current_dir(workspace()).args(["--locked", "--log-level", "error", "check"]);
        Ok(command.args(what).stdin(Stdio::null()).status()?.success())
    };
    let mut findings = Findings::one(check(&["bans", "licenses", "sources"])?);
    let mut fetch = Command::new(&program);
    fetch.current_dir(workspace()).args(["fetch", "db"]).stdin(Stdio::null());
    if fetch.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
        findings.add(&Findings::one(check(&["advisories"])?));
    } else {
        findings.skipped += 1;
        findings.note = "the database of advisories cannot be fetched here".to_owned();
    }
    Ok(findings)
}

fn build_assets(_: &VerifyArgs) -> Result<Findings> {
    assets::run(&assets::AssetsArgs::default())?;
    Ok(Findings::one(true))
}

/// Examples in comments are built as programs of their own.
fn doctests(_: &VerifyArgs) -> Result<Findings> {
    succeeds(cargo(&["test", "--workspace", "--locked", "--doc", "--quiet"]))
}

/// Rewrites the files in `docs/` that are made from the code.
pub fn update() -> Result<()> {
    needs::ensure_build()?;
    let mut command = cargo(&["test", "--quiet", "--workspace", "--locked", "--", "outdated"]);
    let status = command.env("WHARF_UPDATE", "1").status()?;
    if !status.success() {
        bail!("the files could not be made");
    }
    Ok(())
}
