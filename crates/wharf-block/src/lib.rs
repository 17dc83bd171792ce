//! Block devices made from user space.
//!
//! [`loops`] makes a device of a file and finds it again; [`shutdown`] cuts a mounted file system off
//! from its device; [`nbd`] is a block server that never has two writers; [`proxy`] makes a file of this
//! machine out of one of its images. Everything here blocks: callers of an async runtime use a blocking thread.
//!
//! **Invariant:** this crate knows nothing of Kubernetes or of the rest of Wharf. The only unsafe code
//! is in `ioctl.rs`.
//!
//! Start reading at [`loops::attach`].

mod fuse;
mod ioctl;
pub mod loops;
pub mod nbd;
pub mod proxy;
pub mod shutdown;
