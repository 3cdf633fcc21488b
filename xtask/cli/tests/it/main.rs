//! The program as scripts and packages see it: without a model or an adapter, except for `policies`.

mod command_line;
#[cfg(target_os = "linux")]
mod machine;
mod policies;
mod readme;
#[cfg(target_os = "linux")]
mod setup;
