//! Real machines for tests: systemd, sshd and a network of their own, on one Linux machine.
//!
//! A *bed* is a set of hosts on one bridge. Each host is a `systemd-nspawn` machine on an overlay
//! over a shared base root, and behaves like a machine one owns: it reboots with a new boot id,
//! loses its power, and its network can be cut. [`TestBed::start`] is the place to start reading;
//! [`process`], [`etcd`], [`ceph`], [`apiserver`], [`kinds`] and [`kwok`] hold what
//! tests of single processes need; a [`guest`] is a machine with another kernel.
//!
//! **Invariant:** whatever a bed makes on the machine is named by the bed's state file before it
//! is made, so that `remove` can undo a bed whose maker was killed at any moment.
//!
//! **Invariant:** only processes that the bed started are ended: by process id with start time,
//! or because they live in the bed's own cgroups.
//!
//! Everything blocks. Tests call this crate from plain threads, and it must not choose an async
//! runtime for them.

pub mod apiserver;
pub mod balancer;
mod base;
mod bed;
mod bundle;
pub mod ceph;
mod cgroup;
mod command;
pub mod debian;
pub mod devices;
pub mod disk;
pub mod etcd;
pub mod guest;
mod host;
mod kernel;
pub mod kinds;
pub mod kwok;
mod network;
mod packages;
mod paths;
pub mod place;
pub mod process;
mod procfs;
mod remove;
mod state;
mod wait;
pub mod watcher;

pub use bed::{Bind, HostOptions, Options, TestBed};
pub use bundle::PRELOADED;
pub use host::{Host, Power};
pub use paths::cache_dir;
pub use procfs::ProcessId;
pub use remove::{reap_abandoned, remove};
pub use state::{BedStatus, Condition, list};
pub use wait::{interrupt_on_signals, wait_for};
