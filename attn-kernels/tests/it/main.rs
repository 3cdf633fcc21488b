//! Every kernel on the adapter that is there against its CPU reference, its layout, and its translations.

mod adapter;
mod codegen;
mod coop;
mod coop_decode;
mod coop_xattn;
mod examples;
mod flushing;
mod layout;
mod random;
mod reference;
mod self_test;
mod trusted;
