//! `config.json` of every family, and after a zero byte `generation_config.json`.

use attn_kernels::kernel::KvDtype;
use models::{DecoderConfig, KvOptions, KvPlan};

use super::shapes::use_shapes;

/// Reads both texts.
pub fn run(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let (config, generation) = text.split_once('\0').map_or((&*text, None), |(a, b)| (a, Some(b)));
    DecoderConfig::from_hf_json(config, generation).inspect(use_sizes).is_ok()
}

/// Uses what a configuration says as loading does.
pub fn use_sizes(config: &DecoderConfig) {
    use_shapes(config);
    for dtype in [KvDtype::F32, KvDtype::Fp8] {
        let options = KvOptions::new(dtype, 16);
        if let Ok(plan) = KvPlan::new(config, options) {
            assert!(plan.block_bytes() > 0);
        }
    }
}
