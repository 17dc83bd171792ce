//! An agent with a real API server, and directories in the place of kubelet's.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use wharf_core::install::manifests::render_volumes;
use wharf_testbed::{
    apiserver::ApiServer, debian, devices, place::Place, process::binary, wait_for,
};

use super::common::{Agent, create, kubectl};

const DEADLINE: Duration = Duration::from_secs(180);
pub const NODE: &str = "n0";

pub struct World {
    pub server: ApiServer,
    pub agent: Agent,
    dir: Place,
}

pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// What its node has instead of a machine of its own.
    place: PathBuf,
}

/// One more node, with an agent of its own.
pub struct Second {
    pub agent: Agent,
    place: PathBuf,
}

impl World {
    pub fn new() -> Self {
        Self::with("")
    }

    /// `more` is of the agent's `[volumes]`.
    pub fn with(more: &str) -> Self {
        let needs = [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("blkid", "util-linux")];
        debian::ensure("tests of volumes", &needs).unwrap();
        let server = ApiServer::start().unwrap();
        let dir = Place::new().unwrap();
        // Others who copy our mounts, as machines do that are started meanwhile, see their end too.
        run("mount", &[Path::new("--bind"), dir.path(), dir.path()]);
        run("mount", &[Path::new("--make-shared"), dir.path()]);
        let manifests = dir.path().join("volumes.yaml");
        fs::write(&manifests, render_volumes()).unwrap();
        let manifests = manifests.to_str().unwrap();
        kubectl(&server, &["apply", "-f", manifests], &Value::Null);
        let established = "--for=condition=Established";
        kubectl(&server, &["wait", established, "crd", "--all"], &Value::Null);
        fs::create_dir(dir.path().join("images")).unwrap();
        let agent = start_agent(&server, NODE, dir.path(), more);
        let world = Self { server, agent, dir };
        world.storage("main", &world.path("images"));
        world.wait_ready();
        world
    }

    /// A node beside the first, on the same storage.
    pub fn second(&self, name: &str) -> Second {
        let place = self.path(name);
        let agent = start_agent(&self.server, name, &place, "");
        let second = Second { agent, place };
        wait_for("the other agent's lease for volumes", DEADLINE, || {
            let works = second.agent.works("volumes-lease") && driver_at(&second.place).exists();
            Ok(works.then_some(()))
        })
        .unwrap();
        second
    }

    /// A storage cluster of image files in a directory.
    pub fn storage(&self, name: &str, directory: &Path) {
        self.storage_of(name, "loopfile", &json!({ "directory": directory }));
    }

    pub fn storage_of(&self, name: &str, backend: &str, parameters: &Value) {
        create(
            &self.server,
            &json!({
                "apiVersion": "wharf.dev/v1", "kind": "StorageCluster",
                "metadata": { "name": name },
                "spec": { "backend": backend, "parameters": parameters },
            }),
        );
    }

    pub fn delete(&self, kind: &str, name: &str) {
        kubectl(&self.server, &["delete", kind, name, "--wait=false"], &Value::Null);
        // Nobody here does what Kubernetes' own protection waits for.
        let free =
            ["patch", kind, name, "--type=merge", "-p", "{\"metadata\":{\"finalizers\":null}}"];
        kubectl(&self.server, &free, &Value::Null);
    }

    /// What Kubernetes' own controllers do, none of which runs here: volumes whose deletion was asked
    /// for are let go.
    pub fn release(&self) {
        let list = kubectl(&self.server, &["get", "pv", "-o", "json"], &Value::Null);
        let list: Value = serde_json::from_str(&list).unwrap();
        for volume in list["items"].as_array().unwrap() {
            if !volume["metadata"]["deletionTimestamp"].is_null() {
                self.delete("pv", volume["metadata"]["name"].as_str().unwrap());
            }
        }
    }

    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        wait_for(what, DEADLINE, || Ok(is_so(self).then_some(())))
            .unwrap_or_else(|error| panic!("{error:?}: {:#?}", self.leftovers()));
    }

    /// The agent holds its lease and the driver is in its place.
    pub fn wait_ready(&self) {
        let ready =
            || Ok((self.agent.works("volumes-lease") && self.driver().exists()).then_some(()));
        wait_for("the agent's lease for volumes", DEADLINE, ready).unwrap();
    }

    pub fn node(&self) -> &'static str {
        NODE
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn driver(&self) -> PathBuf {
        driver_at(self.dir.path())
    }

    /// Where kubelet finds the CSI driver.
    pub fn socket(&self) -> PathBuf {
        self.path("kubelet/plugins_registry/agent@volume.wharf.dev-reg.sock")
    }

    /// A blank image of so many MiB.
    pub fn image(&self, name: &str, size: u64) {
        let path = self.path(&format!("images/{name}.img"));
        File::create(path).unwrap().set_len(size << 20).unwrap();
    }

    pub fn image_grows(&self, name: &str, size: u64) {
        let path = self.path(&format!("images/{name}.img"));
        File::options().write(true).open(path).unwrap().set_len(size << 20).unwrap();
    }

    pub fn patch(&self, kind: &str, name: &str, patch: &Value) {
        let patch = patch.to_string();
        kubectl(&self.server, &["patch", kind, name, "--type=merge", "-p", &patch], &Value::Null);
    }

    /// A volume of another storage cluster.
    pub fn volume_of(&self, cluster: &str, name: &str, image: &str) {
        let options = json!({ "storageCluster": cluster, "image": image });
        let source = json!({ "driver": "wharf.dev/volume", "options": options });
        self.volume(name, image, &json!({ "flexVolume": source }));
    }

    pub fn mount_of(
        &self,
        cluster: &str,
        pod: &Pod,
        volume: &str,
        image: &str,
    ) -> Result<(), String> {
        self.mount_with(pod, volume, image, &json!({ "storageCluster": cluster }))
    }

    /// With options beside those that every call has, or instead of them.
    pub fn mount_with(
        &self,
        pod: &Pod,
        volume: &str,
        image: &str,
        more: &Value,
    ) -> Result<(), String> {
        let mut options = self.options(pod, volume, image);
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let dir = self.dir_of(pod, volume).display().to_string();
        call(&driver_at(&pod.place), &["mount", &dir, &options.to_string()])
    }

    pub fn volume(&self, name: &str, image: &str, more: &Value) {
        let mut object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "64Mi" }, "accessModes": ["ReadWriteOnce"],
                "flexVolume": {
                    "driver": "wharf.dev/volume",
                    "options": { "storageCluster": "main", "image": image },
                },
            },
        });
        let spec = object["spec"].as_object_mut().unwrap();
        spec.extend(more.as_object().unwrap().clone());
        create(&self.server, &object);
    }

    pub fn pod(&self, name: &str) -> Pod {
        self.pod_in("default", name)
    }

    pub fn pod_in(&self, namespace: &str, name: &str) -> Pod {
        self.pod_at(NODE, self.dir.path(), namespace, name)
    }

    pub fn pod_on(&self, node: &str, second: &Second, name: &str) -> Pod {
        self.pod_at(node, &second.place, "default", name)
    }

    fn pod_at(&self, node: &str, place: &Path, namespace: &str, name: &str) -> Pod {
        create(
            &self.server,
            &json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "namespace": namespace, "name": name },
                "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
            }),
        );
        let get = ["get", "pod", "-n", namespace, name, "-o", "jsonpath={.metadata.uid}"];
        let uid = kubectl(&self.server, &get, &Value::Null);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Pod { namespace, name, uid, place: place.to_owned() }
    }

    /// The pod is gone at once: there is no kubelet that would end it first.
    pub fn remove(&self, pod: &Pod) {
        let now = ["--grace-period=0", "--force"];
        let delete = [&["delete", "pod", "-n", &pod.namespace, &pod.name][..], &now].concat();
        kubectl(&self.server, &delete, &Value::Null);
    }

    /// What kubelet's directory for the volume is called.
    pub fn dir_of(&self, pod: &Pod, volume: &str) -> PathBuf {
        pod.place.join(format!("kubelet/pods/{}/volumes/wharf.dev~volume/{volume}", pod.uid))
    }

    pub fn options(&self, pod: &Pod, volume: &str, image: &str) -> Value {
        json!({
            "kubernetes.io/fsType": "", "kubernetes.io/readwrite": "rw",
            "kubernetes.io/pvOrVolumeName": volume, "kubernetes.io/pod.name": pod.name,
            "kubernetes.io/pod.namespace": pod.namespace, "kubernetes.io/pod.uid": pod.uid,
            "kubernetes.io/serviceAccount.name": "default",
            "storageCluster": "main", "image": image,
        })
    }

    pub fn mount(&self, pod: &Pod, volume: &str, image: &str) -> Result<(), String> {
        self.mount_with(pod, volume, image, &json!({}))
    }

    pub fn unmount(&self, pod: &Pod, volume: &str) -> Result<(), String> {
        let dir = self.dir_of(pod, volume).display().to_string();
        call(&driver_at(&pod.place), &["unmount", &dir])
    }

    pub fn call(&self, arguments: &[&str]) -> Result<(), String> {
        call(&self.driver(), arguments)
    }

    /// What is said in the record of a volume: kind, reason and message.
    pub fn conditions(&self, volume: &str) -> Vec<[String; 3]> {
        let record = self.record(volume).unwrap_or_default();
        let all = record["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        all.iter().map(|one| ["type", "reason", "message"].map(|key| text(one, key))).collect()
    }

    /// The events of an object: reason and message.
    pub fn events(&self, name: &str) -> Vec<(String, String)> {
        let list = ["get", "events.events.k8s.io", "-A", "-o", "json"];
        let list: Value =
            serde_json::from_str(&kubectl(&self.server, &list, &Value::Null)).unwrap();
        let events = list["items"].as_array().unwrap().iter();
        let of_object = events.filter(|event| event["regarding"]["name"] == name);
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        of_object.map(|event| (text(event, "reason"), text(event, "note"))).collect()
    }

    pub fn record(&self, volume: &str) -> Option<Value> {
        let get = ["get", "attachments.wharf.dev", volume, "--ignore-not-found", "-o", "json"];
        let text = kubectl(&self.server, &get, &Value::Null);
        (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    /// What is left of volumes on a node, by the list that its agent works off.
    pub fn garbage(&self, node: &str) -> Vec<Value> {
        let get = ["get", "nodegarbages.wharf.dev", node, "--ignore-not-found", "-o", "json"];
        let text = kubectl(&self.server, &get, &Value::Null);
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        list["entries"].as_array().cloned().unwrap_or_default()
    }

    /// The loop devices of our images.
    pub fn devices(&self) -> Vec<String> {
        devices::loop_devices(self.dir.path())
    }

    /// How large they are.
    pub fn device_bytes(&self) -> Vec<u64> {
        let sectors = self.devices().into_iter().filter_map(|device| {
            let text = fs::read_to_string(format!("/sys/block/{device}/size")).ok()?;
            text.trim().parse::<u64>().ok()
        });
        sectors.map(|sectors| sectors * 512).collect()
    }

    /// Whether somebody has asked for the end of a pod.
    pub fn is_deleted(&self, pod: &Pod) -> bool {
        let path = "jsonpath={.metadata.deletionTimestamp}";
        let get = ["get", "pod", &pod.name, "--ignore-not-found", "-o", path];
        !kubectl(&self.server, &get, &Value::Null).is_empty()
    }

    /// From now on somebody refuses to have the object deleted.
    pub fn protect(&self, resource: &str, name: &str) {
        let group = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"],
            "resources": [resource], "resourceNames": [name],
        });
        let kind = |kind: &str, spec: Value| {
            json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                    "metadata": { "name": format!("protect-{name}") }, "spec": spec })
        };
        let policy = json!({
            "matchConstraints": { "resourceRules": [group] },
            "validations": [{ "expression": "false", "message": "it is protected" }],
        });
        create(&self.server, &kind("ValidatingAdmissionPolicy", policy));
        let binding =
            json!({ "policyName": format!("protect-{name}"), "validationActions": ["Deny"] });
        create(&self.server, &kind("ValidatingAdmissionPolicyBinding", binding));
        let delete = || {
            Command::new(wharf_bundle::cache::find("kubectl").unwrap())
                .arg("--kubeconfig")
                .arg(self.server.kubeconfig_file())
                .args(["delete", resource, name, "--dry-run=server"])
                .output()
                .unwrap()
        };
        self.wait_until("it to be protected", |_| {
            String::from_utf8_lossy(&delete().stderr).contains("it is protected")
        });
    }

    /// All of ours on this machine: loop devices of our images, mounts, journals.
    pub fn leftovers(&self) -> BTreeSet<String> {
        let mounts = devices::mounts(self.dir.path()).into_iter();
        let devices = self.devices();
        let others = fs::read_dir(self.dir.path()).unwrap().flatten().map(|it| it.path());
        let states = others.chain([self.dir.path().to_owned()]).map(|it| it.join("state/journals"));
        let journals = states.filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let journals = journals.map(|entry| entry.path().display().to_string());
        mounts.chain(devices).chain(journals).collect()
    }
}

impl Drop for World {
    /// Also when a test fails, nothing stays.
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.agent.process().output());
        }
        let _ = self.agent.process().kill();
        devices::remove_below(self.dir.path());
    }
}

/// An agent of a new node, with the node's directories at that place.
fn start_agent(server: &ApiServer, node: &str, place: &Path, more: &str) -> Agent {
    let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } });
    create(server, &object);
    let config = format!(
        "node_name = '{node}'\nkubeconfig = '{}'\n[volumes]\nstate_dir = '{1}/state'\n\
         kubelet_root = '{1}/kubelet'\nplugin_dir = '{1}/plugins'\ndriver = '{2}'\n{more}",
        server.kubeconfig_file().display(),
        place.display(),
        binary("wharf-flex").unwrap().display(),
    );
    Agent::start_below(place, &config)
}

fn driver_at(place: &Path) -> PathBuf {
    place.join("plugins/wharf.dev~volume/volume")
}

/// Calls a driver as kubelet does: both outputs together are one JSON object.
fn call(driver: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(driver).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text:?}"));
    match answer["status"].as_str().unwrap() {
        "Success" if output.status.success() => Ok(()),
        status => Err(format!("{status}: {}", answer["message"].as_str().unwrap_or_default())),
    }
}

pub fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// Runs a program of the machine that has to succeed.
pub fn run(program: &str, arguments: &[&Path]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}
