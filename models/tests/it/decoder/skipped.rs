//! Prefill that leaves out keys of little weight (`skip-softmax`), inside the attention kernels.

use attn_kernels::kernel::KvDtype;
use models::{DecoderOptions, ModelError, SelectionPlace, SparseOptions};

use super::invariance::assert_same;
use super::options;
use super::served::{Request, Served, serve};
use super::tiny::{Tiny, family, tiny};

fn policy(spec: &str) -> SparseOptions {
    SparseOptions::new(sparse_select::build(spec).unwrap().into(), SelectionPlace::Device)
}

fn skipping(spec: &str) -> DecoderOptions {
    options(KvDtype::F32).sparse(Some(policy(spec)))
}

/// 400 tokens of prompt, and 4 that are drawn.
fn run(tiny: &Tiny, options: &DecoderOptions) -> Served {
    let ids: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(400).collect();
    serve(&mut tiny.decoder(options), &[Request::new(&ids, 4)], 128).remove(0)
}

fn largest_difference(a: &Served, b: &Served) -> f32 {
    a.logits.iter().zip(&b.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn thresholds_above_every_weight_leave_nothing_out() {
    for tiny in [tiny(), family("tiny-gpt-oss")] {
        let dense = run(tiny, &options(KvDtype::F32));
        for spec in [
            "skip-softmax:scale=400",
            "skip-softmax:scale=1,min_tokens=401",
            "skip-softmax:scale=1,dense_layers=99",
        ] {
            assert_eq!(run(tiny, &skipping(spec)).bits(), dense.bits(), "{spec}");
        }
    }
}

/// Keys that are left out have little weight: logits move, and by less the lower the threshold is.
#[test]
fn keys_of_little_weight_are_left_out() {
    let dense = run(tiny(), &options(KvDtype::F32));
    let moved = |scale: u32| {
        let served = run(tiny(), &skipping(&format!("skip-softmax:scale={scale}")));
        assert!(served.logits.iter().all(|logit| logit.is_finite()), "{scale}");
        largest_difference(&served, &dense)
    };
    let [few, some, many] = [1, 20, 200].map(moved);
    assert!(few > 0.0 && few <= some && some < many, "{few} {some} {many}");
}

#[test]
fn decode_attends_to_everything() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(400).collect();
    let request = Request { prefill: 1, ..Request::new(&ids, 4) };
    let run = |options: &DecoderOptions| serve(&mut tiny().decoder(options), &[request], 128).remove(0);
    assert_same("decode", &run(&skipping("skip-softmax:scale=1")), &run(&options(KvDtype::F32)));
}

#[test]
fn selections_are_not_asked_of_a_kernel_that_makes_none() {
    let refused = |sparse: SparseOptions, reproducible| {
        let options = options(KvDtype::F32).sparse(Some(sparse)).reproducible(reproducible);
        tiny().try_decoder(&options).err().map(|error| error.to_string())
    };
    let on_host = SparseOptions::new(policy("skip-softmax").policy, SelectionPlace::Host);
    insta::assert_snapshot!(
        refused(on_host, false).unwrap(),
        @"skip-softmax leaves keys out inside the attention kernel: it cannot select on the host"
    );
    insta::assert_snapshot!(
        refused(policy("skip-softmax").measure(true), false).unwrap(),
        @"skip-softmax leaves keys out inside the attention kernel: it cannot be measured"
    );
    insta::assert_snapshot!(
        refused(policy("skip-softmax"), true).unwrap(),
        @"skip-softmax leaves keys out inside the attention kernel: it cannot be reproducible"
    );
    for name in ["tiny-deepseek-v32", "tiny-nsa"] {
        let error = family(name).try_decoder(&skipping("skip-softmax")).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{name}: {error}");
    }
}
