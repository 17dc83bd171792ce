//! What a bundle is made of: one row for each upstream project, with its version, the Go packages
//! it is built from and the release files it may be taken from instead.
//!
//! Templates may use `{version}` (without `v`), `{major}`, `{minor}` and `{arch}`.

use std::cmp::Ordering;

use crate::{Error, Mode, Result};

/// One upstream project.
#[derive(Debug)]
pub struct Component {
    pub name: &'static str,
    /// The version that is used unless the caller asks for another.
    pub version: &'static str,
    /// Raised when the way of building changes, so that older results in a cache are made again.
    pub recipe: u32,
    pub files: &'static [File],
    pub source: Source,
    pub release: Release,
    /// For programs that run in pods: the bundle holds this in place of the component's files.
    pub image: Option<Image>,
    /// False for what only development needs: a mirror may lack it.
    pub on_hosts: bool,
}

/// One file of a component: its place in a bundle and its two possible sources.
#[derive(Debug)]
pub struct File {
    pub path: &'static str,
    pub made_from: MadeFrom,
    /// Its name below `v<version>/` of the release, or its name inside the release's archive.
    pub released_as: &'static str,
}

#[derive(Debug)]
pub enum MadeFrom {
    /// The program of this Go package.
    Package(&'static str),
    /// All YAML files in these directories of the module, as one stream of documents.
    Yaml(&'static [&'static str]),
    /// The one program of a source that is not Go.
    Program,
    /// What that program prints when it is asked with these arguments.
    Printed(&'static [&'static str]),
}

impl File {
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.made_from {
            MadeFrom::Package(_) | MadeFrom::Program => Mode::EXECUTABLE,
            MadeFrom::Yaml(_) | MadeFrom::Printed(_) => Mode::DATA,
        }
    }
}

/// Where a component comes from when it is not taken from release files.
#[derive(Debug)]
pub enum Source {
    Go(Go),
    /// A package of our own workspace, built by cargo.
    Cargo(&'static str),
    /// A package of Debian that brings the program ready-made. Its version is the one that the
    /// machine's Debian has; the catalogue names the one of the release that we are tested on.
    Debian(&'static str),
}

/// How a component is built from the Go module registry.
#[derive(Debug)]
pub struct Go {
    pub modules: &'static [&'static str],
    /// Variables that the linker sets: `package.name=value`.
    pub variables: &'static [&'static str],
    pub tags: &'static str,
    /// A static C program with libseccomp inside; otherwise C is off.
    pub cgo: bool,
    /// The module replaces its own staging modules, which a dependent module has to repeat.
    pub staging: bool,
}

const PLAIN_GO: Go = Go { modules: &[], variables: &[], tags: "", cgo: false, staging: false };

/// An image with one program in it, the component's first file.
#[derive(Debug)]
pub struct Image {
    /// Raised when the way of making changes, so that older results in a cache are made again.
    pub recipe: u32,
    /// Its archive's place in a bundle.
    pub path: &'static str,
    /// Under which containerd has it; a template.
    pub name: &'static str,
    /// Where the program lies in the image, without a leading `/`.
    pub program: &'static str,
    /// A file of the component with further names of the program, one a line.
    pub further_names: Option<&'static str>,
    pub entrypoint: &'static [&'static str],
    pub command: &'static [&'static str],
    /// A number; empty for root.
    pub user: &'static str,
}

/// How the project publishes its files.
#[derive(Debug)]
pub struct Release {
    /// The archive that holds the files; without one they are published singly.
    pub archive: Option<&'static str>,
    /// The file that holds the checksums; `{file}` is the name of the checked file.
    pub checksums: &'static str,
}

macro_rules! program {
    ($path:literal, $package:literal, $released_as:literal) => {
        File { path: $path, made_from: MadeFrom::Package($package), released_as: $released_as }
    };
}

/// In the order in which they are built: what others wait for, and what is quick, comes first.
pub const COMPONENTS: &[Component] = &[
    ETCD,
    KUBERNETES,
    CONTAINERD,
    RUNC,
    CNI_PLUGINS,
    COREDNS,
    KWOK,
    CSI_SANITY,
    METRICS_SERVER,
    PAUSE,
    BUSYBOX,
];

const ETCD: Component = Component {
    name: "etcd",
    version: "3.6.16",
    recipe: 1,
    files: &[
        program!("bin/etcd", "go.etcd.io/etcd/server/v3", "etcd-v{version}-linux-{arch}/etcd"),
        program!(
            "bin/etcdctl",
            "go.etcd.io/etcd/etcdctl/v3",
            "etcd-v{version}-linux-{arch}/etcdctl"
        ),
        program!(
            "bin/etcdutl",
            "go.etcd.io/etcd/etcdutl/v3",
            "etcd-v{version}-linux-{arch}/etcdutl"
        ),
    ],
    source: Source::Go(Go {
        modules: &[
            "go.etcd.io/etcd/server/v3",
            "go.etcd.io/etcd/etcdctl/v3",
            "go.etcd.io/etcd/etcdutl/v3",
        ],
        ..PLAIN_GO
    }),
    release: Release {
        archive: Some("etcd-v{version}-linux-{arch}.tar.gz"),
        checksums: "SHA256SUMS",
    },
    image: None,
    on_hosts: true,
};

/// The component whose version names a bundle.
pub const KUBERNETES: Component = Component {
    name: "kubernetes",
    version: "1.36.3",
    recipe: 1,
    files: &[
        program!(
            "bin/kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "bin/linux/{arch}/kube-apiserver"
        ),
        program!(
            "bin/kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "bin/linux/{arch}/kube-controller-manager"
        ),
        program!(
            "bin/kube-scheduler",
            "k8s.io/kubernetes/cmd/kube-scheduler",
            "bin/linux/{arch}/kube-scheduler"
        ),
        program!("bin/kubelet", "k8s.io/kubernetes/cmd/kubelet", "bin/linux/{arch}/kubelet"),
        program!(
            "bin/kube-proxy",
            "k8s.io/kubernetes/cmd/kube-proxy",
            "bin/linux/{arch}/kube-proxy"
        ),
        program!("bin/kubectl", "k8s.io/kubernetes/cmd/kubectl", "bin/linux/{arch}/kubectl"),
        program!("bin/kubeadm", "k8s.io/kubernetes/cmd/kubeadm", "bin/linux/{arch}/kubeadm"),
    ],
    source: Source::Go(Go {
        modules: &["k8s.io/kubernetes"],
        variables: &[
            "k8s.io/component-base/version.gitVersion=v{version}",
            "k8s.io/component-base/version.gitMajor={major}",
            "k8s.io/component-base/version.gitMinor={minor}",
            "k8s.io/component-base/version.gitTreeState=clean",
            "k8s.io/client-go/pkg/version.gitVersion=v{version}",
            "k8s.io/client-go/pkg/version.gitMajor={major}",
            "k8s.io/client-go/pkg/version.gitMinor={minor}",
            "k8s.io/client-go/pkg/version.gitTreeState=clean",
        ],
        staging: true,
        ..PLAIN_GO
    }),
    release: Release { archive: None, checksums: "{file}.sha256" },
    image: None,
    on_hosts: true,
};

const CONTAINERD: Component = Component {
    name: "containerd",
    version: "2.2.9",
    recipe: 1,
    files: &[
        program!(
            "bin/containerd",
            "github.com/containerd/containerd/v2/cmd/containerd",
            "bin/containerd"
        ),
        program!(
            "bin/containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "bin/containerd-shim-runc-v2"
        ),
        program!("bin/ctr", "github.com/containerd/containerd/v2/cmd/ctr", "bin/ctr"),
    ],
    source: Source::Go(Go {
        modules: &["github.com/containerd/containerd/v2"],
        variables: &["github.com/containerd/containerd/v2/version.Version=v{version}"],
        tags: "netgo osusergo",
        ..PLAIN_GO
    }),
    release: Release {
        archive: Some("containerd-{version}-linux-{arch}.tar.gz"),
        checksums: "{file}.sha256sum",
    },
    image: None,
    on_hosts: true,
};

const RUNC: Component = Component {
    name: "runc",
    version: "1.4.3",
    recipe: 1,
    files: &[program!("bin/runc", "github.com/opencontainers/runc", "runc.{arch}")],
    source: Source::Go(Go {
        modules: &["github.com/opencontainers/runc"],
        // Without the seccomp tag no pod starts: kubelet asks for the default profile.
        tags: "seccomp netgo osusergo",
        cgo: true,
        ..PLAIN_GO
    }),
    release: Release { archive: None, checksums: "runc.sha256sum" },
    image: None,
    on_hosts: true,
};

const CNI_PLUGINS: Component = Component {
    name: "cni-plugins",
    version: "1.9.1",
    recipe: 1,
    files: &[
        program!(
            "cni/bridge",
            "github.com/containernetworking/plugins/plugins/main/bridge",
            "bridge"
        ),
        program!(
            "cni/host-local",
            "github.com/containernetworking/plugins/plugins/ipam/host-local",
            "host-local"
        ),
        program!(
            "cni/loopback",
            "github.com/containernetworking/plugins/plugins/main/loopback",
            "loopback"
        ),
        program!(
            "cni/portmap",
            "github.com/containernetworking/plugins/plugins/meta/portmap",
            "portmap"
        ),
    ],
    source: Source::Go(Go {
        modules: &["github.com/containernetworking/plugins"],
        variables: &[
            "github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=v{version}",
        ],
        ..PLAIN_GO
    }),
    release: Release {
        archive: Some("cni-plugins-linux-{arch}-v{version}.tgz"),
        checksums: "{file}.sha256",
    },
    image: None,
    on_hosts: true,
};

const COREDNS: Component = Component {
    name: "coredns",
    version: "1.14.7",
    recipe: 1,
    files: &[program!("bin/coredns", "github.com/coredns/coredns", "coredns")],
    source: Source::Go(Go { modules: &["github.com/coredns/coredns"], ..PLAIN_GO }),
    release: Release {
        archive: Some("coredns_{version}_linux_{arch}.tgz"),
        checksums: "{file}.sha256",
    },
    // Listens on port 53: the pod that uses it says as whom and with which capability.
    image: Some(Image {
        recipe: 1,
        path: "images/coredns.tar",
        name: "wharf.dev/coredns:{version}",
        program: "coredns",
        further_names: None,
        entrypoint: &["/coredns"],
        command: &[],
        user: "",
    }),
    on_hosts: true,
};

const KWOK: Component = Component {
    name: "kwok",
    version: "0.8.0",
    recipe: 1,
    files: &[
        program!("bin/kwok", "sigs.k8s.io/kwok/cmd/kwok", "kwok-linux-{arch}"),
        File {
            path: "share/kwok-stages.yaml",
            made_from: MadeFrom::Yaml(&[
                "kustomize/stage/node/fast",
                "kustomize/stage/node/heartbeat-with-lease",
                "kustomize/stage/pod/fast",
            ]),
            released_as: "stage-fast.yaml",
        },
    ],
    source: Source::Go(Go {
        modules: &["sigs.k8s.io/kwok"],
        variables: &["sigs.k8s.io/kwok/pkg/consts.Version=v{version}"],
        ..PLAIN_GO
    }),
    release: Release { archive: None, checksums: "{file}.sha256" },
    image: None,
    on_hosts: false,
};

/// Kubernetes' own judge of CSI drivers. Its project publishes no programs: a mirror has one that
/// somebody built, or none.
const CSI_SANITY: Component = Component {
    name: "csi-sanity",
    version: "5.6.0",
    recipe: 1,
    files: &[program!(
        "bin/csi-sanity",
        "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
        "csi-sanity-linux-{arch}"
    )],
    source: Source::Go(Go {
        modules: &["github.com/kubernetes-csi/csi-test/v5"],
        variables: &["main.VERSION=v{version}"],
        ..PLAIN_GO
    }),
    release: Release { archive: None, checksums: "{file}.sha256" },
    image: None,
    on_hosts: false,
};

const METRICS_SERVER: Component = Component {
    name: "metrics-server",
    version: "0.9.0",
    recipe: 1,
    files: &[program!(
        "bin/metrics-server",
        "sigs.k8s.io/metrics-server/cmd/metrics-server",
        "metrics-server-linux-{arch}"
    )],
    source: Source::Go(Go {
        modules: &["sigs.k8s.io/metrics-server"],
        variables: &["k8s.io/client-go/pkg/version.gitVersion=v{version}"],
        ..PLAIN_GO
    }),
    release: Release { archive: None, checksums: "{file}.sha256" },
    image: Some(Image {
        recipe: 1,
        path: "images/metrics-server.tar",
        name: "wharf.dev/metrics-server:{version}",
        program: "metrics-server",
        further_names: None,
        entrypoint: &["/metrics-server"],
        command: &[],
        user: "65532",
    }),
    on_hosts: true,
};

/// What holds the namespaces of a pod.
const PAUSE: Component = Component {
    name: "pause",
    version: "1",
    recipe: 1,
    files: &[File {
        path: "bin/pause",
        made_from: MadeFrom::Program,
        released_as: "pause-linux-{arch}",
    }],
    source: Source::Cargo("wharf-pause"),
    release: Release { archive: None, checksums: "{file}.sha256" },
    image: Some(Image {
        recipe: 1,
        path: "images/pause.tar",
        name: "wharf.dev/pause:{version}",
        program: "pause",
        further_names: None,
        entrypoint: &["/pause"],
        command: &[],
        user: "65532",
    }),
    on_hosts: true,
};

/// A shell with everything that looks at a network from inside: an install proves by it that the
/// network of pods works.
const BUSYBOX: Component = Component {
    name: "busybox",
    version: "1.35.0",
    recipe: 1,
    files: &[
        File {
            path: "bin/busybox",
            made_from: MadeFrom::Program,
            released_as: "busybox-linux-{arch}",
        },
        File {
            path: BUSYBOX_COMMANDS,
            made_from: MadeFrom::Printed(&["--list"]),
            released_as: "busybox-commands.txt",
        },
    ],
    source: Source::Debian("busybox-static"),
    release: Release { archive: None, checksums: "{file}.sha256" },
    image: Some(Image {
        recipe: 1,
        path: "images/busybox.tar",
        name: "wharf.dev/busybox:{major}.{minor}",
        program: "bin/busybox",
        further_names: Some(BUSYBOX_COMMANDS),
        entrypoint: &[],
        command: &["sh"],
        user: "",
    }),
    on_hosts: true,
};

const BUSYBOX_COMMANDS: &str = "share/busybox-commands.txt";

/// The row of that name.
///
/// # Errors
/// There is none; the error lists the names that there are.
pub fn component(name: &str) -> Result<&'static Component> {
    COMPONENTS.iter().find(|c| c.name == name).ok_or_else(|| {
        let known: Vec<_> = COMPONENTS.iter().map(|c| c.name).collect();
        Error::UnknownComponent { name: name.to_owned(), known: known.join(", ") }
    })
}

/// The architecture of this machine as Go and the release files spell it.
#[must_use]
pub fn this_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A version without its `v`, or an error: versions become parts of paths and addresses.
///
/// # Errors
/// It is not three numbers, with an optional pre-release after a hyphen.
pub fn parse_version(text: &str) -> Result<String> {
    let version = text.strip_prefix('v').unwrap_or(text);
    let (numbers, pre) = version.split_once('-').unwrap_or((version, "0"));
    let parts: Vec<&str> = numbers.split('.').collect();
    let numeric = |p: &&str| !p.is_empty() && p.len() < 6 && p.bytes().all(|b| b.is_ascii_digit());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
    let good = parts.len() == 3
        && parts.iter().all(numeric)
        && !pre.is_empty()
        && pre.len() < 20
        && pre.bytes().all(plain);
    if good { Ok(version.to_owned()) } else { Err(Error::BadVersion(text.to_owned())) }
}

/// Orders versions by their numbers; a pre-release comes before its release.
#[must_use]
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    fn key(version: &str) -> (Vec<u64>, bool, &str) {
        let (numbers, pre) = version.split_once('-').unwrap_or((version, ""));
        (numbers.split('.').map(|n| n.parse().unwrap_or(0)).collect(), pre.is_empty(), pre)
    }
    key(a).cmp(&key(b))
}

/// Fills a template of this table.
#[must_use]
pub fn expand(template: &str, version: &str, arch: &str) -> String {
    let mut numbers = version.split('.');
    let major = numbers.next().unwrap_or_default();
    let minor = numbers.next().unwrap_or_default();
    template
        .replace("{version}", version)
        .replace("{major}", major)
        .replace("{minor}", minor)
        .replace("{arch}", arch)
}
