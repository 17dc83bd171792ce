//! Building a component from the Go module registry.
//!
//! `go install package@version` refuses modules that replace others, so each component is built
//! from a throw-away module that requires it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use wharf_bundle::catalogue::{self, Component, Go, MadeFrom};

use super::child::{self, Interrupt, Progress};
use super::tools::go_program;

/// The throw-away module of one component.
pub struct Workshop<'a> {
    into: &'a Path,
    module: PathBuf,
    log: &'a Path,
    interrupt: &'a Interrupt,
    progress: Progress,
}

impl<'a> Workshop<'a> {
    pub fn open(
        into: &'a Path,
        log: &'a Path,
        interrupt: &'a Interrupt,
        progress: Progress,
    ) -> Result<Self> {
        let module = into.join(".module");
        // Go's own temporary files go here too, so that the clean-up of a broken run finds them.
        fs::create_dir_all(module.join("tmp"))?;
        fs::create_dir_all(log.parent().context("the log has no directory")?)?;
        _ = fs::remove_file(log);
        Ok(Self { into, module, log, interrupt, progress })
    }

    /// Builds all files of the component into its directory; answers which Go did it.
    pub fn build(mut self, component: &Component, go: &Go, version: &str) -> Result<String> {
        self.run(["mod", "init", "wharf.local/assets"])?;
        if go.staging {
            self.repeat_staging_replaces(go, version)?;
        }
        let required = go.modules.iter().map(|module| format!("{module}@v{version}"));
        self.run(["get".to_owned()].into_iter().chain(required))?;
        self.build_programs(component, go, version)?;
        for file in component.files {
            let to = self.into.join(file.path);
            fs::create_dir_all(to.parent().context("a file has no directory")?)?;
            match file.made_from {
                MadeFrom::Package(package) => {
                    fs::rename(self.module.join("out").join(program_name(package)), to)?;
                }
                MadeFrom::Yaml(directories) => fs::write(to, self.yaml(go, directories)?)?,
                MadeFrom::Program | MadeFrom::Printed(_) => {
                    bail!("{} is not made by Go", file.path)
                }
            }
        }
        let go_version = self.ask(["env", "GOVERSION"])?;
        fs::remove_dir_all(&self.module)?;
        Ok(go_version)
    }

    /// Kubernetes requires its staging modules at v0.0.0 and replaces them by its own directories;
    /// the registry has the same code as v0.<minor>.<patch>.
    fn repeat_staging_replaces(&mut self, go: &Go, version: &str) -> Result<()> {
        let module = go.modules.first().context("no module")?;
        let staging_version = match version.split_once('.') {
            Some(("1", rest)) => format!("v0.{rest}"),
            _ => bail!("Kubernetes {version} does not begin with 1."),
        };
        let download = self.ask(["mod", "download", "-json", &format!("{module}@v{version}")])?;
        let Download { go_mod } = serde_json::from_str(&download)?;
        let GoMod { replace } =
            serde_json::from_str(&self.ask(["mod", "edit", "-json", &go_mod])?)?;
        let local = replace.into_iter().filter(|r| r.new.path.starts_with("./"));
        let edits =
            local.map(|r| format!("-replace={path}={path}@{staging_version}", path = r.old.path));
        self.run(["mod".to_owned(), "edit".to_owned()].into_iter().chain(edits))
    }

    fn build_programs(&mut self, component: &Component, go: &Go, version: &str) -> Result<()> {
        let mut flags = vec!["-s".to_owned(), "-w".to_owned()];
        for variable in go.variables {
            let variable = catalogue::expand(variable, version, catalogue::this_arch());
            flags.extend(["-X".to_owned(), variable]);
        }
        if go.cgo {
            flags.push("-extldflags=-static".to_owned());
        }
        let packages = component.files.iter().filter_map(|file| match file.made_from {
            MadeFrom::Package(package) => Some(package),
            _ => None,
        });
        fs::create_dir_all(self.module.join("out"))?;
        let mut command = self.go();
        command
            .env("CGO_ENABLED", if go.cgo { "1" } else { "0" })
            .args(["build", "-mod=mod", "-buildvcs=false", "-trimpath", "-tags", go.tags])
            .args(["-ldflags", &flags.join(" "), "-o", "out/"])
            .args(packages);
        child::run(&mut command, self.log, self.interrupt, &mut self.progress)
    }

    fn yaml(&mut self, go: &Go, directories: &[&str]) -> Result<String> {
        let module = go.modules.first().context("no module")?;
        let dir = self.ask(["list", "-mod=mod", "-m", "-f", "{{.Dir}}", module])?;
        let mut documents = Vec::new();
        for directory in directories {
            let mut files: Vec<PathBuf> = fs::read_dir(Path::new(&dir).join(directory))?
                .filter_map(|entry| entry.ok().map(|e| e.path()))
                .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
                .filter(|path| path.file_name().is_some_and(|n| n != "kustomization.yaml"))
                .collect();
            files.sort();
            for file in files {
                documents.push(fs::read_to_string(file)?.trim().to_owned());
            }
        }
        if documents.is_empty() {
            bail!("{module} has no YAML in {}", directories.join(", "));
        }
        Ok(documents.join("\n---\n") + "\n")
    }

    /// The user's proxy, checksum database, caches and toolchain settings hold; flags do not.
    fn go(&self) -> Command {
        let mut command = Command::new(go_program());
        command
            .current_dir(&self.module)
            .env("GOFLAGS", "")
            .env("GOWORK", "off")
            .env("CGO_ENABLED", "0")
            .env("GOTMPDIR", self.module.join("tmp"))
            .env_remove("GOOS")
            .env_remove("GOARCH");
        command
    }

    fn run<S: AsRef<std::ffi::OsStr>>(&mut self, args: impl IntoIterator<Item = S>) -> Result<()> {
        let mut command = self.go();
        command.args(args);
        child::run(&mut command, self.log, self.interrupt, &mut self.progress)
    }

    /// Runs a short command for what it prints.
    fn ask<const N: usize>(&self, args: [&str; N]) -> Result<String> {
        let output = self.go().args(args).output().context("go cannot be started")?;
        if !output.status.success() {
            bail!("go {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

/// Go names a program after the last part of its package that is not a major version.
fn program_name(package: &str) -> &str {
    let is_major = |part: &str| {
        part.strip_prefix('v')
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    package.rsplit('/').find(|part| !is_major(part)).unwrap_or(package)
}

#[derive(Deserialize)]
struct Download {
    #[serde(rename = "GoMod")]
    go_mod: String,
}

#[derive(Deserialize)]
struct GoMod {
    #[serde(rename = "Replace", default)]
    replace: Vec<Replace>,
}

#[derive(Deserialize)]
struct Replace {
    #[serde(rename = "Old")]
    old: ModulePath,
    #[serde(rename = "New")]
    new: ModulePath,
}

#[derive(Deserialize)]
struct ModulePath {
    #[serde(rename = "Path")]
    path: String,
}

#[cfg(test)]
mod tests {
    use super::program_name;

    #[test]
    fn programs_are_named_as_go_names_them() {
        assert_eq!(program_name("go.etcd.io/etcd/server/v3"), "server");
        assert_eq!(program_name("k8s.io/kubernetes/cmd/kubelet"), "kubelet");
        assert_eq!(program_name("x/cmd/containerd-shim-runc-v2"), "containerd-shim-runc-v2");
    }
}
