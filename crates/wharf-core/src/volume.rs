//! Volumes: who may use one, how it comes to a pod and leaves it, and what happens when a machine
//! is lost.
//!
//! The lock of a volume is its attachment record in the API server, changed only by create and by
//! compare-and-swap. An agent writes its entry there before it touches the device, and takes it out
//! after the device is verified to be gone. Others may push it out by proof only ([`fence`]): the
//! holder was shut out at the data path, or it has promised to cut itself off before its lease ends
//! ([`lease`]) and the lease has ended. That a pod, a Node or a name is missing proves nothing.
//!
//! **Guarantee:** no two nodes write to a volume that may have one writer, whatever crashes, is cut
//! off or is late; `wharf-sim` tries it.
//!
//! **Assumption:** clocks run apart by less than the stated bound, and something that outlives the
//! agent's process cuts its volumes at the deadline of [`lease::Tenure`] ([`guard`]). For backends that
//! cannot shut a client out two things break this: a whole machine that is stopped and goes on later, and
//! one that cannot cut a volume off because its storage does not answer, unless it forces itself down.
//!
//! Start reading at [`attach::decide_attach`], then [`journal::decide_next`].

pub mod attach;
pub mod backend;
pub mod cleanup;
pub mod condition;
pub mod explain;
pub mod fence;
pub mod garbage;
pub mod guard;
pub mod journal;
pub mod lease;
pub mod options;
pub mod provision;
mod push_out;
pub mod rbd;
pub mod record;
pub mod request;
