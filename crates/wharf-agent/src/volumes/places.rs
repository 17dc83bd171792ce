//! Where things of volumes are on this node.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use crate::config;

const KUBELET_ROOT: &str = "/var/lib/kubelet";
const DRIVER: &str = "wharf-flex";
const PLUGIN_DIR: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Journals, the tenure, and what backends keep.
    pub state_dir: PathBuf,
    given_root: Option<PathBuf>,
    /// As kubelet said: it does not move while it runs.
    seen_root: Arc<OnceLock<PathBuf>>,
    given_plugins: Option<PathBuf>,
    driver: Option<PathBuf>,
    /// Where the guard forces the machine down, if it is to.
    pub reboot: Option<PathBuf>,
}

impl Places {
    pub fn new(state_dir: PathBuf, config: &config::Volumes) -> Self {
        Self {
            state_dir,
            given_root: config.kubelet_root.clone(),
            seen_root: Arc::default(),
            given_plugins: config.plugin_dir.clone(),
            driver: config.driver.clone(),
            reboot: config.self_fence_reboot.then(|| config.reboot_trigger.clone()),
        }
    }

    /// What the guard has to know.
    pub fn of_guard(state_dir: PathBuf, kubelet_root: PathBuf, reboot: Option<PathBuf>) -> Self {
        Self {
            state_dir,
            given_root: Some(kubelet_root),
            seen_root: Arc::default(),
            given_plugins: None,
            driver: None,
            reboot,
        }
    }

    /// kubelet's own directory: as configured, as kubelet was told, or where it is by default.
    pub fn kubelet_root(&self) -> PathBuf {
        if let Some(known) = self.given_root.as_ref().or(self.seen_root.get()) {
            return known.clone();
        }
        match Kubelet::find() {
            Some(kubelet) => {
                let root = kubelet.root.unwrap_or_else(|| KUBELET_ROOT.into());
                self.seen_root.get_or_init(|| root).clone()
            }
            None => KUBELET_ROOT.into(),
        }
    }

    /// Where kubelet looks for drivers. It may be started, or started anew, after the agent.
    pub fn plugin_dir(&self) -> PathBuf {
        let told = || Kubelet::find().and_then(|kubelet| kubelet.plugins);
        self.given_plugins.clone().or_else(told).unwrap_or_else(|| PLUGIN_DIR.into())
    }

    /// The driver that is to be installed there.
    pub fn driver(&self) -> io::Result<PathBuf> {
        match &self.driver {
            Some(driver) => Ok(driver.clone()),
            None => Ok(std::env::current_exe()?.with_file_name(DRIVER)),
        }
    }

    /// A program of ours that lies beside the driver.
    pub fn beside(&self, name: &str) -> io::Result<PathBuf> {
        Ok(self.driver()?.with_file_name(name))
    }

    /// Where kubelet has the directories of all pods.
    pub fn pods(&self) -> PathBuf {
        self.kubelet_root().join("pods")
    }

    /// Where a volume's file system is mounted once for all pods of the node. It lies below kubelet's
    /// directory, so that a containerised agent's mounts are seen where kubelet's are.
    pub fn staging(&self, volume: &str) -> PathBuf {
        self.kubelet_root().join("plugins/wharf.dev/volume/mounts").join(volume)
    }
}

/// A running kubelet, by what it was started with.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kubelet {
    root: Option<PathBuf>,
    plugins: Option<PathBuf>,
}

impl Kubelet {
    fn find() -> Option<Self> {
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut lines = processes.filter_map(|process| {
            let name = fs::read_to_string(process.path().join("comm")).ok()?;
            if name.trim_end() != "kubelet" {
                return None;
            }
            fs::read_to_string(process.path().join("cmdline")).ok()
        });
        lines.next().map(|line| Self::parse(&line, |path| fs::read_to_string(path).ok()))
    }

    /// Arguments end with zero bytes. What an argument says counts before the file.
    fn parse(line: &str, read: impl Fn(&Path) -> Option<String>) -> Self {
        let arguments: Vec<&str> = line.split('\0').collect();
        let value = |name: &str| -> Option<PathBuf> {
            let with = format!("{name}=");
            let joined = arguments.iter().find_map(|argument| argument.strip_prefix(&with));
            let place = || arguments.iter().position(|argument| *argument == name);
            let apart = || arguments.get(place()?.saturating_add(1)).copied();
            joined.or_else(apart).map(PathBuf::from)
        };
        let in_file = || {
            let path = plugins_in(&read(&value("--config")?)?)?;
            (!path.is_empty()).then(|| PathBuf::from(path))
        };
        Self { root: value("--root-dir"), plugins: value("--volume-plugin-dir").or_else(in_file) }
    }
}

/// The directory for drivers in kubelet's file, which is JSON or YAML. In YAML it is one plain line.
fn plugins_in(text: &str) -> Option<String> {
    const KEY: &str = "volumePluginDir";
    if let Ok(file) = serde_json::from_str::<serde_json::Value>(text) {
        return file.get(KEY)?.as_str().map(str::to_owned);
    }
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, path) = lines.find(|(key, _)| key.trim().trim_matches(['"', '\'']) == KEY)?;
    // Behind what is not quoted there may be a comment.
    let path = path.split(" #").next().unwrap_or_default().trim();
    Some(path.trim_matches(['"', '\'']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_own_words_are_read_from_arguments_and_file() {
        let none = |_: &Path| None;
        let parse = |line: &str| Kubelet::parse(line, none);
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(parse("kubelet\0--v=2\0"), Kubelet::default());
        let both = parse("kubelet\0--root-dir=/r\0--volume-plugin-dir\0/p\0");
        assert_eq!(both, Kubelet { root: path("/r"), plugins: path("/p") });
        let file = |_: &Path| Some("kind: KubeletConfiguration\nvolumePluginDir: \"/q\"\n".into());
        let by_file = Kubelet::parse("kubelet\0--config=/c\0", file);
        assert_eq!(by_file.plugins, path("/q"));
        for (text, plugins) in [
            (r#"{"kind":"KubeletConfiguration","volumePluginDir":"/j:1","port":1}"#, path("/j:1")),
            (
                "{\n  \"kind\": \"KubeletConfiguration\",\n  \"volumePluginDir\": \"/j\"\n}",
                path("/j"),
            ),
            (r#"{"kind":"KubeletConfiguration"}"#, None),
            ("volumePluginDir: ''\n", None),
            ("volumePluginDir: /y # ours\n", path("/y")),
            ("other: x\nvolumePluginDirs: /z\n", None),
        ] {
            let read = |_: &Path| Some(text.to_owned());
            assert_eq!(Kubelet::parse("kubelet\0--config=/c\0", read).plugins, plugins, "{text}");
        }
        let first = Kubelet::parse("kubelet\0--config=/c\0--volume-plugin-dir=/p\0", file);
        assert_eq!(first.plugins, path("/p"));
    }
}
