//! Prompts whose selection is corrected by the means of what it leaves out.

use insta::assert_snapshot;
use models::{DecoderOptions, SelectionPlace, SparseOptions};

use super::served::{Request, serve};
use super::sparse::{long_prompt, sparse};
use super::tiny::tiny;

/// The means of what is left out bring logits nearer to those of dense attention, of several chunks in a step too.
#[test]
fn a_correction_brings_prompts_nearer_to_dense_attention() {
    let ids = long_prompt();
    let logits = |options: &DecoderOptions| -> Vec<f32> {
        let one = Request { prefill: 388, ..Request::new(&ids, 2) };
        let other = Request { prefill: 351, ..Request::new(&ids[7..362], 2) };
        let served = serve(&mut tiny().decoder(options), &[one, other], 200);
        // What is drawn may differ, and all that follows.
        let rows = tiny().config.vocab_size as usize * 351;
        served.into_iter().flat_map(|served| served.logits.into_iter().take(rows)).collect()
    };
    let dense = logits(&sparse("full", SelectionPlace::Host).sparse(None));
    // In one layer: errors of several grow on one another.
    let dense_layers = tiny().config.num_layers - 1;
    let spec = format!(
        "flashprefill:block_size=8,alpha=1,sink_blocks=1,recent_blocks=1,dense_layers={dense_layers}"
    );
    let apart = |correction: bool| -> f32 {
        let got = logits(&sparse(&format!("{spec},correction={correction}"), SelectionPlace::Device));
        got.iter().zip(&dense).map(|(a, b)| (a - b).powi(2)).sum()
    };
    let [without, with] = [false, true].map(apart);
    assert!(with < 0.7 * without, "squares of differences: {with}, {without} without it");
    let policy = sparse_select::build(&format!("{spec},correction=true")).unwrap().into();
    let refused = SparseOptions::new(policy, SelectionPlace::Host).check(16).unwrap_err();
    assert_snapshot!(refused, @"flashprefill: kernels do correction=true after their attention: it cannot select on the host");
}
