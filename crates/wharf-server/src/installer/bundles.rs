//! Where the files come from that hosts get: the bundle, and the server's own program.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use sha2::{Digest, Sha256};
use wharf_bundle::{Bundle, cache::Cache};
use wharf_core::install::{components::agent, host::Bundled};

use super::{Failure, Outcome};
use crate::config::Config;

/// The program of the process that reads it, also after the file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// By this name documents call the agent's program.
pub const WHARF: &str = "bin/wharf";

/// The agent's program, as hosts get it and where the server has it.
pub struct Program {
    pub file: Bundled,
    pub path: PathBuf,
}

impl Program {
    pub fn open(config: &Config) -> Outcome<Program> {
        let path = program(config);
        static MEASURED: OnceLock<Bundled> = OnceLock::new();
        Ok(Program { file: measured(&path, WHARF, &MEASURED)?, path })
    }
}

/// The files of one Kubernetes version, with the agent's program and, beside it, what
/// volumes need.
pub struct Supply {
    pub bundle: Bundle,
    pub wharf: Bundled,
    program: PathBuf,
    helpers: Vec<(&'static str, Program)>,
}

impl Supply {
    pub fn open(config: &Config, kubernetes: &str) -> Outcome<Supply> {
        let dir = directories(config)
            .into_iter()
            .find(|dir| version_of(dir).is_some_and(|version| version == kubernetes))
            .ok_or_else(|| missing(config, kubernetes))?;
        let bundle = Bundle::open(&dir).map_err(|error| {
            Failure::new(format!("the bundle in {}: {error}", dir.display()))
                .hint("check it with `wharf bundle verify`")
        })?;
        let Program { file, path } = Program::open(config)?;
        let helpers = helpers(&path)?;
        Ok(Supply { bundle, wharf: file, program: path, helpers })
    }

    /// The programs for volumes, by name, as far as they are there.
    pub fn helpers(&self) -> impl Iterator<Item = (&'static str, &Bundled)> {
        self.helpers.iter().map(|(name, program)| (*name, &program.file))
    }

    /// The programs without which nodes have no volumes, and which are not there.
    pub fn missing_helpers(&self) -> Vec<&'static str> {
        let is_there = |name: &str| self.helpers().any(|(there, _)| there == name);
        agent::HELPERS.into_iter().filter(|name| !is_there(name)).collect()
    }

    /// Where the server has a file that hosts need.
    pub fn path_of(&self, file: &Bundled) -> Outcome<PathBuf> {
        if file.path == WHARF {
            return Ok(self.program.clone());
        }
        if let Some((_, helper)) = self.helpers.iter().find(|(_, one)| one.file.path == file.path) {
            return Ok(helper.path.clone());
        }
        let entry = self.bundle.manifest().files.iter().find(|entry| entry.path == file.path);
        let path = entry.map(|entry| self.bundle.path_of(entry));
        path.ok_or_else(|| Failure::new(format!("the bundle has no {}", file.path)))
    }
}

/// The Kubernetes versions that can be installed, newest first.
pub fn available(config: &Config) -> Vec<String> {
    let mut versions: Vec<String> =
        directories(config).iter().filter_map(|dir| version_of(dir)).collect();
    versions.sort_by(|a, b| wharf_bundle::catalogue::compare_versions(b, a));
    versions.dedup();
    versions
}

fn missing(config: &Config, kubernetes: &str) -> Failure {
    let there = available(config);
    let failure = Failure::new(format!("there is no bundle for Kubernetes {kubernetes}"));
    match there.is_empty() {
        true => failure.hint("make one with `wharf bundle build` and set bundles_dir"),
        false => failure.hint(format!("there are bundles for {}", there.join(", "))),
    }
}

/// Every directory that may be a bundle: those of the configuration, else those of the cache.
fn directories(config: &Config) -> Vec<PathBuf> {
    let configured = match config.bundles_dir.as_os_str().is_empty() {
        true => config.data_dir.join("bundles"),
        false => config.bundles_dir.clone(),
    };
    let cached = || Some(Cache::from_env()?.root().join("bundles"));
    let place = if configured.exists() { Some(configured) } else { cached() };
    let entries = place.and_then(|place| std::fs::read_dir(place).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The version of a bundle's directory; what is being made or is none has none.
fn version_of(dir: &Path) -> Option<String> {
    Bundle::open(dir).ok().map(|bundle| bundle.manifest().kubernetes.clone())
}

fn program(config: &Config) -> PathBuf {
    match config.agent_program.as_os_str().is_empty() {
        true => PathBuf::from(OWN_PROGRAM),
        false => config.agent_program.clone(),
    }
}

/// What volumes need, as far as it lies beside the agent's program.
fn helpers(agent: &Path) -> Outcome<Vec<(&'static str, Program)>> {
    static MEASURED: [OnceLock<Bundled>; 2] = [const { OnceLock::new() }; 2];
    let agent = match agent == Path::new(OWN_PROGRAM) {
        true => std::env::current_exe().unwrap_or_default(),
        false => agent.to_owned(),
    };
    let mut found = Vec::new();
    for (name, known) in agent::HELPERS.into_iter().zip(&MEASURED) {
        let path = agent.with_file_name(name);
        if path.exists() {
            let file = measured(&path, &format!("bin/{name}"), known)?;
            found.push((name, Program { file, path }));
        }
    }
    Ok(found)
}

/// The size and checksum of a program of ours, measured once: it cannot change under us.
fn measured(program: &Path, name: &str, known: &OnceLock<Bundled>) -> Outcome<Bundled> {
    if let Some(known) = known.get() {
        return Ok(known.clone());
    }
    let failed = |error: std::io::Error| {
        Failure::new(format!("the program {}: {error}", program.display()))
            .hint("set agent_program to a wharf program that runs on the hosts")
    };
    let mut file = File::open(program).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut size = 0;
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        hash.update(buffer.get(..count).unwrap_or_default());
        size += count as u64;
    }
    let sha256 = hex::encode(hash.finalize());
    let found = Bundled { path: name.to_owned(), sha256, size };
    Ok(known.get_or_init(|| found).clone())
}
