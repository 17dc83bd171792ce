//! The pod as it sees itself, from among the mounts of its host.

use std::{
    env, fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
};

use rustix::{
    fs::{Mode, OFlags, open},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use wharf_core::install::pod_agent::POD_CONFIG;

use super::LaunchError;

const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The container that was left: its files, and what the cluster told it.
pub struct Container {
    /// Its root directory. Paths below it are those of the container, whatever mounts we see.
    root: OwnedFd,
    /// Its mounts would go with the last who has them: that was us.
    _mounts: fs::File,
    pub node: String,
    /// The API server's address.
    pub server: String,
}

impl Container {
    /// Takes the host's mounts for the container's own. It works only before there are threads.
    ///
    /// # Errors
    /// This is no pod of the DaemonSet, or it has not the rights.
    pub fn leave() -> Result<Self, LaunchError> {
        let variable = |name| env::var(name).map_err(|_| LaunchError::Environment(name));
        let node = variable("NODE_NAME")?;
        let server = server(&variable("KUBERNETES_SERVICE_HOST")?, &variable(PORT)?);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root =
            open("/", flags, Mode::empty()).map_err(|error| LaunchError::Enter(error.into()))?;
        let name_space = |path| fs::File::open(path).map_err(LaunchError::Enter);
        let (own, host) = (name_space("/proc/self/ns/mnt")?, name_space("/proc/1/ns/mnt")?);
        let number = |file: &fs::File| file.metadata().map(|found| found.ino());
        // Without the host's processes the first one is our own.
        if number(&own).map_err(LaunchError::Enter)? == number(&host).map_err(LaunchError::Enter)? {
            return Err(LaunchError::NotOnHost);
        }
        move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Mount))
            .map_err(|error| LaunchError::Enter(error.into()))?;
        Ok(Self { root, _mounts: own, node, server })
    }

    /// Where a path of the container is for us.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}{path}", self.root.as_raw_fd()))
    }

    fn read(&self, what: &'static str, path: &str) -> Result<String, LaunchError> {
        let read: io::Result<String> = fs::read_to_string(self.path(path));
        read.map_err(|source| LaunchError::Pod { what, source })
    }

    /// The pod's own token, which kubelet replaces from time to time.
    pub fn token(&self) -> Result<String, LaunchError> {
        let token = self.read("token", &format!("{ACCOUNT}/token"))?;
        Ok(token.trim().to_owned())
    }

    pub fn authority(&self) -> Result<String, LaunchError> {
        self.read("authority", &format!("{ACCOUNT}/ca.crt"))
    }

    pub fn config(&self) -> Result<String, LaunchError> {
        self.read("configuration", POD_CONFIG)
    }
}

const PORT: &str = "KUBERNETES_SERVICE_PORT";

fn server(host: &str, port: &str) -> String {
    match host.contains(':') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_kinds_are_written_as_they_must_be() {
        assert_eq!(server("10.43.0.1", "443"), "https://10.43.0.1:443");
        assert_eq!(server("fd00::1", "443"), "https://[fd00::1]:443");
    }
}
