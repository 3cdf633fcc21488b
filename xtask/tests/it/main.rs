//! The order of the tree and of its packages, and the program as scripts see it. A few tests of the program need the default
//! model or an adapter.
//!
//! `tests/engine` is a program of its own, which takes minutes. Whoever changes a page or a flag runs this one alone, in less
//! than a minute.

mod bench_page;
mod circles;
mod command_line;
mod extensible;
mod functions;
mod fuzz;
mod hub;
mod layers;
mod library_only;
mod packages;
mod pages;
mod results;
#[cfg(target_os = "linux")]
mod set_up;
mod setters;
mod tidy;
mod vocabulary;
mod workflows;
