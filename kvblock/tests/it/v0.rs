//! Tests of the v0 block manager through its public interface.

mod memory;
mod model;
mod parts;
mod queues;
mod traces;
mod vectors;
