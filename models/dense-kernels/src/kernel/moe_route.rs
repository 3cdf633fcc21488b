//! Routes rows of a mixture of experts: selects the experts of each row, and their weights.

use crate::Activation;
use crate::ExpertPacking;
use crate::Router;
use attn_kernels::declare::{Listed, Sizes, levels};
use attn_kernels::kernel::flat_grid;
use attn_kernels::slot::{self, Flag, Number};
use attn_kernels::{Level, Variant, bindings, kernel, params};

use crate::{MoeConfig, Score};

kernel! {
    /// The kernel; [`MoeRouteBuffers`] lists its bindings.
    "moe_route"(MoeRouteParams, MoeRouteBuffers): Dense,
    grid: |params, _| flat_grid(params.rows),
    modules: [super::MODULES],
    listed: listed,
    variants: "four scores; groups; experts from a table; biased; reductions by tree or subgroup",
    bytes: "`4 * E` per row",
    cases: crate::self_test::moe::route,
}

/// Variants in the shapes of gpt-oss, DeepSeek V2, V3.2 and V4, and Llama 4.
fn listed(_: &Sizes) -> Listed {
    let moe = |[num_experts, top_k]: [u32; 2],
               score,
               [groups, top_groups, group_top]: [u32; 3],
               normalise| MoeConfig {
        // As gpt-oss has them.
        biases: score == Score::SoftmaxOfChosen,
        num_experts,
        top_k,
        inner_size: 2048,
        shared_size: None,
        router: Router {
            score,
            groups,
            top_groups,
            group_top,
            normalise,
            scale: 1.0,
            correction: groups > 1,
        },
        activation: Activation::Silu,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    };
    let hashed = moe([256, 6], Score::SqrtSoftplus, [1, 1, 2], true);
    levels(|level| {
        let scored = |moe| variant(&moe, ExpertSource::Scores, level);
        vec![
            ("chosen".into(), scored(moe([128, 4], Score::SoftmaxOfChosen, [1, 1, 2], false))),
            ("softmax".into(), scored(moe([128, 8], Score::Softmax, [1, 1, 2], true))),
            ("groups".into(), scored(moe([256, 8], Score::Sigmoid, [8, 4, 2], true))),
            ("best".into(), scored(moe([160, 6], Score::Softmax, [8, 3, 1], false))),
            ("hashed".into(), variant(&hashed, ExpertSource::Table, level)),
        ]
    })
}

params! {
    /// Uniform parameters.
    pub struct MoeRouteParams {
        /// Number of rows.
        pub rows: u32,
        /// Factor on weights.
        pub scale: f32,
    }
}

bindings! {
    /// Buffers of `moe_route`.
    pub struct MoeRouteBuffers(MoeRouteParams) {
        /// Router logits, `[rows, experts]`.
        read logits: f32,
        /// Addends to scores that only affect the choice, `[experts]`.
        read correction: f32,
        /// Tokens, `[rows]`.
        read tokens: u32,
        /// Experts of each token, `[tokens, top]`, if a table chooses.
        read table: u32,
        /// Chosen experts, `[rows, top]`.
        index experts: u32,
        /// Weights of the experts, `[rows, top]`.
        write weights: f32,
        /// Addends of logits, `[experts]`, if the router has biases.
        read bias: f32,
    }
}

/// Source of a row's experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpertSource {
    /// The experts with the best scores.
    Scores,
    /// The experts that a table lists for the row's token id.
    Table,
}

/// Experts.
pub(crate) const EXPERTS: Number = Number("EXPERTS");
/// Groups of experts.
pub(crate) const GROUPS: Number = Number("GROUPS");
/// Number of groups that experts of a row are selected from.
pub(crate) const TOP_GROUPS: Number = Number("TOP_GROUPS");
/// Number of experts whose scores rank a group.
pub(crate) const GROUP_TOP: Number = Number("GROUP_TOP");
/// Kind of score.
pub(crate) const SCORE: Number = Number("SCORE");
/// Whether experts are from a table.
pub(crate) const HASHED: Flag = Flag("HASHED");
/// Whether weights add up to 1.
pub(crate) const NORMALISE: Flag = Flag("NORMALISE");

/// Number of lanes per row: one per expert, within the limits of a workgroup.
fn lanes(experts: u32) -> u32 {
    experts.next_power_of_two().clamp(64, 256)
}

/// Returns the variant for one router.
#[must_use]
pub fn variant(moe: &MoeConfig, choice: ExpertSource, level: Level) -> Variant {
    let score = match moe.router.score {
        Score::Softmax => 0,
        Score::SoftmaxOfChosen => 1,
        Score::Sigmoid => 2,
        Score::SqrtSoftplus => 3,
    };
    Variant::new(&KERNEL)
        .set(EXPERTS, moe.num_experts)
        .set(super::moe_combine::TOP, moe.top_k)
        .set(GROUPS, moe.router.groups)
        .set(TOP_GROUPS, moe.router.top_groups)
        .set(GROUP_TOP, moe.router.group_top)
        .set(SCORE, score)
        .set(HASHED, choice == ExpertSource::Table)
        .set(NORMALISE, moe.router.normalise)
        .set(super::glu::BIASED, moe.biases)
        .set(slot::WG, lanes(moe.num_experts))
        .by_level(slot::REDUCE, level)
}
