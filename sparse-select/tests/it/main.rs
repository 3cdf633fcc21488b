//! Decisions as drawings, and every policy against an oracle simpler than itself.
#![allow(clippy::cast_possible_truncation, reason = "tests count small things")]

mod bad_input;
mod certificate;
mod decisions;
mod drawn;
mod dsa;
mod examples;
mod flashprefill;
mod invariants;
mod keys;
mod method;
mod nsa;
mod quest;
mod retrieval;
mod skip_softmax;
mod specs;
mod tensors;
mod v4;
mod xattn;
mod xattn_masks;
