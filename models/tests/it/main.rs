//! Checkpoint readers, kernels and decoders against references, on the adapter that is there.

mod decoder;
mod examples;
mod loading;
mod paper;
mod tuning;
