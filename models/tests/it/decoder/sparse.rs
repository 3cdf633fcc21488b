//! Attention to selected blocks: everything selected is dense attention, and what is selected does not depend on where.
//! Also beside windows, chunks and sinks, where layers of full attention select and the others stay as they are.

use attn_kernels::kernel::KvDtype;
use insta::assert_snapshot;
use models::{Attended, DecoderOptions, SelectionPlace, SparseOptions};

use super::invariance::assert_same;
use super::served::{Request, Served, serve};
use super::tiny::{Tiny, family, tiny};
use super::{blocks_of, options};
use crate::usual;

pub(super) fn sparse(spec: &str, place: SelectionPlace) -> DecoderOptions {
    let policy = sparse_select::build(spec).unwrap().into();
    let sparse = Some(SparseOptions::new(policy, place).trace(true).certify(true));
    blocks_of(4, &options(KvDtype::F32)).sparse(sparse).reproducible(true)
}

/// 400 tokens of prompt; the last 12, and 4 that are drawn, as decode steps.
pub(super) fn long_prompt() -> Vec<u32> {
    tiny().prompts[3].ids.iter().copied().cycle().take(400).collect()
}

pub(super) fn run(options: &DecoderOptions) -> Served {
    run_with(tiny(), options)
}

fn run_with(tiny: &Tiny, options: &DecoderOptions) -> Served {
    let ids = long_prompt();
    let request = Request { prefill: 388, ..Request::new(&ids, 4) };
    serve(&mut tiny.decoder(options), &[request], 128).remove(0)
}

fn dense() -> Served {
    run(&sparse("full", SelectionPlace::Host).sparse(None))
}

pub(super) fn density(attended: &[Attended]) -> f64 {
    let mut all = Attended::default();
    attended.iter().for_each(|step| all.add(step));
    all.density()
}

/// The selections of the last step, a line a layer.
fn drawn(served: &Served) -> String {
    let of_layer = |(layer, selection): &(u32, sparse_select::Selection)| {
        let heads: Vec<String> = (0..selection.groups()).map(|g| selection.strip(g, 0).to_string()).collect();
        format!("{layer}: {}\n", heads.join(" "))
    };
    served.attended.last().unwrap().selections.iter().map(of_layer).collect()
}

#[test]
fn everything_selected_is_dense() {
    let want = dense();
    // By position, by digests, by scores of the prefill: all keep everything, and say so block by block.
    let all = "sparse_ratio=1,min_blocks=1,block_size=16";
    for spec in
        [format!("gsa:{all}"), format!("gsa:scoring=mean_k,{all}"), "xattn:threshold=1,block_size=16".into()]
    {
        for place in [SelectionPlace::Host, SelectionPlace::Device] {
            let got = run(&sparse(&spec, place));
            assert_eq!(density(&got.attended), 1.0, "{spec}");
            assert_eq!(got.drawn, want.drawn, "{spec} {place:?}");
            let worst = got.logits.iter().zip(&want.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-3, "{spec} {place:?}: a logit differs by {worst}");
        }
    }
}

#[test]
fn decode_rows_of_all_blocks_are_dense_to_the_bit() {
    let got =
        run(&sparse("gsa:scoring=mean_k,sparse_ratio=1,min_blocks=1,block_size=16", SelectionPlace::Host));
    assert_same("all blocks", &got, &dense());
    assert!(got.attended.iter().all(|step| !step.selections.is_empty()));
}

#[test]
fn budgets_are_kept_and_reported() {
    let budget = "quest:page_budget=6,dense_layers=1,block_size=16";
    let got = run(&sparse(budget, SelectionPlace::Host));
    // 15 decode steps over 25 or 26 blocks of 16, of which two of three layers keep 6.
    let visible: u32 = (389..=403u32).map(|len| len.div_ceil(16)).sum();
    let density_wanted = (f64::from(visible) + 2.0 * 15.0 * 6.0) / (3.0 * f64::from(visible));
    assert!((density(&got.attended) - density_wanted).abs() < 1e-12);
    let mass = got.attended.iter().map(|step| step.mass.unwrap()).fold(1.0, f64::min);
    assert!((0.0..1.0).contains(&mass), "{mass}");
    assert_ne!(got.bits(), dense().bits());
    assert_snapshot!(drawn(&got), @"
    1: .#..#..#.........#.....#.# ..#.#....#...#...#.......#
    2: #.......#..#..#........#.# .#.#........##.......#...#
    ");
}

#[test]
fn prefills_keep_their_own_chunk() {
    let got = run(&sparse("streaming:sink=1,recent=2,block_size=16", SelectionPlace::Host));
    // Chunks from 0, 128, 256, 384; the first has no history, so it is whole.
    let total = |step: &Attended| [step.total().blocks, step.total().visible];
    let blocks: Vec<[u64; 2]> = got.attended[..4].iter().map(total).collect();
    assert_eq!(blocks, [[48, 48], [66, 96], [66, 144], [24, 150]]);
    assert_snapshot!(drawn(&got), @"
    0: #.......................##
    1: #.......................##
    2: #.......................##
    ");
}

#[test]
fn a_mass_is_certified() {
    for place in [SelectionPlace::Host, SelectionPlace::Device] {
        let got = run(&sparse("quest:mass=0.9,dense_layers=0,block_size=16", place));
        for step in &got.attended {
            assert!(step.mass.unwrap() >= 0.9, "{place:?}: {:?}", step.mass);
        }
        assert!(density(&got.attended) <= 1.0, "{place:?}");
    }
}

#[test]
fn company_and_preemption_do_not_change_what_is_selected() {
    let options = sparse("quest:page_budget=6,block_size=16", SelectionPlace::Host);
    let ids = long_prompt();
    let one = Request { prefill: 388, ..Request::new(&ids, 4) };
    let other = Request { prefill: 300, ..Request::new(&ids[..350], 6) };
    let together = serve(&mut tiny().decoder(&options), &[other, one], 128);
    assert_same("beside another", &together[1], &run(&options));
}

/// Selections of every step and layer, a row a KV head.
pub(super) fn rows(served: &Served) -> Vec<Vec<Vec<kvblock::BlockIdx>>> {
    let heads = tiny().config.num_kv_heads as usize;
    let of_layer = |(_, selection): &(u32, sparse_select::Selection)| {
        (0..heads).map(|head| selection.row_shared(head, 0).to_vec()).collect()
    };
    served.attended.iter().flat_map(|step| step.selections.iter().map(of_layer)).collect()
}

const KVCOMP: &str = "block_size=16,topk_tokens=96,sink=1,recent=2,length_threshold=96";

#[test]
fn kernels_select_what_the_policies_own_code_selects() {
    let ucm = "min_topk=1,max_topk=100,seg_prefill_threshold=0";
    let specs = [
        "quest:page_budget=6,dense_layers=1,block_size=16".into(),
        "quest:mass=0.1,dense_layers=1,block_size=8".into(),
        "gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16".into(),
        "gsa:scoring=mean_k,layer_ratios=1:0.5:0.2,block_size=16".into(),
        "esa:sparse_ratio=0.3,block_size=16".into(),
        "kvstar:init_window_sz=2,local_window_sz=3,sparse_ratio=0.2,block_size=32".into(),
        format!("gsa-ucm:sparse_ratio=0.2,block_size=32,init_window_sz=0,retrieval_stride=4,{ucm}"),
        format!("kvcomp:hash_bits=64,parts=8:8,seed=3,must_select=2:-3,{KVCOMP}"),
        format!("kvcomp:layer_ratios=1:0.3:0.5,{KVCOMP}"),
        "nsa:kernel_size=8,kernel_stride=4,block_size=16,topk=6,window_size=70".into(),
        "nsa:kernel_size=24,kernel_stride=8,block_size=8,topk=12,init_blocks=2,local_blocks=3,window_size=9"
            .into(),
        // The same policies with other numbers.
        "quest:page_budget=20,dense_layers=0,block_size=8".into(),
        "quest:mass=0.001,dense_layers=0,block_size=16".into(),
        "esa:sparse_ratio=0.3,block_size=16,retrieval_stride=1".into(),
        format!("gsa-ucm:sparse_ratio=0.6,block_size=16,{ucm}"),
        format!("kvcomp:hash_bits=128,{KVCOMP}"),
        "nsa:kernel_size=8,kernel_stride=4,block_size=16,topk=6,window_size=0".into(),
        "nsa:kernel_size=16,kernel_stride=16,block_size=32,topk=5,init_blocks=0,window_size=0".into(),
    ];
    for spec in usual(8, &specs) {
        let (host, device) =
            (run(&sparse(spec, SelectionPlace::Host)), run(&sparse(spec, SelectionPlace::Device)));
        assert!(density(&host.attended) < 1.0, "{spec}");
        assert_eq!(density(&device.attended), density(&host.attended), "{spec}");
        assert_eq!(
            tiny().decoder(&sparse(spec, SelectionPlace::Device)).selects_on(),
            Some(SelectionPlace::Device),
            "{spec}"
        );
        assert_eq!(rows(&device), rows(&host), "{spec}");
        for (device, host) in device.attended.iter().zip(&host.attended) {
            // The kernel gives a little away for its rounding.
            let bounds = device.mass.zip(host.mass);
            assert_eq!(
                (device.mass.is_some(), host.mass.is_some()),
                (spec.starts_with("quest"), spec.starts_with("quest"))
            );
            let close = bounds.is_none_or(|(d, h)| d <= h && d >= h * 0.99 - 1e-7);
            assert!(close, "{spec}: {bounds:?}");
        }
        assert_same(spec, &device, &host);
    }
}

/// Layers that skip selection attend to what the nearest layer before them chose, here as there.
#[test]
fn layers_reuse_the_selection_before_them() {
    let selections = |spec: &str, place| run(&sparse(spec, place)).attended.pop().unwrap().selections;
    for place in [SelectionPlace::Host, SelectionPlace::Device] {
        let own = selections(&format!("kvcomp:{KVCOMP}"), place);
        let reused = selections(&format!("kvcomp:{KVCOMP},skip_layers=0:2"), place);
        // Nothing is before layer 0, so it selects.
        assert_eq!(own[0], reused[0], "{place:?}");
        assert_eq!(reused[2].1, reused[1].1, "{place:?}");
        assert_ne!(own[2].1, own[1].1, "{place:?}");
        // A dense layer has no selection to hand on.
        let over_dense = selections(&format!("kvcomp:{KVCOMP},rollback_layers=1,skip_layers=2"), place);
        assert_eq!(over_dense.len(), 2, "{place:?}");
        assert_eq!(over_dense[1].1, over_dense[0].1, "{place:?}");
    }
    let spec = format!("kvcomp:{KVCOMP},skip_layers=1");
    assert_same(
        &spec,
        &run(&sparse(&spec, SelectionPlace::Device)),
        &run(&sparse(&spec, SelectionPlace::Host)),
    );
}

/// Codes of 8 bits are digested, mirrored and attended as what they stand for; beside them and f16 digests are in f16, and both
/// sides round them alike. By default each policy has one of the types, with `PAGODA_LONG_TESTS=1` all.
#[test]
fn caches_of_halves_and_codes_are_selected_from_alike() {
    let mut dtypes = [KvDtype::F16, KvDtype::Fp8, KvDtype::Int8];
    let specs = [
        "quest:page_budget=6,dense_layers=1,block_size=16",
        "kvcomp:block_size=16,topk_tokens=96,sink=1,recent=2,length_threshold=96",
        "nsa:kernel_size=8,kernel_stride=4,block_size=16,topk=6,window_size=33",
        "xattn:block_size=16,stride=4,threshold=0.5",
        "flashprefill:block_size=16,alpha=0.7,sink_blocks=1,recent_blocks=2",
        "gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16",
        "quest:mass=0.01,dense_layers=0,block_size=8",
    ];
    for &spec in usual(5, &specs) {
        dtypes.rotate_left(1);
        for &kv_dtype in usual(1, &dtypes) {
            let options = |place| sparse(spec, place).kv_dtype(kv_dtype);
            assert_eq!(
                tiny().decoder(&options(SelectionPlace::Device)).selects_on(),
                Some(SelectionPlace::Device),
                "{spec}"
            );
            let of = |place| run(&options(place));
            let (host, device) = (of(SelectionPlace::Host), of(SelectionPlace::Device));
            assert!(density(&host.attended) < 1.0, "{spec}");
            assert_eq!(rows(&device), rows(&host), "{kv_dtype:?}, {spec}");
            assert_same(&format!("{kv_dtype:?}, {spec}"), &device, &host);
        }
    }
}

#[test]
fn kernels_estimate_what_the_policies_own_code_estimates() {
    let ids = long_prompt();
    let serve_two = |spec: &str, place| {
        // Two chunks in a step, of other lengths and places in their blocks.
        let one = Request { prefill: 388, ..Request::new(&ids, 2) };
        let other = Request { prefill: 351, ..Request::new(&ids[7..362], 2) };
        serve(&mut tiny().decoder(&sparse(spec, place)), &[one, other], 200)
    };
    let specs = [
        "xattn:block_size=16,stride=4,threshold=0.5",
        "xattn:block_size=32,stride=8,threshold=0.4:0.6:0.8:0.9,norm=2",
        "xattn-bsa:block_size=16,stride=1,threshold=0.05,vote=any",
        "xattn-bsa:block_size=16,stride=1,threshold=0.9,vote=all",
        "xattn-bsa:block_size=16,stride=4,threshold=0.4,chunk_size=16",
        "flashprefill:block_size=16,alpha=0.8,sink_blocks=1,recent_blocks=1",
        "flashprefill:block_size=128,alpha=1,sink_blocks=0,recent_blocks=0",
        // The same policies with other numbers.
        "xattn:block_size=64,stride=2,threshold=0.7,dense_layers=1",
        "xattn-bsa:block_size=16,stride=1,threshold=0.4,vote=majority",
        "flashprefill:block_size=32,alpha=0.95,sink_blocks=0,recent_blocks=2,dense_layers=1",
    ];
    for spec in usual(5, &specs) {
        let (device, host) = (serve_two(spec, SelectionPlace::Device), serve_two(spec, SelectionPlace::Host));
        for (device, host) in device.iter().zip(&host) {
            assert!(density(&host.attended) < 1.0, "{spec}");
            assert!(host.attended.iter().any(|step| !step.selections.is_empty()), "{spec}");
            assert_eq!(device.attended, host.attended, "{spec}");
            assert_same(spec, device, host);
        }
    }
}

/// Chunks of one request beside decode rows of another: either phase has the selection of its own policy, wherever that is made.
#[test]
fn two_policies_share_the_phases() {
    let ids = long_prompt();
    let serve_two = |spec: &str, place| {
        // Five decode rows of the first run beside chunks of the second.
        let one = Request { prefill: 100, ..Request::new(&ids[..112], 8) };
        let other = Request { prefill: 388, ..Request::new(&ids, 6) };
        serve(&mut tiny().decoder(&sparse(spec, place)), &[one, other], 90)
    };
    for (prefill, decode) in [
        ("streaming:sink=1,recent=2,block_size=16", "quest:page_budget=4,dense_layers=0,block_size=16"),
        ("gsa:block_size=16", "gsa:scoring=mean_k,sparse_ratio=0.3,min_blocks=1,block_size=16"),
        (
            "flashprefill:block_size=16,alpha=0.8,sink_blocks=1,recent_blocks=1",
            "quest:page_budget=4,dense_layers=1,block_size=16",
        ),
        ("xattn:block_size=16,stride=4,threshold=0.5", "streaming:sink=1,recent=2,block_size=16"),
        (
            "xattn-bsa:block_size=16,stride=1,threshold=0.4,vote=majority",
            "esa:sparse_ratio=0.3,block_size=16",
        ),
    ] {
        let spec = format!("{prefill}+{decode}");
        let (device, host) =
            (serve_two(&spec, SelectionPlace::Device), serve_two(&spec, SelectionPlace::Host));
        for (device, host) in device.iter().zip(&host) {
            assert_eq!(device.attended.len(), host.attended.len(), "{spec}");
            for (device, host) in device.attended.iter().zip(&host.attended) {
                assert_eq!(device.layers, host.layers, "{spec}");
                let heads = tiny().config.num_kv_heads as usize;
                let all = |attended: &Attended| -> Vec<Vec<kvblock::BlockIdx>> {
                    let of = |(_, s): &(u32, sparse_select::Selection)| -> Vec<Vec<kvblock::BlockIdx>> {
                        let rows = 0..s.query_blocks() * heads;
                        rows.map(|i| s.row_shared(i % heads, i / heads).to_vec()).collect()
                    };
                    attended.selections.iter().flat_map(of).collect()
                };
                assert_eq!(all(device), all(host), "{spec}");
            }
            assert_same(&spec, device, host);
        }
        // A first chunk sees the same keys whatever decodes, and rows of decode select whatever the prompt selected.
        let alone = serve_two(prefill, SelectionPlace::Host);
        let chunks =
            |served: &Served| served.attended[..2].iter().map(|step| step.total()).collect::<Vec<_>>();
        if !decode.contains("dense_layers=1") {
            assert_eq!(chunks(&device[1]), chunks(&alone[1]), "{spec}");
        }
        assert!(density(&device[0].attended[4..]) < 1.0 && density(&device[1].attended) < 1.0, "{spec}");
    }
}

/// A policy without kernels goes through its own code, which reads back, and says so.
#[test]
fn policies_without_kernels_select_on_the_host() {
    for spec in [
        "quest:variant=offload,block_size=16",
        "kvcomp:hash_bits=48,block_size=16,topk_tokens=96,recent=2,length_threshold=96",
        "nsa:kernel_size=4,kernel_stride=2,block_size=16,topk=6,window_size=0",
        "xattn:block_size=16,stride=8",
    ] {
        let on = |place| tiny().decoder(&sparse(spec, place)).selects_on();
        assert_eq!(
            [SelectionPlace::Device, SelectionPlace::Host].map(on),
            [Some(SelectionPlace::Host); 2],
            "{spec}"
        );
    }
    let by_position =
        tiny().decoder(&sparse("streaming:sink=1,recent=2,block_size=16", SelectionPlace::Device));
    assert_eq!(by_position.selects_on(), Some(SelectionPlace::Device));
}

#[test]
fn what_selections_are_worth_is_measured() {
    let measured = |spec: &str| {
        let mut options = sparse(spec, SelectionPlace::Device);
        options.sparse.as_mut().unwrap().measure = true;
        let mut all = Attended::default();
        run(&options).attended.iter().for_each(|step| all.add(step));
        all
    };
    let all = measured("gsa:sparse_ratio=1,min_blocks=1,block_size=16");
    assert!((all.recall.value().unwrap() - 1.0).abs() < 1e-9);
    // The same blocks whether or not they are measured, and more of them hold more mass.
    let recalls: Vec<f64> = [4, 8, 16]
        .map(|budget| {
            let spec = format!("quest:page_budget={budget},dense_layers=0,block_size=16");
            let measured = measured(&spec);
            assert_eq!(measured.density(), density(&run(&sparse(&spec, SelectionPlace::Device)).attended));
            measured.recall.value().unwrap()
        })
        .to_vec();
    assert!(recalls.is_sorted() && recalls[0] > 0.0 && recalls[2] < 1.0, "{recalls:?}");
    // Query heads keep fewer blocks than their KV heads, which keep what any of them does.
    let xattn = measured("xattn:block_size=16,stride=4,threshold=0.6");
    assert!(xattn.head_density.value().unwrap() < xattn.density());
    assert!(xattn.recall.value().unwrap() > 0.5);
}

/// The layers of full attention: two of gpt-oss, with sinks, and one of Llama 4, without rotation.
const MIXED: [(&str, &[u32]); 2] = [("tiny-gpt-oss", &[1, 3]), ("tiny-llama4", &[3])];

#[test]
fn layers_of_full_attention_select_beside_windows_chunks_and_sinks() {
    for (name, full) in MIXED {
        let tiny = family(name);
        let dense = run_with(tiny, &sparse("full", SelectionPlace::Host).sparse(None));
        let all = "gsa:scoring=mean_k,sparse_ratio=1,min_blocks=1,block_size=16";
        let some = "quest:page_budget=6,dense_layers=0,block_size=16";
        for place in [SelectionPlace::Host, SelectionPlace::Device] {
            assert_same(name, &run_with(tiny, &sparse(all, place)), &dense);
            let got = run_with(tiny, &sparse(some, place));
            assert_ne!(got.bits(), dense.bits(), "{name} {place:?}");
            let last = got.attended.last().unwrap();
            let layers: Vec<u32> = last.selections.iter().map(|(layer, _)| *layer).collect();
            assert_eq!(layers, full, "{name} {place:?}");
            // 6 of 26 blocks in every layer that selects, for each of two KV heads.
            let blocks = 2 * full.len() as u64;
            let total = last.total();
            assert_eq!([total.blocks, total.visible], [6 * blocks, 26 * blocks], "{name} {place:?}");
        }
        let [host, device] =
            [SelectionPlace::Host, SelectionPlace::Device].map(|place| run_with(tiny, &sparse(some, place)));
        assert_same(name, &device, &host);
        let window =
            run_with(tiny, &sparse("streaming:sink=1,recent=2,block_size=16", SelectionPlace::Device));
        assert_ne!(window.bits(), dense.bits(), "{name}");
    }
}

#[test]
fn models_without_full_attention_refuse_policies() {
    let options = sparse("quest:page_budget=6,block_size=16", SelectionPlace::Device);
    let refused = |name| family(name).try_decoder(&options).unwrap_err();
    assert_snapshot!(refused("tiny-mistral"), @"a sparse policy needs layers of full attention to keys and values; the model has windows or chunks alone");
    assert_snapshot!(refused("tiny-deepseek-v32"), @"a sparse policy needs layers of full attention to keys and values; the model has latents with an indexer");
    assert_snapshot!(refused("tiny-nsa"), @"a sparse policy needs a choice that is left to a policy: the model selects its blocks itself; the model has native sparse attention (NSA)");
}
