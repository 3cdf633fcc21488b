//! Cases of the kernels that work on lists of blocks: `keep_lists`, `list_counts`, `vote_blocks`.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

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

/// Makes lists of random blocks below `blocks`, as many as fit between two lists; their share differs between lists.
fn lists(spec: &Spec, lists: u32, blocks: u32, stride: u32) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(spec.seed(1));
    let mut words = vec![UNUSED; (lists * stride) as usize];
    for list in words.chunks_mut(stride as usize) {
        let share = rng.random_range(0.0..=1.0);
        let kept = (0..blocks).filter(|_| rng.random_bool(share));
        let kept: Vec<u32> = kept.take(stride as usize - 1).collect();
        list[0] = count(&kept);
        list[1..=kept.len()].copy_from_slice(&kept);
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
    let (least, most) = spec.one_of((2100, 2100), &[(0, 40), (2000, 2100), (0, 4500)]);
    let (voters, blocks) = (spec.number(9, 1..=40), spec.number(2100, least..=most));
    let in_stride = blocks + spec.number(10, 1..=20);
    let end = blocks + spec.number(7, 0..=20);
    let params = VoteBlocksParams {
        voters,
        in_stride,
        votes: spec.number(5, 1..=voters),
        blocks,
        end,
        copies: spec.number(2, 1..=4),
        out_stride: end + spec.number(13, 1..=13),
        first_list: 1,
    };
    let lists = lists(spec, voters, blocks, in_stride);
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
    let (sets, copies) = (spec.kv_heads(2, 1..=4), spec.number(3, 1..=4));
    // Blocks that rows had when their lists were made.
    let had = spec.named(|_| 120, 190, 1..=190);
    // Lists that are made, kept, kept with blocks begun since, of no slot, and too long for their room.
    let usual = [(0, 1), (0, 0), (3, 0), (0, 1), (210, 0)];
    let asked =
        spec.list(&usual, 12, |spec| spec.one_of((0, 1), &[(0, 1), (spec.number(3, 0..=9), 0), (210, 0)]));
    let slots = count(&asked) + 3;
    let usual = [Some(2), Some(0), Some(3), None, Some(1)];
    let slot_of = spec.slots(count(&asked), slots, |row| usual.get(row as usize).copied().flatten());
    let row = |(slot, (begun, made)): (i32, (u32, u32))| {
        let slot = if slot < 0 { KeptRow::NONE } else { slot.cast_unsigned() };
        KeptRow { slot, then: had, blocks: had + begun, made }
    };
    let rows: Vec<KeptRow> = slot_of.into_iter().zip(asked).map(row).collect();
    let [list_stride, kept_stride] = [140, 130].map(|usual| spec.named(|_| usual, usual, 2..=200));
    let params = KeepListsParams { rows: count(&rows), sets, copies, list_stride, kept_stride };
    let case = |what, kept: Vec<u32>, made: Vec<u32>| {
        let (mut kept_after, mut after) = (kept.clone(), made.clone());
        cpu::keep_lists::keep_lists(&params, &rows, &mut kept_after, &mut after);
        Case::new(what, variant, &params).binding(&rows).words(&kept, &kept_after).words(&made, &after)
    };
    let (kept, made) = (slots * sets, params.rows * sets * copies);
    let [kept_lists, made_lists] = [(kept, params.kept_stride), (made, params.list_stride)]
        .map(|(of, stride)| lists(spec, of, had, stride));
    let of_blocks = case("lists", kept_lists, made_lists);
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
    let (voters, blocks) = (spec.number(150, 1..=300), spec.number(37, 0..=500));
    let stride = blocks + spec.number(3, 1..=5);
    let spans = spec.list(&[[3, 1], [0, voters], [10, 0], [7, 66]], 4, |spec| {
        let first = spec.number(0, 0..=voters);
        [first, spec.number(0, 0..=voters - first)]
    });
    let params = ListCountsParams { list_stride: stride, first: 2, spans: count(&spans) };
    let lists = lists(spec, voters, blocks, stride);
    let before = vec![UNUSED; 7];
    let mut after = before.clone();
    after[2..2 + spans.len()].copy_from_slice(&cpu::list_counts::list_counts(&lists, stride, &spans));
    let case =
        Case::new("runs of lists", variant, &params).binding(&lists).binding(&spans).words(&before, &after);
    vec![case]
}
