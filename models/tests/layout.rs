//! What the host knows of a kernel is what its WGSL says.

#[path = "../../attn-kernels/tests/layout/checks.rs"]
mod checks;

use checks::{Layout, layout};
use models::kernel::{
    adjust_logits, bias, catalog, embed, glu, hyper_collapse, hyper_expand, index_write, log_prob, matmul,
    matmul_int8, moe_combine, moe_route, moe_sort, norm_heads, quantize_rows, rms_norm, rope, rope_append,
    sample, split_sum, state_write, top_logits, variants,
};
use std::path::Path;

fn layouts() -> Vec<Layout> {
    use adjust_logits::AdjustLogitsParams;
    use bias::BiasParams;
    use embed::EmbedParams;
    use glu::GluParams;
    use hyper_collapse::HyperCollapseParams;
    use hyper_expand::HyperExpandParams;
    use index_write::IndexWriteParams;
    use log_prob::LogProbParams;
    use matmul::MatmulParams;
    use matmul_int8::MatmulInt8Params;
    use moe_combine::MoeCombineParams;
    use moe_route::MoeRouteParams;
    use moe_sort::MoeSortParams;
    use norm_heads::NormHeadsParams;
    use quantize_rows::QuantizeRowsParams;
    use rms_norm::RmsNormParams;
    use rope::RopeParams;
    use rope_append::RopeAppendParams;
    use sample::SampleParams;
    use split_sum::SplitSumParams;
    use state_write::StateWriteParams;
    use top_logits::TopLogitsParams;
    vec![
        layout!(AdjustLogitsParams: vocab neg_inf pad0 pad1),
        layout!(BiasParams: rows cols stride first),
        layout!(EmbedParams: rows first cols width),
        layout!(GluParams: rows inner out_stride alpha limit pad0 pad1 pad2),
        layout!(HyperCollapseParams: rows width rounds norm_eps eps pad0 pad1 pad2),
        layout!(HyperExpandParams: rows width pad0 pad1),
        layout!(LogProbParams: rows vocab pad0 pad1),
        layout!(
            MatmulParams: rows cols blocks x_stride y_stride y_offset eps x_div matrices first_matrix split_blocks pad0
        ),
        layout!(MatmulInt8Params: rows cols blocks y_stride y_offset pad0 pad1 pad2),
        layout!(QuantizeRowsParams: rows blocks x_stride eps),
        layout!(SplitSumParams: rows cols splits y_stride y_offset pad0 pad1 pad2),
        layout!(MoeCombineParams: rows width pad0 pad1),
        layout!(MoeRouteParams: rows scale pad0 pad1),
        layout!(MoeSortParams: pairs tile most_tiles pad0),
        layout!(NormHeadsParams: rows heads width stride first eps pad0 pad1),
        layout!(RmsNormParams: rows width eps first),
        layout!(RopeParams: rows heads stride pairs first back pad0 pad1),
        layout!(IndexWriteParams: rows row_stride first pad0),
        layout!(RopeAppendParams: rows num_heads num_kv_heads pairs),
        layout!(StateWriteParams: rows quads block_size page),
        layout!(SampleParams: rows vocab neg_inf pad0),
        layout!(TopLogitsParams: vocab stride first neg_inf),
    ]
}

#[test]
fn uniform_structs_are_the_host_structs() {
    checks::structs(&layouts(), &variants());
}

/// Structs that kernels read from storage buffers, whose fields are words.
#[test]
fn structs_in_storage_are_the_host_structs() {
    use adjust_logits::AdjustRow;
    use sample::Spec;
    use top_logits::TopAsk;
    let layouts = [
        (&sample::KERNEL, layout!(Spec: temperature top_p min_p top_k seed_low seed_high position pad0)),
        (
            &adjust_logits::KERNEL,
            layout!(
                AdjustRow: row mask suppressed biases counts end repetition presence frequency pad0 pad1 pad2
            ),
        ),
        (&top_logits::KERNEL, layout!(TopAsk: row tokens)),
    ];
    for (kernel, layout) in layouts {
        let body = kernel.wgsl.split_once(&format!("struct {} {{", layout.0)).unwrap().1;
        let body = body.split_once('}').unwrap().0;
        let name = |field: &'static str| field.split_once(": ").map(|(name, _)| name.trim());
        let words = body.lines().map(|line| line.split("//").next().unwrap());
        let fields: Vec<&str> = words.flat_map(|line| line.split(',')).filter_map(name).collect();
        let expected: Vec<(&str, usize)> = fields.iter().copied().zip((0..).step_by(4)).collect();
        assert_eq!(layout, (layout.0, 4 * fields.len(), expected));
    }
}

#[test]
fn bindings_are_those_of_the_wgsl() {
    checks::bindings(&variants());
}

#[test]
fn every_file_is_in_the_catalog_and_has_variants() {
    let wgsl = Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl");
    checks::files(&wgsl, &catalog(), &variants());
}
