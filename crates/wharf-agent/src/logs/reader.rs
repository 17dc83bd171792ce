//! The logs of all applications of the node.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use wharf_core::node::logs::{App, Cursor, Line, PodFolder, app_of};

use super::{
    listed::Listed,
    tail::{Source, Tail},
};

/// Each has a file open. A node has 110 pods by default.
const MOST_CONTAINERS: usize = 512;
/// What is handed on at once: enough to be quick, and little enough to be held in memory.
const MOST_LINES: usize = 1000;
const MOST_BYTES: usize = 128 << 10;
/// What is read of one container before the next has its turn.
const TURN: usize = 64 << 10;
/// After so long a folder that is not there does not come back: it is no mount that is late.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// A line, and whose it is.
#[derive(Debug)]
pub struct Entry {
    pub source: Arc<Source>,
    pub line: Line,
}

/// What is wrong with a file or folder.
pub type Fault = (String, String);

pub struct Reader {
    root: PathBuf,
    namespace: String,
    listed: Listed,
    /// The pods of the namespace, by the names of their folders.
    pods: BTreeMap<OsString, Pod>,
    /// Of the last look: a container may belong to one that is new.
    apps: Vec<App>,
    /// There were more containers than are read.
    left_out: bool,
    tails: Vec<Tail>,
    /// What was stored of containers that were not met since.
    stored: BTreeMap<String, Cursor>,
    begun: Instant,
    /// Of the last look.
    now: Instant,
    /// Whose turn it is.
    turn: usize,
    faults: Vec<Fault>,
}

struct Pod {
    folder: PodFolder,
    listed: Listed,
}

impl Reader {
    pub fn new(
        root: &Path,
        namespace: &str,
        stored: BTreeMap<String, Cursor>,
        now: Instant,
    ) -> Self {
        Self {
            root: root.to_owned(),
            namespace: namespace.to_owned(),
            listed: Listed::default(),
            pods: BTreeMap::new(),
            apps: Vec::new(),
            left_out: false,
            tails: Vec::new(),
            stored,
            begun: now,
            now,
            turn: 0,
            faults: Vec::new(),
        }
    }

    /// For storing, by pod and container.
    pub fn cursors(&self) -> BTreeMap<String, Cursor> {
        let read = self.tails.iter().map(|tail| (key(&tail.source), tail.cursor.clone()));
        read.chain(self.stored.clone()).collect()
    }

    /// What was wrong since the last call.
    pub fn faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    /// Looks which containers there are. Those of an application that was taken away are read as long
    /// as they are there; those of one whose logs nobody wants keep their place until somebody does.
    pub fn look(&mut self, apps: &[App], now: Instant) {
        self.now = now;
        // A node without a kubelet has no folder, and no application is meant for it.
        let needed = |error: &io::Error| {
            error.kind() != io::ErrorKind::NotFound || apps.iter().any(|app| app.designated)
        };
        if let Err(error) = self.find(apps)
            && needed(&error)
        {
            let root = self.root.display();
            self.faults.push((root.to_string(), format!("its logs cannot be listed: {error}")));
        }
        for tail in &mut self.tails {
            if let Some(app) = apps.iter().find(|app| app.uuid == tail.source.app) {
                tail.silent = app.silent;
            }
            if let Err(error) = tail.list(now) {
                self.faults.push((tail.folder.display().to_string(), error.to_string()));
            }
        }
        self.tails.retain(|tail| tail.gone.is_none_or(|since| now - since < FORGOTTEN));
        if now - self.begun >= FORGOTTEN {
            self.stored.clear();
        }
    }

    fn find(&mut self, apps: &[App]) -> io::Result<()> {
        if self.listed.is_old(&self.root)
            && let Err(error) = self.find_pods()
        {
            self.listed.forget();
            return Err(error);
        }
        let again = std::mem::take(&mut self.left_out) || self.apps != apps;
        self.apps = apps.to_vec();
        let mut pods = std::mem::take(&mut self.pods);
        for (name, pod) in &mut pods {
            let folder = self.root.join(name);
            if (pod.listed.is_old(&folder) || again)
                && self.find_containers(&pod.folder, &folder).is_err()
            {
                // It has just been removed, which is no fault, or is tried again.
                pod.listed.forget();
            }
        }
        self.pods = pods;
        Ok(())
    }

    fn find_pods(&mut self) -> io::Result<()> {
        let mut known = std::mem::take(&mut self.pods);
        for entry in std::fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            let folder = name.to_str().and_then(PodFolder::parse);
            let Some(folder) = folder.filter(|pod| pod.namespace == self.namespace) else {
                continue;
            };
            let pod = known.remove(&name);
            self.pods.insert(name, pod.unwrap_or(Pod { folder, listed: Listed::default() }));
        }
        Ok(())
    }

    fn find_containers(&mut self, pod: &PodFolder, folder: &Path) -> io::Result<()> {
        for container in std::fs::read_dir(folder)? {
            let container = container?;
            let path = container.path();
            if let (true, Ok(name)) = (path.is_dir(), container.file_name().into_string()) {
                self.add(pod, name, path);
            }
        }
        Ok(())
    }

    fn add(&mut self, pod: &PodFolder, container: String, folder: PathBuf) {
        if self.tails.iter().any(|tail| tail.folder == folder) {
            return;
        }
        let mut source = Source { app: String::new(), pod_uid: pod.uid.clone(), container };
        let stored = self.stored.remove(&key(&source));
        let app = || app_of(&pod.pod, &source.container, &self.apps);
        let Some(cursor) = stored.or_else(|| app().map(|app| Cursor::new(&app.uuid))) else {
            return;
        };
        if self.tails.len() >= MOST_CONTAINERS {
            self.left_out = true;
            let reason =
                format!("there are more than {MOST_CONTAINERS} containers: it is not read");
            return self.faults.push((folder.display().to_string(), reason));
        }
        source.app.clone_from(&cursor.app);
        self.tails.push(Tail::new(source, folder, cursor));
    }

    /// Reads what is new, up to what can be handed on at once, from each container in turn. `true`:
    /// there may be more.
    pub fn read(&mut self) -> (Vec<Entry>, bool) {
        let (mut entries, mut lines) = (Vec::new(), Vec::new());
        let mut buffer = vec![0; TURN];
        let (mut bytes, mut idle) = (0, 0);
        while idle < self.tails.len() {
            if entries.len() >= MOST_LINES || bytes >= MOST_BYTES {
                return (entries, true);
            }
            self.turn = (self.turn + 1) % self.tails.len();
            let Some(tail) = self.tails.get_mut(self.turn) else { break };
            if tail.silent {
                idle += 1;
                continue;
            }
            match tail.read(&mut buffer, &mut lines, self.now) {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => {
                    tail.close();
                    self.faults.push((tail.folder.display().to_string(), error.to_string()));
                    idle += 1;
                }
            }
            bytes += lines.iter().map(|line| line.text.len()).sum::<usize>();
            let source = &tail.source;
            let entry = |line| Entry { source: source.clone(), line };
            entries.extend(lines.drain(..).map(entry));
        }
        (entries, false)
    }
}

fn key(source: &Source) -> String {
    format!("{}/{}", source.pod_uid, source.container)
}

#[cfg(test)]
mod tests;
