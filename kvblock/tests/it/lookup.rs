//! Prefix hits against their definition, and as drawings.

use std::collections::HashSet;
use std::ops::Range;

use kvblock::{
    AttentionKind, BlockSize, ConfigError, ExtraKeys, GroupBlock, GroupId, HashChain, KvCache, KvCacheConfig,
    KvCacheGroup, KvCacheSpec, KvDtype, LengthLimits, PrefixHit, PrefixNeeds, SeqContent, SeqId, SlotRequest,
    TokenId,
};
use proptest::prelude::*;

type Groups = Vec<(AttentionKind, u32)>;

fn config(groups: &Groups, eagle: &[usize]) -> KvCacheConfig {
    let spec = |(kind, size)| KvCacheSpec::new(kind, BlockSize::new(size).unwrap(), 1, 4, KvDtype::F16);
    let limits = LengthLimits::new(256);
    let group = |(index, &group)| KvCacheGroup::new(spec(group), vec![index]).eagle(eagle.contains(&index));
    let groups_of = groups.iter().enumerate().map(group).collect();
    KvCacheConfig::uniform(512, spec(groups[0]), 1, limits).groups(groups_of)
}

/// A sequence of `len` tokens was served and ended; of its blocks, those that `keep` names are still cached.
fn cache_with(
    config: &KvCacheConfig,
    len: u32,
    keep: impl Fn(usize, usize) -> bool,
) -> (KvCache, HashChain, Vec<TokenId>) {
    let mut cache = KvCache::new(config).unwrap();
    let tokens: Vec<TokenId> = (0..len).collect();
    let mut chain = HashChain::new(cache.hasher(), ExtraKeys::default());
    chain.extend(&tokens);
    let content = SeqContent::new(&tokens, chain.hashes());
    cache.allocate_slots(SlotRequest::new(SeqId::new(0), content, 0, len)).unwrap();
    for group in 0..cache.num_groups() {
        let table = cache.table(SeqId::new(0), GroupId::new(u32::try_from(group).unwrap())).unwrap();
        let lost = table.blocks().iter().enumerate().filter(|&(index, _)| !keep(group, index));
        let lost: Vec<_> = lost.map(|(_, &block)| block).collect();
        cache.evict_blocks(&lost).unwrap();
    }
    cache.free(SeqId::new(0));
    (cache, chain, tokens)
}

/// Blocks that a sequence needs to go on behind `hit` tokens.
fn needed((kind, size): (AttentionKind, u32), hit: u32) -> Range<u32> {
    let first_token = match kind {
        AttentionKind::Full { .. } => 0,
        AttentionKind::SlidingWindow { window } => (hit + 1).saturating_sub(window),
        AttentionKind::ChunkedLocal { chunk } => hit / chunk * chunk,
    };
    first_token / size..hit / size
}

fn kind() -> impl Strategy<Value = AttentionKind> {
    prop_oneof![
        Just(AttentionKind::FULL),
        (2_u32..20).prop_map(|window| AttentionKind::SlidingWindow { window }),
        (1_u32..20).prop_map(|chunk| AttentionKind::ChunkedLocal { chunk }),
    ]
}

/// Full attention and windows of any block sizes.
fn window_groups(sizes: Vec<u32>) -> impl Strategy<Value = Groups> {
    let full = AttentionKind::FULL;
    let kind =
        move |window: Option<u32>| window.map_or(full, |window| AttentionKind::SlidingWindow { window });
    let group = (prop::option::of(2_u32..20).prop_map(kind), prop::sample::select(sizes));
    prop::collection::vec(group, 1..4)
}

/// Chunked local attention needs one block size for all groups.
fn groups() -> impl Strategy<Value = Groups> {
    let equal = (prop::collection::vec(kind(), 1..4), 1_u32..5)
        .prop_map(|(kinds, size)| kinds.into_iter().map(|kind| (kind, size)).collect::<Groups>());
    prop_oneof![equal, window_groups(vec![1, 2, 3, 4, 6])]
}

proptest! {
    /// A hit is the longest length, short of the last token, at which every group has every block it needs.
    #[test]
    fn the_hit_is_the_longest_possible(
        groups in groups(),
        len in 1_u32..60,
        lost in prop::collection::hash_set((0_usize..3, 0_usize..60), 0..12),
    ) {
        let kept = |group: usize, index: usize| !lost.contains(&(group, index));
        let config = config(&groups, &[]);
        let (cache, chain, tokens) = cache_with(&config, len, kept);
        let alignment = alignment(&groups);
        let possible = |hit: &u32| {
            let has = |(index, &group)| needed(group, *hit).all(|block| kept(index, block as usize));
            groups.iter().enumerate().all(has)
        };
        let expected = (0..len).rev().filter(|hit| hit % alignment == 0).find(possible).unwrap_or(0);
        let hit = cache.lookup(SeqContent::new(&tokens, chain.hashes()));
        prop_assert_eq!(hit.num_tokens, expected);
        for ((index, &group), blocks) in groups.iter().enumerate().zip(&hit.blocks) {
            prop_assert_eq!(blocks.len(), (expected / group.1) as usize);
            for block in needed(group, expected) {
                prop_assert!(!blocks[block as usize].is_null(), "group {} block {}", index, block);
            }
        }
    }
}

/// Groups of any kinds and block sizes, for a store that has no pool.
fn stored_groups() -> impl Strategy<Value = Groups> {
    prop::collection::vec((kind(), prop::sample::select(vec![1, 2, 3, 4, 6])), 1..4)
}

proptest! {
    /// A store extends a hit to the longest length at which it has what every group needs behind the hit.
    #[test]
    fn a_store_extends_a_hit_as_far_as_possible(
        groups in stored_groups(),
        start in 0_u32..4,
        most in 0_u32..80,
        lost in prop::collection::hash_set((0_usize..3, 0_u32..80), 0..12),
    ) {
        let alignment = alignment(&groups);
        let start = start * alignment;
        let behind = |(index, group): (usize, &(AttentionKind, u32)), hit| {
            let blocks = needed(*group, hit).filter(|block| block * group.1 >= start);
            blocks.map(|block| (index, block)).collect::<Vec<_>>()
        };
        let blocks = |hit| groups.iter().enumerate().flat_map(|group| behind(group, hit)).collect::<HashSet<_>>();
        let possible = |hit: &u32| blocks(*hit).is_disjoint(&lost);
        let hits = (start + 1..=most).rev().filter(|hit| hit.is_multiple_of(alignment));
        let expected = hits.clone().find(possible).unwrap_or(start);

        let needs = PrefixNeeds::new(&config(&groups, &[]).groups);
        let mut asked = HashSet::new();
        let held = |group: GroupId, blocks: Range<u32>| {
            asked.extend(blocks.clone().map(|block| (group.index(), block)));
            let run = blocks.take_while(|block| !lost.contains(&(group.index(), *block)));
            u32::try_from(run.count()).unwrap()
        };
        prop_assert_eq!(needs.longest(start, most, held), expected);
        prop_assert!(asked.iter().all(|(group, block)| (block + 1) * groups[*group].1 <= most));

        let pair = |block: GroupBlock| (block.group.index(), block.index);
        let beyond = needs.beyond(start, expected);
        prop_assert_eq!(beyond.iter().copied().map(pair).collect::<HashSet<_>>(), blocks(expected));
        let ends = beyond.iter().map(|block| (block.index + 1) * groups[block.group.index()].1);
        prop_assert!(ends.is_sorted());
        // What some prefix needs is saved, and nothing else unless blocks are of one size.
        let filled: HashSet<_> = needs.filled(start..most).map(pair).collect();
        let later = hits.chain(most + 1..most + 2 * alignment).filter(|hit| hit.is_multiple_of(alignment));
        let of_some: HashSet<_> = later.flat_map(blocks).collect();
        let full = |(group, block): &(usize, u32)| (block + 1) * groups[*group].1 <= most;
        let one_size = groups.iter().all(|group| group.1 == alignment);
        let all = (0..groups.len()).flat_map(|group| (start / groups[group].1..most).map(move |block| (group, block)));
        let expected: HashSet<_> = if one_size { all.collect() } else { of_some };
        prop_assert_eq!(filled, expected.into_iter().filter(full).collect::<HashSet<_>>());
    }
}

proptest! {
    /// A draft model only shortens hits, and what is left is complete.
    #[test]
    fn an_eagle_hit_is_complete_and_no_longer(
        groups in window_groups(vec![2, 4, 6]),
        eagle in prop::collection::vec(0_usize..3, 1..3),
        len in 1_u32..60,
        lost in prop::collection::hash_set((0_usize..3, 0_usize..30), 0..8),
    ) {
        let eagle: Vec<usize> = eagle.into_iter().map(|group| group % groups.len()).collect();
        let find = |eagle: &[usize]| {
            let kept = |group, index| !lost.contains(&(group, index));
            let (cache, chain, tokens) = cache_with(&config(&groups, eagle), len, kept);
            cache.lookup(SeqContent::new(&tokens, chain.hashes()))
        };
        let (plain, draft) = (find(&[]), find(&eagle));
        prop_assert!(draft.num_tokens <= plain.num_tokens);
        for (&group, blocks) in groups.iter().zip(&draft.blocks) {
            prop_assert_eq!(blocks.len(), (draft.num_tokens / group.1) as usize);
            prop_assert!(needed(group, draft.num_tokens).all(|block| !blocks[block as usize].is_null()));
        }
        // The draft model recomputes its last block: it never gets everything but the last token.
        let smallest = eagle.iter().map(|&group| groups[group].1).max().unwrap();
        prop_assert!(draft.num_tokens + smallest <= len.max(smallest));
    }
}

/// Hits are multiples of all block sizes.
fn alignment(groups: &Groups) -> u32 {
    groups.iter().map(|group| group.1).fold(1, |a, b| a / gcd(a, b) * b)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A row a group, a column a block: `#` hit, `.` not needed.
fn draw(hit: &PrefixHit) -> String {
    let row =
        |blocks: &Vec<kvblock::BlockId>| blocks.iter().map(|b| if b.is_null() { '.' } else { '#' }).collect();
    let rows: Vec<String> = hit.blocks.iter().map(row).collect();
    format!("{} tokens {}", hit.num_tokens, rows.join(" / "))
}

fn hit(groups: &Groups, eagle: &[usize], len: u32, lost: &[(usize, usize)]) -> String {
    let config = config(groups, eagle);
    let (cache, chain, tokens) = cache_with(&config, len, |group, index| !lost.contains(&(group, index)));
    draw(&cache.lookup(SeqContent::new(&tokens, chain.hashes())))
}

#[test]
fn full_attention_stops_at_the_first_miss() {
    let full = vec![(AttentionKind::FULL, 4)];
    insta::assert_snapshot!(hit(&full, &[], 33, &[]), @"32 tokens ########");
    // The last token is always computed, so the block that it completes cannot hit.
    insta::assert_snapshot!(hit(&full, &[], 32, &[]), @"28 tokens #######");
    insta::assert_snapshot!(hit(&full, &[], 33, &[(0, 3)]), @"12 tokens ###");
    insta::assert_snapshot!(hit(&full, &[0], 33, &[]), @"28 tokens #######");
}

#[test]
fn a_sliding_window_takes_the_rightmost_run() {
    let window = vec![(AttentionKind::SlidingWindow { window: 9 }, 4)];
    insta::assert_snapshot!(hit(&window, &[], 33, &[]), @"32 tokens ......##");
    insta::assert_snapshot!(hit(&window, &[], 33, &[(0, 6)]), @"24 tokens ....##");
    insta::assert_snapshot!(hit(&window, &[], 33, &[(0, 1), (0, 3), (0, 5), (0, 7)]), @"4 tokens #");
    insta::assert_snapshot!(hit(&window, &[0], 33, &[]), @"28 tokens .....##");
    insta::assert_snapshot!(hit(&window, &[0], 33, &[(0, 5)]), @"16 tokens ..##");
}

#[test]
fn chunked_attention_needs_its_chunk_only() {
    let chunked = vec![(AttentionKind::ChunkedLocal { chunk: 16 }, 4)];
    insta::assert_snapshot!(hit(&chunked, &[], 30, &[(0, 0), (0, 1)]), @"28 tokens ....###");
    insta::assert_snapshot!(hit(&chunked, &[], 30, &[(0, 5)]), @"20 tokens ....#");
    insta::assert_snapshot!(hit(&chunked, &[], 30, &[(0, 4)]), @"16 tokens ....");
}

#[test]
fn groups_agree() {
    let window = |window| AttentionKind::SlidingWindow { window };
    let hybrid = vec![(window(5), 4), (AttentionKind::FULL, 4), (window(9), 4)];
    insta::assert_snapshot!(hit(&hybrid, &[], 33, &[]), @"32 tokens .......# / ######## / ......##");
    insta::assert_snapshot!(hit(&hybrid, &[], 33, &[(1, 6)]), @"24 tokens .....# / ###### / ....##");
    insta::assert_snapshot!(hit(&hybrid, &[], 33, &[(0, 7), (2, 5)]), @"20 tokens ....# / ##### / ...##");
    let sizes = vec![(AttentionKind::FULL, 8), (window(5), 4)];
    insta::assert_snapshot!(hit(&sizes, &[], 33, &[(1, 7)]), @"24 tokens ### / .....#");
    insta::assert_snapshot!(hit(&sizes, &[0, 1], 33, &[]), @"24 tokens ### / .....#");
}

#[test]
fn a_draft_model_drops_its_block_at_every_new_length() {
    let window = |window| AttentionKind::SlidingWindow { window };
    let groups = vec![(AttentionKind::FULL, 4), (window(5), 4), (window(4), 4)];
    // The last group shrinks the hit to 5 blocks. Behind them the draft model's block 5 is missing, so it
    // gives up one more.
    insta::assert_snapshot!(hit(&groups, &[1], 33, &[(1, 5), (2, 6), (2, 5)]), @"16 tokens #### / ...# / ...#");
}

#[test]
fn a_cache_refuses_what_it_cannot_do() {
    let chunked = (AttentionKind::ChunkedLocal { chunk: 16 }, 4);
    let error = |groups: Groups, eagle: &[usize]| KvCache::new(&config(&groups, eagle)).unwrap_err();
    assert_eq!(error(vec![chunked], &[0]), ConfigError::ChunkedEagle { group: 0 });
    let huge = config(&vec![chunked], &[]).num_blocks(u32::MAX / 4 + 1);
    let expected = ConfigError::TooManySlots { num_blocks: huge.num_blocks, block_size: 4 };
    assert_eq!(KvCache::new(&huge).unwrap_err(), expected);
    let expected = ConfigError::ChunkedAlignment { group: 1, block_size: 4, alignment: 8 };
    assert_eq!(error(vec![(AttentionKind::FULL, 8), chunked], &[]), expected);
}
