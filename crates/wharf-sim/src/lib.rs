//! The simulated world: what the decisions of the domain do when everything goes wrong at once.
//!
//! A seed makes a world, and the same seed makes the same world again: there is no clock, no thread
//! and no chance but the seed's. What must always hold is checked at every step.
//!
//! **Invariant:** the decisions are those of the product. What is simulated is only what surrounds
//! them: machines, kernels, the API server, storage and the network between them.
//!
//! Start reading at [`volumes`].

// A place that is not there is a defect of the simulation, and is found at once.
#![allow(clippy::indexing_slicing)]

pub mod chance;
pub mod volumes;
