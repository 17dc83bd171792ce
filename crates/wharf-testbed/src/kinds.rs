//! The kinds of KubeVirt, Longhorn and Multus as their projects define them, without their
//! controllers: the objects are the test's.
//!
//! What a project defines is one file of its Go module. It is fetched once and kept in the cache: who
//! has it there needs no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use tempfile::NamedTempFile;
use wharf_bundle::checksum::{Sha256, hash_file};

use crate::apiserver::{ApiServer, find};
use crate::command::{find_tool, run, tool};
use crate::paths::cache_dir;
use crate::wait_for;

/// Where Go's own installer puts it, which is not on everyone's PATH.
const GO_INSTALLED: &str = "/usr/local/go/bin/go";
/// Ten megabytes, from a slow proxy.
const FETCH_SECONDS: &str = "600";
/// The API server takes a moment for each of them.
const ESTABLISHED: Duration = Duration::from_secs(120);

/// Whose kinds an API server is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Project {
    /// VirtualMachineInstance alone.
    KubeVirt,
    Longhorn,
    /// NetworkAttachmentDefinition.
    Multus,
}

/// A file of a Go module.
struct Source {
    module: &'static str,
    version: &'static str,
    file: &'static str,
    sha256: &'static str,
}

impl Project {
    /// Makes the API server of this kubeconfig know all kinds of the project, and waits until it
    /// serves them.
    pub fn define(self, kubeconfig: &Path) -> Result<()> {
        let file = NamedTempFile::with_suffix(".yaml")?;
        fs::write(file.path(), self.manifest()?)?;
        let kubectl = |words: &[&str]| {
            let mut kubectl = tool(&find("kubectl")?.to_string_lossy());
            kubectl.arg("--kubeconfig").arg(kubeconfig).args(words);
            run(kubectl.arg("-f").arg(file.path()))
                .with_context(|| format!("cannot define the kinds of {self:?}"))
        };
        // Not `apply`, which would keep each whole schema a second time, in an annotation too small.
        kubectl(&["create"])?;
        // Not `wait`, which fails while there is no condition at all.
        wait_for("the kinds to be served", ESTABLISHED, || {
            let defined: Value = serde_json::from_str(&kubectl(&["get", "--output=json"])?)?;
            let several = defined.get("items").and_then(Value::as_array);
            let all = several.map_or(slice::from_ref(&defined), Vec::as_slice);
            Ok(all.iter().all(is_established).then_some(()))
        })
    }

    fn source(self) -> Source {
        match self {
            Self::KubeVirt => Source {
                module: "kubevirt.io/kubevirt",
                version: "v1.7.0",
                file: "pkg/virt-operator/resource/generate/components/validations_generated.go",
                sha256: "e4004624ca48bccc842cc9b5b1c860441ba336014b9cada47b7e4f713559a363",
            },
            Self::Longhorn => Source {
                module: "github.com/longhorn/longhorn-manager",
                version: "v1.6.2",
                file: "k8s/crds.yaml",
                sha256: "8ca85b9e73f9df1657fa3d3e25c642af08434bf5d76a4cc92ba8da9d30ceb8e9",
            },
            Self::Multus => Source {
                module: "github.com/k8snetworkplumbingwg/network-attachment-definition-client",
                version: "v1.7.6",
                file: "artifacts/networks-crd.yaml",
                sha256: "2c83987cbc34c16e7b49921237c39151008e9239304ef2dc7163b92931ef1880",
            },
        }
    }

    fn manifest(self) -> Result<String> {
        let file = self.source().ensure()?;
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file:?}"))?;
        match self {
            Self::KubeVirt => virtual_machine_instances(&text),
            Self::Longhorn | Self::Multus => Ok(text),
        }
    }
}

impl ApiServer {
    /// Makes it know all kinds of a project, and waits until it serves them.
    pub fn define(&self, project: Project) -> Result<()> {
        project.define(&self.kubeconfig_file())
    }
}

fn is_established(definition: &Value) -> bool {
    let says = |one: &Value, key, word| one.get(key).is_some_and(|said| said == word);
    let is_it = |one: &Value| says(one, "type", "Established") && says(one, "status", "True");
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|conditions| conditions.iter().any(is_it))
}

impl Source {
    /// The file in the cache, fetched now if it is not there or not what it was.
    fn ensure(&self) -> Result<PathBuf> {
        let kept = cache_dir()?.join("testbed/kinds").join(self.sha256);
        if self.is_in(&kept) {
            return Ok(kept);
        }
        let fetched = self.fetch()?;
        let Self { module, version, file, .. } = self;
        ensure!(self.is_in(&fetched), "{file} of {module}@{version} has a wrong checksum");
        let directory = kept.parent().context("no directory")?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make {directory:?}"))?;
        // Tests of other processes may be here at the same time: whole or not at all.
        let new = NamedTempFile::new_in(directory)?;
        fs::write(new.path(), fs::read(&fetched)?)?;
        new.persist(&kept)?;
        Ok(kept)
    }

    fn is_in(&self, file: &Path) -> bool {
        hash_file(file).is_ok_and(|content| Sha256::parse(self.sha256) == Some(content.sha256))
    }

    /// Asks Go for the module, which also has its checksum database look at it.
    fn fetch(&self) -> Result<PathBuf> {
        let module = format!("{}@{}", self.module, self.version);
        let go = find_tool("go").unwrap_or_else(|| GO_INSTALLED.into());
        let download = |json: &[&str]| {
            let mut command = tool("timeout");
            command.arg(FETCH_SECONDS).arg(&go).args(["mod", "download"]).args(json).arg(&module);
            run(command.current_dir("/").env("GOFLAGS", "").env("GOWORK", "off"))
        };
        // Only without `-json` does it say in words what is wrong.
        download(&[]).with_context(|| format!("cannot fetch {module}"))?;
        let Downloaded { dir } = serde_json::from_str(&download(&["-json"])?)?;
        Ok(dir.join(self.file))
    }
}

#[derive(Deserialize)]
struct Downloaded {
    #[serde(rename = "Dir")]
    dir: PathBuf,
}

/// What KubeVirt's operator would write: it has its schemas as texts in a Go program, by the kinds'
/// names, and puts each into a frame like this one. The status is no subresource of this kind.
fn virtual_machine_instances(program: &str) -> Result<String> {
    let text = program.split_once("\t\"virtualmachineinstance\": `").map(|(_, rest)| rest);
    let schema = text.and_then(|text| text.split_once('`')).context("KubeVirt has no schema")?.0;
    let schema: String = schema.lines().map(|line| format!("      {line}\n")).collect();
    let version = |name: &str, is_stored: bool| {
        format!(
            "  - name: {name}\n    served: true\n    storage: {is_stored}\n    schema:\n{schema}"
        )
    };
    Ok(format!(
        "apiVersion: apiextensions.k8s.io/v1\n\
         kind: CustomResourceDefinition\n\
         metadata:\n  name: virtualmachineinstances.kubevirt.io\n\
         spec:\n  group: kubevirt.io\n  scope: Namespaced\n  names:\n    \
           kind: VirtualMachineInstance\n    plural: virtualmachineinstances\n    \
           singular: virtualmachineinstance\n    shortNames: [vmi, vmis]\n    categories: [all]\n  \
         versions:\n{}{}",
        version("v1", true),
        version("v1alpha3", false)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_found_by_the_whole_name_of_its_kind() {
        let program = "var all = map[string]string{\n\
            \t\"virtualmachine\": `openAPIV3Schema:\n  type: a\n`,\n\
            \t\"virtualmachineinstance\": `openAPIV3Schema:\n  type: b\n`,\n\
            \t\"virtualmachineinstancepreset\": `openAPIV3Schema:\n  type: c\n`,\n}\n";
        let manifest = virtual_machine_instances(program).unwrap();
        let version = |name: &str, is_stored: bool| {
            format!(
                "  - name: {name}\n    served: true\n    storage: {is_stored}\n    schema:\n      \
                 openAPIV3Schema:\n        type: b\n"
            )
        };
        let versions = [version("v1", true), version("v1alpha3", false)].concat();
        assert!(manifest.ends_with(&format!("  versions:\n{versions}")), "{manifest}");
        assert!(virtual_machine_instances("var all = 5").is_err());
    }
}
