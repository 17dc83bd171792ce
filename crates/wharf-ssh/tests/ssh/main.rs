//! The client against Debian's sshd, and against servers that mean no good.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod commands;
mod connecting;
mod hostile;
mod jumping;
mod losing;
mod server;
mod uploading;
