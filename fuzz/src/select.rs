//! Tensors of `select`: a policy's SPEC in the first line, then a safetensors file with q and k.

use sparse_select::{Registry, Spec};

/// Runs the policy.
pub fn run(bytes: &[u8]) -> bool {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let Ok(spec) = String::from_utf8_lossy(&bytes[..line]).parse::<Spec>() else { return false };
    let tensors = bytes.get(line + 1..).unwrap_or_default();
    xtask::select::outcome(tensors, &spec, &Registry::builtin()).is_ok()
}
