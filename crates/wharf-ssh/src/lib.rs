//! An SSH client for hosts that Wharf installs: commands with limits, files by checksum.
//!
//! One [`Session`] is one connection to one host and carries many commands at once. It is made by
//! [`Session::connect`], which is the place to start reading; [`Session::exec`] runs a
//! [`Command`], [`Session::upload`] brings a file.
//!
//! **Invariant:** no type of the SSH library is part of the public interface: it changes every
//! month, and nobody else should notice.
//!
//! **Invariant:** every wait has an end. Connecting, logging in, commands and transfers have
//! deadlines, a silent host is noticed by keep-alive messages, and what is waited for on a
//! connection that died ends with [`SshError::Lost`].
//!
//! **Invariant:** the host's key is checked before anything of ours (user name, signature) is
//! sent, and secrets are in no error and no `Debug` output.

mod channel;
mod command;
mod connect;
mod error;
mod host_key;
mod key;
mod session;
mod upload;

pub use command::{Command, Output};
pub use connect::{Limits, Target};
pub use error::SshError;
pub use host_key::{HostKey, HostKeyError};
pub use key::{Key, KeyError};
pub use session::Session;
pub use upload::{UploadSpec, Uploaded};
