//! The program as scripts and packages see it, without a model or an adapter.

mod command_line;
mod readme;
#[cfg(target_os = "linux")]
mod setup;
