//! Dense kernels of a decoder: parameters, bindings, specialisation, grid. One module a kernel, of the same stem as
//! its `.wgsl` file and its CPU reference.

pub mod adjust_logits;
pub mod bias;
pub mod embed;
pub mod glu;
pub mod hyper_collapse;
pub mod hyper_expand;
pub mod index_query_fp8;
pub mod index_write;
pub mod index_write_fp8;
pub mod log_prob;
pub mod matmul;
pub mod matmul_coop;
pub mod matmul_int8;
pub mod matmul_int8_tile;
pub mod matmul_tile;
pub mod moe_combine;
pub mod moe_route;
pub mod moe_sort;
pub mod norm_heads;
pub mod quantize_rows;
pub mod rms_norm;
pub mod rope;
pub mod rope_append;
pub mod round_rows;
pub mod sample;
pub mod scan_logits;
pub mod softcap;
pub mod split_sum;
pub mod state_write;
pub mod top_logits;

use attn_kernels::kernel::{KvDtype, KvShape};
use attn_kernels::profile::{DeviceProfile, Registers};
use attn_kernels::source::Modules;
use attn_kernels::{Kernel, Level, NamedVariant};

use crate::pack::Format;
use crate::{Activation, ExpertPacking, MoeConfig, Pairing, Router, Score};
use hyper_collapse::Reader;
use matmul::{Epilogue, Loads, Tiling};
use matmul_coop::Activations;
use moe_route::Choice;
use quantize_rows::Input;

/// Terms of experts beside their matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertTerms {
    /// Experts have biases.
    pub biased: bool,
    /// Rows have a weight for each of their experts.
    pub weighted: bool,
}

impl ExpertTerms {
    /// Matrices without biases or weights.
    pub const NONE: Self = Self { biased: false, weighted: false };
}

macro_rules! modules {
    ($($folder:ident: $($name:literal),* $(,)?;)*) => {
        &[$($(($name, include_str!(concat!("../wgsl/shared/", stringify!($folder), "/", $name, ".wgsl")))),*),*]
    };
}

/// The shared modules of this crate's kernels.
pub const MODULES: Modules = modules! {
    activations: "activations_f16", "activations_f32", "norm_none", "norm_rms", "x_broadcast", "x_normed", "x_uniform", "x_window",
        "x_windows";
    epilogues: "epilogue_add", "epilogue_gelu_mul", "epilogue_silu_mul", "epilogue_store";
    params: "int8_params", "matmul_params";
    planes: "planes_buffers", "planes_images";
    rows: "index_code", "rows_each", "rows_plain", "rows_routed", "tile_places";
    sampling: "best", "leading", "noise";
    sums: "sums_loops", "sums_unrolled";
    weights: "f16_of_codes", "f16_of_floats", "f16_of_nibbles", "nibbles", "weights_bf16", "weights_f16", "weights_f32", "weights_fp8", "weights_iq4", "weights_mxfp4", "weights_q2k", "weights_q3k", "weights_q4", "weights_q4k", "weights_q5", "weights_q5k", "weights_q6k", "weights_q8";
};

/// Lists every kernel, by name.
#[must_use]
pub fn catalog() -> Vec<&'static Kernel> {
    vec![
        &adjust_logits::KERNEL,
        &bias::KERNEL,
        &embed::KERNEL,
        &glu::KERNEL,
        &hyper_collapse::KERNEL,
        &hyper_expand::KERNEL,
        &index_query_fp8::KERNEL,
        &index_write::KERNEL,
        &index_write_fp8::KERNEL,
        &log_prob::KERNEL,
        &matmul::KERNEL,
        &matmul_coop::KERNEL,
        &matmul_int8::KERNEL,
        &matmul_int8_tile::KERNEL,
        &matmul_tile::KERNEL,
        &moe_combine::KERNEL,
        &moe_route::KERNEL,
        &moe_sort::KERNEL,
        &norm_heads::KERNEL,
        &quantize_rows::KERNEL,
        &rms_norm::KERNEL,
        &rope::KERNEL,
        &rope_append::KERNEL,
        &round_rows::KERNEL,
        &sample::KERNEL,
        &scan_logits::KERNEL,
        &softcap::KERNEL,
        &split_sum::KERNEL,
        &state_write::KERNEL,
        &top_logits::KERNEL,
    ]
}

/// Codings that have a module of their own.
const FORMATS: [Format; 14] = [
    Format::F32,
    Format::F16,
    Format::Bf16,
    Format::Q4,
    Format::Q5,
    Format::Q8,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq4,
    Format::Mxfp4,
    Format::Fp8,
];

/// Lists one variant of every kernel for each choice of modules, by name; sizes are those of typical models.
#[must_use]
pub fn variants() -> Vec<NamedVariant> {
    let named = NamedVariant::new;
    // "weights_q4" is q4.
    let short = |format: Format| format.module().trim_start_matches("weights_");
    let blocks = 64;
    let sliced = |parts| Tiling::for_gpu(1, parts, blocks);
    let matmul =
        |format: Format, epilogue, tiling| matmul::variant(format.module(), epilogue, tiling, blocks, None);

    let mut all = Vec::new();
    all.push(named("write", bias::variant(bias::Form::Store)));
    all.push(named("add", bias::variant(bias::Form::Add)));
    all.extend(FORMATS.map(|format| named(short(format), embed::variant(format.module()))));
    all.push(named("", adjust_logits::variant()));
    all.push(named("", log_prob::variant()));
    all.extend(FORMATS.map(|format| named(short(format), matmul(format, Epilogue::Store, sliced(1)))));
    all.push(named("q4-add", matmul(Format::Q4, Epilogue::Add, sliced(1))));
    all.push(named("q4-gelu_mul", matmul(Format::Q4, Epilogue::GeluMul, sliced(2))));
    all.push(named("q4-silu_mul", matmul(Format::Q4, Epilogue::SiluMul, sliced(2))));
    all.push(named("q4-tall", matmul(Format::Q4, Epilogue::Store, Tiling::for_gpu(256, 1, blocks))));
    let broadcast = matmul(Format::Q4, Epilogue::Store, Tiling::for_cpu(256, 1, true));
    all.push(named("q4-broadcast", broadcast));
    all.push(named("q4-images", matmul::from_images(embed::variant(Format::Q4.module()))));
    for (part, rows, loads) in [
        ("q4-window", 256, Loads::Window),
        ("q4-window-one", 1, Loads::Window),
        ("q4-windows", 256, Loads::Windows),
    ] {
        let window = matmul(Format::Q4, Epilogue::Store, Tiling::for_cpu(rows, 1, true).loads(loads));
        all.push(named(part, matmul::from_images(window)));
    }
    for (name, level) in [("", Level::Baseline), ("-subgroup", Level::Subgroup)] {
        let named = |part: &str, variant| NamedVariant::new(&format!("{part}{name}"), variant);
        let module = Format::Q4.module();
        all.push(named(
            "q4-normed",
            matmul::variant(module, Epilogue::Store, sliced(1), blocks, Some(level)),
        ));
        all.push(named("rows", rms_norm::variant(rms_norm::Form::Store, matmul::NORM_LANES, level)));
        all.push(named("added", rms_norm::variant(rms_norm::Form::Add, matmul::NORM_LANES, level)));
        all.push(named("rms", norm_heads::variant(norm_heads::Norm::Rms, level)));
        all.push(named("layer", norm_heads::variant(norm_heads::Norm::Layer, level)));
        all.push(named("block", hyper_collapse::variant(4, Reader::Block, level)));
        all.push(named("head", hyper_collapse::variant(4, Reader::Head, level)));
        all.push(named("gather", rms_norm::variant(rms_norm::Form::Gather, matmul::NORM_LANES, level)));
        for (part, input) in [("plain", Input::Plain), ("normed", Input::Normed)] {
            all.push(named(part, quantize_rows::variant(input, level)));
            all.push(named(part, round_rows::variant(input, level)));
        }
    }
    for (part, dtype) in [("f16", KvDtype::F16), ("f32", KvDtype::F32)] {
        let shape = KvShape { num_kv_heads: 8, head_dim: 128, block_size: 16, dtype };
        all.push(named(part, rope_append::variant(&shape, Pairing::Halves)));
        let keys = KvShape { num_kv_heads: 1, block_size: 64, ..shape };
        all.push(named(part, index_write::variant(&keys)));
    }
    all.push(named("", index_write_fp8::variant(128, 64)));
    all.push(named("", index_query_fp8::variant(128)));
    for (part, dtype) in [("fp8", KvDtype::Fp8), ("int8", KvDtype::Int8)] {
        let shape = KvShape { num_kv_heads: 8, head_dim: 128, block_size: 16, dtype };
        all.push(named(part, rope_append::variant(&shape, Pairing::Halves)));
    }
    for (part, rows) in [("each", matmul::Rows::Each), ("routed", matmul::Rows::Routed)] {
        all.push(named(part, matmul::several(rows, Format::Bf16.module(), sliced(1), blocks)));
    }
    all.extend(mixtures());
    all.push(named("halves", rope::variant(128, Pairing::Halves)));
    all.push(named("interleaved", rope::variant(128, Pairing::Interleaved)));
    all.extend(
        [("streams", hyper_expand::Form::Add), ("first", hyper_expand::Form::Begin)]
            .map(|(part, form)| named(part, hyper_expand::variant(4, form))),
    );
    all.push(named("", sample::variant(scan_logits::TOKENS_PER_LANE)));
    all.push(named("", scan_logits::variant(scan_logits::TOKENS_PER_LANE)));
    all.push(named("", softcap::variant()));
    all.push(named("", state_write::variant()));
    all.push(named("", top_logits::variant(scan_logits::TOKENS_PER_LANE)));
    all.extend(int8(short));
    all.extend(tiles(short));
    all.extend(
        [("store", Epilogue::Store), ("add", Epilogue::Add)]
            .map(|(part, epilogue)| named(part, split_sum::variant(epilogue))),
    );
    for (part, format, rows, epilogue, activations) in [
        ("q4", Format::Q4, 2048, Epilogue::Store, Activations::F32),
        ("q4-few", Format::Q4, 8, Epilogue::SiluMul, Activations::F16),
        ("q4-middle", Format::Q4, 96, Epilogue::Store, Activations::F16),
        ("q8", Format::Q8, 32, Epilogue::Store, Activations::F16),
        ("f16", Format::F16, 128, Epilogue::Store, Activations::F16),
    ] {
        let tile = matmul_coop::Tile::choose(&DeviceProfile::H200, [rows, 4096, 1024], epilogue);
        let coop = matmul_coop::variant(format, epilogue, activations, tile);
        all.push(named(part, coop));
    }
    let summing = matmul_coop::Plan::invariant(&DeviceProfile::H200, [2048, 4096, 1024], Epilogue::Add, 0);
    all.push(named(
        "q4-summing",
        matmul_coop::variant(Format::Q4, Epilogue::Add, Activations::F16, summing.tile),
    ));
    for (part, rows, activations) in
        [("mxfp4-routed-few", 8, Activations::F32), ("mxfp4-routed", 96, Activations::F16)]
    {
        let tile = matmul_coop::Tile::routed(rows);
        all.push(named(part, matmul_coop::routed(Format::Mxfp4, activations, tile)));
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

const MANY: Registers = Registers::Many;

/// Lanes of a workgroup in WebGPU's default limits.
const BASELINE_LANES: u32 = DeviceProfile::WEBGPU.workgroup_lanes;

/// Matmuls over activations in codes of 8 bits, and what makes the codes.
fn int8(short: impl Fn(Format) -> &'static str) -> Vec<NamedVariant> {
    let named = NamedVariant::new;
    let few = |format: Format, epilogue, rows, registers| {
        let slices = matmul_int8::slices(epilogue, BASELINE_LANES);
        let tiling = matmul_int8::Tiling::for_rows(rows, epilogue, slices, registers);
        matmul_int8::variant(format.module(), epilogue, tiling)
    };
    let coded = FORMATS.into_iter().filter(|format| format.has_codes());
    let mut all: Vec<_> =
        coded.clone().map(|format| named(short(format), few(format, Epilogue::Store, 1, MANY))).collect();
    all.push(named("q4k-add-8", few(Format::Q4K, Epilogue::Add, 8, MANY)));
    all.push(named("q4k-silu_mul-2", few(Format::Q4K, Epilogue::SiluMul, 2, MANY)));
    all.push(named("lean-q4k-add-8", few(Format::Q4K, Epilogue::Add, 8, Registers::Few)));
    all.push(named("lean-q4k-silu_mul-4", few(Format::Q4K, Epilogue::SiluMul, 4, Registers::Few)));
    for (prefix, registers) in Registers::DIVISIONS {
        let tile = |format: Format, epilogue| {
            let slices = matmul_int8::slices(epilogue, BASELINE_LANES);
            let tile = matmul_tile::Tile::coded(registers);
            let name = if epilogue == Epilogue::SiluMul { "q4k-silu_mul" } else { short(format) };
            named(
                &format!("{prefix}{name}"),
                matmul_int8_tile::variant(format.module(), epilogue, slices, tile),
            )
        };
        all.extend(coded.clone().map(|format| tile(format, Epilogue::Store)));
        all.push(tile(Format::Q4K, Epilogue::SiluMul));
    }
    all
}

/// Matmuls of many rows in f32.
fn tiles(short: impl Fn(Format) -> &'static str) -> Vec<NamedVariant> {
    let mut all = Vec::new();
    for (prefix, registers) in Registers::DIVISIONS {
        let named = |part: &str, variant| NamedVariant::new(&format!("{prefix}{part}"), variant);
        let profile = DeviceProfile::H200.registers(registers);
        let tile =
            |epilogue, rows| matmul_tile::Tile::choose(&profile, epilogue, rows, u64::from(rows) << 12);
        let of = |format: Format, epilogue, rows| {
            matmul_tile::variant(format.module(), epilogue, tile(epilogue, rows))
        };
        all.extend(FORMATS.map(|format| named(short(format), of(format, Epilogue::Store, 256))));
        all.push(named("q4k-silu_mul", of(Format::Q4K, Epilogue::SiluMul, 256)));
        for (part, rows) in [("each", matmul::Rows::Each), ("routed", matmul::Rows::Routed)] {
            let tile = tile(Epilogue::Store, 256);
            all.push(named(part, matmul_tile::several(rows, Format::Bf16.module(), tile)));
        }
        if registers == MANY {
            all.push(named("q4k-few", of(Format::Q4K, Epilogue::Add, 16)));
            all.push(named("q4k-few-gelu_mul", of(Format::Q4K, Epilogue::GeluMul, 16)));
        }
    }
    all
}

/// Kernels of mixtures of experts, in the shapes of gpt-oss, DeepSeek V2, V3.2 and V4, and Llama 4.
fn mixtures() -> Vec<NamedVariant> {
    let named = NamedVariant::new;
    let moe = |num_experts, top_k, score, [groups, top_groups, group_top]: [u32; 3], normalise| MoeConfig {
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
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    };
    let swiglu = Activation::LimitedSwiglu { alpha: 1.702, limit: 7.0 };
    vec![
        named(
            "chosen",
            moe_route::variant(&moe(128, 4, Score::SoftmaxOfChosen, [1, 1, 2], false), Choice::Scores),
        ),
        named("softmax", moe_route::variant(&moe(128, 8, Score::Softmax, [1, 1, 2], true), Choice::Scores)),
        named("groups", moe_route::variant(&moe(256, 8, Score::Sigmoid, [8, 4, 2], true), Choice::Scores)),
        named("best", moe_route::variant(&moe(160, 6, Score::Softmax, [8, 3, 1], false), Choice::Scores)),
        named(
            "hashed",
            moe_route::variant(&moe(256, 6, Score::SqrtSoftplus, [1, 1, 2], true), Choice::Table),
        ),
        named("", moe_sort::variant(128)),
        named("silu", glu::variant(Activation::Silu, ExpertTerms { biased: false, weighted: true })),
        named("limited", glu::variant(Activation::LimitedSilu { limit: 10.0 }, ExpertTerms::NONE)),
        named("swiglu", glu::variant(swiglu, ExpertTerms { biased: true, weighted: false })),
        named("", moe_combine::variant(4, ExpertTerms { biased: true, weighted: true })),
    ]
}
