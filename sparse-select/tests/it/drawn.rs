//! Decisions of every policy on one pair of tensors, drawn: a change of any of them shows here.

use insta::assert_snapshot;
use sparse_select::{Input, Registry, Selection, Stage, build};

use crate::tensors::Tensor;

/// 24 blocks of `size` keys, of which the queries are drawn to blocks 5 and 17, and a little to 11.
fn keys(size: usize) -> Tensor {
    let mut k = Tensor::seeded(3, [2, 24 * size, 4], 24);
    for (block, pull) in [(5, 3.0), (11, 1.0), (17, 2.5)] {
        for head in 0..2 {
            for token in block * size..(block + 1) * size {
                k.set(head, token, 0, pull);
                k.set(head, token, 1, pull);
            }
        }
    }
    k
}

fn queries(count: usize) -> Tensor {
    let mut q = Tensor::seeded(4, [4, count, 4], 24);
    for head in 0..4 {
        for token in 0..count {
            q.set(head, token, 0, 1.5);
            q.set(head, token, 1, 1.0);
        }
    }
    q
}

/// A row a group; of several query blocks the last one.
fn drawn(spec: &str, input: &Input<'_>) -> String {
    let mut s = Selection::new();
    build(spec).unwrap().select_into(input, &mut s).unwrap();
    let rows = (0..s.groups()).map(|group| s.strip(group, s.query_blocks() - 1).to_string());
    format!("{spec:85} {}\n", rows.collect::<Vec<_>>().join(" "))
}

const DECODE: [&str; 17] = [
    "full:block_size=4",
    "streaming:block_size=4,sink=1,recent=3",
    "vertical-slash:block_size=4",
    "gsa:block_size=4,sparse_ratio=0.25",
    "gsa:block_size=4,sparse_ratio=0.25,scoring=mean_k",
    "gsa-ucm:block_size=128,min_topk=1,max_topk=6,seg_prefill_threshold=0",
    "esa:block_size=4,sparse_ratio=0.2",
    "kvstar:block_size=4,sparse_ratio=0.1",
    "kvcomp:block_size=4,topk_tokens=24,length_threshold=24,recent=1,must_select=0:-1",
    "xattn:block_size=4,stride=2",
    "quest:block_size=4,page_budget=4",
    "quest:block_size=4,mass=0.8",
    "quest:block_size=4,variant=offload,topk=5,sink_blocks=1,recent_blocks=1",
    "dsa:block_size=4,index_topk=8",
    "nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=5,window_size=0",
    "nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=5,window_size=13",
    "quest:block_size=4,page_budget=2,min_tokens=97",
];

const PREFILL: [&str; 8] = [
    "streaming:block_size=4,sink=1,recent=3",
    "vertical-slash:block_size=4",
    "vertical-slash:block_size=4,mode=minference,vertical_size=1,slash_size=1",
    "xattn:block_size=4,stride=2,threshold=0.6",
    "xattn:block_size=4,stride=2,threshold=0.6,causal=false",
    "xattn-bsa:block_size=4,stride=1,threshold=0.6",
    "flashprefill:block_size=4,sink_blocks=1,recent_blocks=2,alpha=0.2",
    "skip-softmax:block_size=4,scale=1",
];

#[test]
fn every_policy_is_drawn() {
    let (q, k) = (queries(1), keys(4));
    let large = keys(128);
    let decode = |spec: &&str| {
        // Bounds of gsa-ucm's budget are of blocks of 128.
        let k = if spec.contains("block_size=128") { &large } else { &k };
        drawn(spec, &Input::decode(q.view(), k.view()))
    };
    let lines: String = DECODE.iter().map(decode).collect();
    assert_snapshot!(lines, @"
    full:block_size=4                                                                     ########################
    streaming:block_size=4,sink=1,recent=3                                                #....................###
    vertical-slash:block_size=4                                                           #.....................##
    gsa:block_size=4,sparse_ratio=0.25                                                    #..................#####
    gsa:block_size=4,sparse_ratio=0.25,scoring=mean_k                                     #....#.....#.....#....##
    gsa-ucm:block_size=128,min_topk=1,max_topk=6,seg_prefill_threshold=0                  #....#.....#.....#....##
    esa:block_size=4,sparse_ratio=0.2                                                     #....#.....#.....#..#.##
    kvstar:block_size=4,sparse_ratio=0.1                                                  #....#...........#....##
    kvcomp:block_size=4,topk_tokens=24,length_threshold=24,recent=1,must_select=0:-1      #....#.....#.#...#.....#
    xattn:block_size=4,stride=2                                                           ########################
    quest:block_size=4,page_budget=4                                                      .....#.....#.....#.....# .....#.....#.....#.....#
    quest:block_size=4,mass=0.8                                                           ####.##....#..#..#..#..# ...#.#....##.##..##.#..#
    quest:block_size=4,variant=offload,topk=5,sink_blocks=1,recent_blocks=1               #....#.....#.....#.....#
    dsa:block_size=4,index_topk=8                                                         .....#...........#......
    nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=5,window_size=0                   #....#...........#....## #....#...........#....##
    nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=5,window_size=13                  #....#...........#..#### #....#...........#..####
    quest:block_size=4,page_budget=2,min_tokens=97                                        ########################
    ");
    let chunk = queries(128);
    let prefill = |spec: &&str| {
        // xattn-bsa looks at a history without the chunk, the others at one that ends with it.
        let count = if spec.starts_with("xattn-bsa") { 128 } else { 16 };
        let input = Input::prefill(chunk.view().window(0, count), k.view(), 20);
        drawn(spec, &Input { stage: Stage::Prefill { chunk_idx: 20 }, ..input })
    };
    let lines: String = PREFILL.iter().map(prefill).collect();
    assert_snapshot!(lines, @"
    streaming:block_size=4,sink=1,recent=3                                                #....................###
    vertical-slash:block_size=4                                                           #.................##....
    vertical-slash:block_size=4,mode=minference,vertical_size=1,slash_size=1              ########..############## ########..##############
    xattn:block_size=4,stride=2,threshold=0.6                                             #....#...........#.....# #....#...........#.....#
    xattn:block_size=4,stride=2,threshold=0.6,causal=false                                #....#...........#...... #....#...........#......
    xattn-bsa:block_size=4,stride=1,threshold=0.6                                         #....#...........#.....#
    flashprefill:block_size=4,sink_blocks=1,recent_blocks=2,alpha=0.2                     #....#...........#....## #....#...........#....##
    skip-softmax:block_size=4,scale=1                                                     ######################## ########################
    ");
    for entry in Registry::builtin().entries() {
        let named = |specs: &[&str]| specs.iter().any(|spec| spec.split(':').next() == Some(entry.name));
        assert!(named(&DECODE) || named(&PREFILL), "{} is not drawn", entry.name);
    }
}
