//! Configurations as RON.
#![cfg(feature = "serde")]

use kvblock::{AttentionKind, BlockSize, KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits};

fn config() -> KvCacheConfig {
    let kind = AttentionKind::SlidingWindow { window: 128 };
    let spec = KvCacheSpec::new(kind, BlockSize::new(16).unwrap(), 8, 64, KvDtype::F16);
    KvCacheConfig::uniform(100, spec, 2, LengthLimits::new(4096).max_batched_tokens(512))
}

#[test]
fn a_configuration_survives_a_round_trip() {
    let text = ron::to_string(&config()).unwrap();
    assert_eq!(ron::from_str::<KvCacheConfig>(&text).unwrap(), config());
}

#[test]
fn a_block_of_no_tokens_and_an_unknown_field_are_refused() {
    assert_eq!(ron::from_str::<BlockSize>("(16)").unwrap().get(), 16);
    assert!(ron::from_str::<BlockSize>("(0)").is_err());
    let limits = "(max_model_len: 1, max_batched_tokens: 1, typo: 1)";
    assert!(ron::from_str::<LengthLimits>(limits).is_err());
}

#[test]
fn a_type_of_elements_is_read_by_both_of_its_names() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Fp8, KvDtype::Int8] {
        let written = ron::to_string(&dtype).unwrap();
        assert_eq!(written, format!("{dtype:?}"));
        for name in [written.as_str(), dtype.name()] {
            assert_eq!(ron::from_str::<KvDtype>(name).unwrap(), dtype);
        }
    }
}
