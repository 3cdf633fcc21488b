//! Caches of NSA models.

use attn_kernels::kernel::KvDtype;
use models::{DecoderConfig, KvOptions, KvPlan};
use serde_json::json;

#[test]
fn blocks_of_the_cache_fill_those_that_are_selected() {
    let block = |selected: u32, asked| {
        let config = json!({ "model_type": "nsa", "block_size": selected });
        let config = DecoderConfig::from_hf_json(&config.to_string(), None).unwrap();
        KvPlan::new(&config, KvOptions::new(KvDtype::F16, asked)).map(|plan| plan.options.block_size)
    };
    assert_eq!([16, 64, 256].map(|asked| block(64, asked).unwrap()), [16, 64, 64]);
    assert_eq!([16, 64].map(|asked| block(48, asked).unwrap()), [16, 16]);
    assert_eq!([4, 64].map(|asked| block(20, asked).unwrap()), [4, 4]);
}
