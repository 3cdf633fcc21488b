//! Safetensors files.

use models::{Safetensors, WeightSource as _};

/// Reads every tensor.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(file) = Safetensors::from_bytes(bytes.to_vec()) else { return false };
    for name in file.names() {
        if let Ok(Some(tensor)) = file.get(name) {
            assert_eq!(tensor.dtype.bytes_for(tensor.elems()), Some(tensor.data.len()));
        }
    }
    true
}
