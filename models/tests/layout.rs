//! What the host knows of a kernel is what its WGSL says.

#[path = "../../attn-kernels/tests/layout/checks.rs"]
mod checks;

use checks::{Layout, layout};
use models::kernel::{
    bias, catalog, embed, glu, hyper_collapse, hyper_expand, index_write, log_prob, matmul, moe_combine,
    moe_route, moe_sort, norm_heads, rms_norm, rope, rope_append, sample, state_write, variants,
};
use std::path::Path;

fn layouts() -> Vec<Layout> {
    use bias::BiasParams;
    use embed::EmbedParams;
    use glu::GluParams;
    use hyper_collapse::HyperCollapseParams;
    use hyper_expand::HyperExpandParams;
    use index_write::IndexWriteParams;
    use log_prob::LogProbParams;
    use matmul::MatmulParams;
    use moe_combine::MoeCombineParams;
    use moe_route::MoeRouteParams;
    use moe_sort::MoeSortParams;
    use norm_heads::NormHeadsParams;
    use rms_norm::RmsNormParams;
    use rope::RopeParams;
    use rope_append::RopeAppendParams;
    use sample::SampleParams;
    use state_write::StateWriteParams;
    vec![
        layout!(BiasParams: rows cols stride first),
        layout!(EmbedParams: rows first cols width),
        layout!(GluParams: rows inner out_stride alpha limit pad0 pad1 pad2),
        layout!(HyperCollapseParams: rows width rounds norm_eps eps pad0 pad1 pad2),
        layout!(HyperExpandParams: rows width pad0 pad1),
        layout!(LogProbParams: rows vocab pad0 pad1),
        layout!(
            MatmulParams: rows cols blocks x_stride y_stride y_offset eps x_div matrices first_matrix pad0 pad1
        ),
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
    ]
}

#[test]
fn uniform_structs_are_the_host_structs() {
    checks::structs(&layouts(), &variants());
}

/// The one struct that kernels read from a storage buffer.
#[test]
fn the_spec_of_a_draw_is_the_host_struct() {
    use sample::Spec;
    let layout = layout!(Spec: temperature top_p min_p top_k seed_low seed_high position pad0);
    let text = sample::KERNEL.wgsl;
    let body = text.split_once("struct Spec {").unwrap().1.split_once('}').unwrap().0;
    let fields: Vec<&str> = body.lines().filter_map(|line| Some(line.trim().split_once(':')?.0)).collect();
    let expected: Vec<(&str, usize)> = fields.iter().copied().zip((0..).step_by(4)).collect();
    assert_eq!(layout, ("Spec", 4 * fields.len(), expected));
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
