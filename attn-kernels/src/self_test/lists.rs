//! Cases of the kernels that work on lists of blocks: `keep_lists`, `list_counts`, `vote_blocks`.

use super::hostile::{self, Indices, Order};
use super::options::Lists;
use super::spec::Size;
use super::{Case, Spec, count};
use crate::kernel::keep_lists::KeepListsParams;
use crate::kernel::list_counts::ListCountsParams;
use crate::kernel::vote_blocks::VoteBlocksParams;
use crate::rows::KeptRow;
use crate::{Variant, cpu};

/// Contents of entries that no list covers.
const UNUSED: u32 = 77_777;

/// Makes lists of every n-th block below `blocks`; n differs between lists.
fn lists(voters: u32, blocks: u32, stride: u32) -> Vec<u32> {
    let mut words = Vec::new();
    for voter in 0..voters {
        let list: Vec<u32> = (voter % 3..blocks).step_by(2 + voter as usize % 4).collect();
        words.push(count(&list));
        words.extend(list);
        words.resize(((voter + 1) * stride) as usize, UNUSED);
    }
    words
}

/// Makes a list for each row of a timed case.
fn shares(size: &Size) -> Lists {
    let lens = std::iter::repeat_n(size.context, size.rows as usize);
    Lists::share(lens, size.select_block, size.density)
}

pub(crate) fn vote_blocks(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        let (voters, blocks, lists) = (size.rows, size.context.div_ceil(size.select_block), shares(size));
        let params = VoteBlocksParams {
            voters,
            in_stride: lists.stride,
            votes: voters / 2 + 1,
            blocks,
            end: blocks,
            copies: 1,
            out_stride: 1 + blocks,
            first_list: 0,
        };
        let case = Case::new("a majority", variant, &params).binding(&lists.lists);
        return vec![case.floats_of(1 + blocks).costs(4.0 * lists.lists.len() as f64, 0.0)];
    }
    // Blocks beyond one tile of counters, and a chunk behind them.
    let (voters, blocks) = (spec.number(9, 1..=40), spec.number(2100, 1..=4500));
    let in_stride = blocks + spec.number(10, 1..=20);
    let params = VoteBlocksParams {
        voters,
        in_stride,
        votes: spec.number(5, 1..=voters),
        blocks,
        end: blocks + spec.number(7, 0..=7),
        copies: spec.number(2, 1..=4),
        out_stride: blocks + spec.number(20, 8..=20),
        first_list: 1,
    };
    let lists = lists(voters, blocks, in_stride);
    let kept = cpu::vote_blocks::vote_blocks(&params, &lists);
    let mut before = vec![UNUSED; ((1 + params.copies) * params.out_stride) as usize];
    // The list that is left alone.
    before[0] = 0;
    let mut after = before.clone();
    for list in after.chunks_mut(params.out_stride as usize).skip(1) {
        list[0] = count(&kept);
        list[1..=kept.len()].copy_from_slice(&kept);
    }
    let case = Case::new("a majority behind one tile", variant, &params)
        .costs(4.0 * lists.len() as f64, 0.0)
        .binding(&lists)
        .words(&before, &after);
    // Lists of anything, whose own kernels would not make them.
    let stride = params.out_stride as usize;
    let limits = vec![params.end; 1 + params.copies as usize];
    let lists = Indices { order: Order::List, stride, limits, none: None };
    let mut cases = vec![case];
    cases.extend(hostile::cases(&cases[0], &[0], &[(1, lists)]));
    cases
}

pub(crate) fn keep_lists(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (sets, copies, slots) =
        (spec.kv_heads(2, 1..=4), spec.number(3, 1..=4), spec.named(|size| size.batch, 4, 4..=4));
    // Blocks that rows had when their lists were made.
    let had = spec.named(|_| 120, 190, 1..=190);
    let row = |slot, then, blocks, made| KeptRow { slot, then, blocks, made };
    // Lists that are made, kept, kept with blocks begun since, of no slot, and too long for their room.
    let rows = [
        row(2, had, had, 1),
        row(0, had, had, 0),
        row(3, had, had + spec.number(3, 1..=9), 0),
        row(KeptRow::NONE, had, had, 1),
        row(1, had, had + spec.number(210, 0..=300), 0),
    ];
    let params = KeepListsParams { rows: count(&rows), sets, copies, list_stride: 140, kept_stride: 130 };
    let words: Vec<[u32; 4]> = rows.map(|row| [row.slot, row.then, row.blocks, row.made]).to_vec();
    let case = |what, kept: Vec<u32>, made: Vec<u32>| {
        let (mut kept_after, mut after) = (kept.clone(), made.clone());
        cpu::keep_lists::keep_lists(&params, &rows, &mut kept_after, &mut after);
        Case::new(what, variant, &params).binding(&words).words(&kept, &kept_after).words(&made, &after)
    };
    let (kept, made) = (slots * sets, params.rows * sets * copies);
    let of_blocks = case("lists", lists(kept, 190, params.kept_stride), lists(made, 190, params.list_stride));
    // Counts of anything, which no kernel makes.
    let any = |lists: u32, stride: u32| (0..lists * stride).map(hostile::mix).collect();
    vec![of_blocks, case("any words", any(kept, params.kept_stride), any(made, params.list_stride))]
}

pub(crate) fn list_counts(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        let lists = shares(size);
        let params = ListCountsParams { list_stride: lists.stride, first: 0, spans: 1 };
        let case = Case::new("one run", variant, &params).binding(&lists.lists);
        return vec![case.binding(&[[0, size.rows]]).floats_of(1).costs(4.0 * f64::from(size.rows), 0.0)];
    }
    let (voters, blocks) = (spec.number(150, 76..=300), spec.number(37, 1..=500));
    let stride = blocks + spec.number(3, 1..=5);
    let spans = [[3, 1], [0, voters], [10, 0], [7, 66]];
    let params = ListCountsParams { list_stride: stride, first: 2, spans: count(&spans) };
    let lists = lists(voters, blocks, stride);
    let before = vec![UNUSED; 7];
    let mut after = before.clone();
    after[2..6].copy_from_slice(&cpu::list_counts::list_counts(&lists, stride, &spans));
    let case =
        Case::new("runs of lists", variant, &params).binding(&lists).binding(&spans).words(&before, &after);
    vec![case]
}
