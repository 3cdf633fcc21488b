//! Choices of routers and indexers are handed back, and rounded keys and values change few of them.

use attn_kernels::kernel::KvDtype;

use super::options;
use super::served::{Request, serve};
use super::tiny::{Tiny, family};
use crate::usual;

/// Returns the choices of each row of the longest prompt, by layer.
fn chosen(tiny: &Tiny, kv_dtype: KvDtype) -> Vec<Vec<(usize, Vec<u32>)>> {
    let mut decoder = tiny.decoder(&options(kv_dtype));
    decoder.trace_choices(true).unwrap();
    serve(&mut decoder, &[Request::new(&tiny.prompts[3].ids, 0)], 64).remove(0).choices
}

/// Rows whose choice differs in any layer.
fn changed(tiny: &Tiny) -> usize {
    let [exact, rounded] = [KvDtype::F32, KvDtype::F16].map(|kv_dtype| chosen(tiny, kv_dtype));
    assert_eq!(exact.len(), tiny.prompts[3].ids.len());
    exact.iter().zip(&rounded).filter(|(exact, rounded)| exact != rounded).count()
}

#[test]
fn every_layer_of_experts_chooses_as_many_as_it_takes() {
    let models = [("tiny-qwen3-moe", &[0, 2][..]), ("tiny-llama4", &[1, 3]), ("tiny-gpt-oss", &[0, 1, 2, 3])];
    for &(name, layers) in usual(2, &models) {
        let tiny = family(name);
        let moe = tiny.config.moe.unwrap();
        for row in chosen(tiny, KvDtype::F32) {
            assert_eq!(row.iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), layers, "{name}");
            for (_, experts) in row {
                assert!(experts.is_sorted_by(|a, b| a < b), "{name}: {experts:?}");
                assert_eq!(experts.len(), moe.top_k as usize, "{name}");
                assert!(experts.iter().all(|expert| *expert < moe.num_experts), "{name}: {experts:?}");
            }
        }
        assert!(decoder_says_nothing_unasked(tiny), "{name}");
    }
}

fn decoder_says_nothing_unasked(tiny: &Tiny) -> bool {
    let request = Request::new(&tiny.prompts[1].ids, 0);
    let served = serve(&mut tiny.decoder(&options(KvDtype::F32)), &[request], 64);
    served[0].choices.iter().all(Vec::is_empty)
}

#[test]
fn an_indexer_chooses_tokens_that_came_before() {
    let tiny = family("tiny-deepseek-v32");
    let top_k = tiny.config.indexer.unwrap().top_k as usize;
    for (position, row) in chosen(tiny, KvDtype::F32).iter().enumerate() {
        let lists: Vec<&Vec<u32>> =
            row.iter().filter(|(_, list)| list.len() > 2).map(|(_, list)| list).collect();
        assert_eq!(lists.len(), if position < 2 { 0 } else { 3 }, "position {position}");
        for list in lists {
            assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
            assert_eq!(list.len(), top_k.min(position + 1), "position {position}");
            assert!(list.iter().all(|token| *token as usize <= position), "position {position}: {list:?}");
        }
    }
}

#[test]
fn an_indexer_over_entries_chooses_those_that_are_complete() {
    let tiny = family("tiny-deepseek-v4");
    let top_k = tiny.config.indexer.unwrap().top_k;
    let mut lists = 0;
    for (position, row) in chosen(tiny, KvDtype::F32).iter().enumerate() {
        // Experts are few; a list of entries is of a layer that comes twice.
        for pair in row.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let (list, seen) = (&pair[0].1, u32::try_from((position + 1) / 4).unwrap());
            assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
            assert_eq!(list.len(), top_k.min(seen) as usize, "position {position}");
            assert!(list.iter().all(|entry| *entry < seen), "position {position}: {list:?}");
            lists += 1;
        }
    }
    assert!(lists > 100, "{lists} rows chose entries");
}

/// Holds for 200 rows. Random models stand at the edges of many choices; of 16 tokens out of 200 one is soon another.
#[test]
fn rounded_keys_and_values_change_few_choices() {
    let models = [
        ("tiny-gpt-oss", 10),
        ("tiny-deepseek-v32", 60),
        ("tiny-deepseek-v4", 60),
        ("tiny-qwen3-moe", 10),
        ("tiny-llama4", 10),
    ];
    for &(name, most) in usual(3, &models) {
        let changed = changed(family(name));
        eprintln!("{name}: {changed} of 200 rows chose others");
        assert!(changed <= most, "{name}: {changed} of 200 rows chose others");
    }
}

/// Blocks that two sequences together attended, step by step, are those that their rows chose, traced or not.
#[test]
fn indexers_report_as_sparse_policies_do() {
    for name in ["tiny-deepseek-v32", "tiny-deepseek-v4"] {
        let tiny = family(name);
        let requests = [3, 2].map(|prompt: usize| Request::new(&tiny.prompts[prompt].ids, 3));
        let run = |trace| {
            let mut decoder = tiny.decoder(&options(KvDtype::F32));
            decoder.trace_choices(true).unwrap();
            decoder.trace_selections(trace);
            serve(&mut decoder, &requests, 64)
        };
        for (silent, traced) in run(false).iter().zip(&run(true)) {
            assert_eq!(silent.drawn, traced.drawn, "{name}");
            let mut rows = traced.choices.iter();
            for (silent, traced) in silent.attended.iter().zip(&traced.attended) {
                assert!(silent.selections.is_empty() && silent.layers == traced.layers, "{name}: {silent:?}");
                let (_, first) = &traced.selections[0];
                let rows: Vec<_> = rows.by_ref().take(first.query_blocks()).collect();
                for (layer, selection) in &traced.selections {
                    let chose = |row: &&Vec<(usize, Vec<u32>)>| {
                        row.iter().find(|(of, _)| of == &(*layer as usize)).unwrap().1.clone()
                    };
                    let chosen = (0..rows.len())
                        .map(|query| selection.row(0, query).iter().map(|block| block.get()).collect());
                    assert_eq!(chosen.collect::<Vec<Vec<u32>>>(), rows.iter().map(chose).collect::<Vec<_>>());
                    let read = selection.indices().len() as u64;
                    assert_eq!(traced.layers[*layer as usize].blocks, read, "{name}, layer {layer}");
                }
            }
            assert_eq!(rows.next(), None, "{name}");
        }
    }
}
