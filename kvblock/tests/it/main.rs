//! Pools, prefix caches and layouts against models that search lists, published numbers, and drawings.

mod bad_input;
mod cache_model;
mod examples;
mod layout;
mod lookup;
mod pool_model;
mod serde;
mod slots;
mod v0;
