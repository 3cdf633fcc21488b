//! `kv_tiers` and models with several cache groups: the same tokens with tiers and without, whatever is left of a prefix there.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvblock::{
    AttentionKind, BlockHasher, ExtraKeys, GroupBlock, GroupId, HashAlgorithm, HashChain, KvCacheGroup,
};
use pagoda::{Demand, Engine, EngineOptions, Finished, Model, Request};
use tempfile::TempDir;

use crate::{fixture, options, run};

/// Tokens of a prompt, of which 192 are whole blocks in all groups of the models here.
const LEN: usize = 200;
const WHOLE: u32 = 192;

struct Family {
    model: Arc<Model>,
    options: EngineOptions,
}

impl Family {
    /// A model whose pool of `blocks` blocks holds little more than one sequence.
    fn new(name: &str, block_size: u32, blocks: u32) -> Self {
        let demand = Demand::new(1, 256).longest(256);
        let options = options().reproducible(true).block_size(block_size).demand(demand);
        Self { model: Model::open(fixture(name)).unwrap().into(), options: options.kv_blocks(Some(blocks)) }
    }

    fn tiers(&self, spec: &str) -> EngineOptions {
        self.options.clone().kv_tiers(spec.parse().unwrap())
    }

    fn open(&self, options: &EngineOptions) -> Engine {
        Engine::open(Arc::clone(&self.model), options.clone()).unwrap()
    }

    /// The outputs without tiers, of one engine.
    fn alone<const N: usize>(&self, requests: [&Request; N]) -> [Vec<u32>; N] {
        let mut engine = self.open(&self.options);
        requests.map(|request| one(&mut engine, request).output)
    }

    /// The groups of KV caches of a model that gives blocks before its windows back.
    fn groups(&self) -> Vec<KvCacheGroup> {
        self.model.load(&self.options, 33).unwrap().plan().layout.groups.clone()
    }
}

fn one(engine: &mut Engine, request: &Request) -> Finished {
    run(engine, std::slice::from_ref(request)).remove(0)
}

/// Tokens that every vocabulary here has.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    crate::prompt(seed, len).into_iter().map(|token| token % 96).collect()
}

fn request(seed: u32, len: usize, max_tokens: u32) -> Request {
    Request::new(prompt(seed, len)).max_tokens(max_tokens).ignore_eos()
}

/// A prompt as the beginning of a longer one.
fn longer() -> Request {
    Request::new([prompt(1, LEN), prompt(7, 20)].concat()).max_tokens(6).ignore_eos()
}

/// A prefix comes back from the host once the device has evicted it, and from the disk after a restart. Returns what an engine
/// without tiers answers to the prompt, and to `more`.
#[track_caller]
fn comes_back(family: &Family, folder: &Path, num_groups: usize, more: &Request) -> [Vec<u32>; 2] {
    let [first, longer] = [request(1, LEN, 6), longer()];
    let [alone, alone_longer, alone_more] = family.alone([&first, &longer, more]);
    let options = family.tiers(&format!("host=4MiB,disk={}:16MiB", folder.display()));
    let mut engine = family.open(&options);
    assert_eq!(engine.scheduler().cache().num_groups(), num_groups);
    let found = one(&mut engine, &first);
    assert_eq!((&found.output, found.usage.cached.total()), (&alone, 0));
    for seed in 2..4 {
        assert_eq!(one(&mut engine, &request(seed, LEN, 6)).usage.cached.total(), 0);
    }
    let found = one(&mut engine, &longer);
    assert_eq!((found.usage.cached.host, found.usage.cached.total()), (WHOLE, WHOLE));
    assert_eq!(found.output, alone_longer);
    drop(engine);
    let found = one(&mut family.open(&options), &first);
    assert_eq!((found.usage.cached.disk, found.usage.cached.total()), (WHOLE, WHOLE));
    assert_eq!(found.output, alone);
    [alone, alone_more]
}

#[test]
fn prefixes_of_compressed_attention_come_back() {
    let folder = tempfile::tempdir().unwrap();
    comes_back(&Family::new("tiny-deepseek-v4", 8, 70), folder.path(), 4, &longer());
}

#[test]
fn prefixes_of_an_indexer_come_back() {
    let folder = tempfile::tempdir().unwrap();
    comes_back(&Family::new("tiny-deepseek-v32", 16, 17), folder.path(), 1, &longer());
}

#[test]
fn prefixes_of_latents_come_back() {
    let folder = tempfile::tempdir().unwrap();
    comes_back(&Family::new("tiny-deepseek-v3", 16, 17), folder.path(), 1, &longer());
}

/// Mean keys and values lie in blocks of their own.
#[test]
fn prefixes_of_native_sparse_attention_come_back() {
    let folder = tempfile::tempdir().unwrap();
    comes_back(&Family::new("tiny-nsa", 16, 17), folder.path(), 1, &longer());
}

#[test]
fn windows_alone_come_back() {
    let folder = tempfile::tempdir().unwrap();
    comes_back(&Family::new("tiny-mistral", 16, 10), folder.path(), 1, &longer());
}

/// Windows that are given back and windows that are kept, because the context goes on in memory of the host, read the same
/// objects.
#[track_caller]
fn shared_by_both(name: &str, blocks: u32, num_groups: usize) {
    let folder = tempfile::tempdir().unwrap();
    let family = Family::new(name, 16, blocks);
    let other = request(9, LEN, 6);
    let [alone_first, alone] = comes_back(&family, folder.path(), num_groups, &other);
    let options = family.tiers(&format!("host=4MiB,disk={}:16MiB", folder.path().display()));
    let larger = options.clone().kv_blocks(Some(40)).demand(Demand::new(1, 1000).longest(1000));
    let mut engine = family.open(&larger);
    assert_eq!(engine.scheduler().cache().num_groups(), 1);
    let found = one(&mut engine, &request(1, LEN, 6));
    assert_eq!((found.usage.cached.disk, found.output), (WHOLE, alone_first), "{name}");
    assert_eq!(one(&mut engine, &other).output, alone, "{name}");
    drop(engine);
    let found = one(&mut family.open(&options), &other);
    assert_eq!((found.usage.cached.disk, found.output), (WHOLE, alone), "{name}");
}

#[test]
fn windows_of_gpt_oss_come_back_and_go_on() {
    shared_by_both("tiny-gpt-oss", 23, 2);
}

#[test]
fn windows_of_gemma3_come_back_and_go_on() {
    shared_by_both("tiny-gemma3", 50, 7);
}

#[test]
fn chunks_of_llama4_come_back_and_go_on() {
    shared_by_both("tiny-llama4", 30, 4);
}

/// Blocks of a group that the token behind `hit` reaches.
fn needed(group: &KvCacheGroup, hit: u32) -> Range<u32> {
    let (kind, size) = (group.spec.kind, group.spec.block_size.get());
    let before = match kind {
        // States of DeepSeek V4: an entry of 8 tokens takes in 4 before the hit, one of 32 begins there.
        AttentionKind::SlidingWindow { window } if size < 8 => {
            if window == 8 {
                4
            } else {
                0
            }
        }
        AttentionKind::SlidingWindow { window } => window - 1,
        _ => hit,
    };
    hit.saturating_sub(before) / size..hit / size
}

/// The longest prefix that does not need a block of `group`, by trying all.
fn left(groups: &[KvCacheGroup], group: usize, bad: u32) -> u32 {
    let whole = |hit: &u32| groups.iter().all(|group| hit.is_multiple_of(group.spec.block_size.get()));
    (0..=WHOLE).rev().filter(whole).find(|hit| !needed(&groups[group], *hit).contains(&bad)).unwrap()
}

/// The file that has a block of a group, by the name that the format gives it.
fn object(folder: &TempDir, hasher: BlockHasher, group: &KvCacheGroup, block: GroupBlock) -> Option<PathBuf> {
    let GroupBlock { group: id, index } = block;
    let mut chain = HashChain::new(hasher, ExtraKeys::default());
    chain.extend(&prompt(1, LEN));
    let end = (index + 1) * group.spec.block_size.get() / hasher.block_size().get();
    let hash = chain.hashes()[end as usize - 1];
    let name = HashAlgorithm::Sha256.hash(&[&hash.as_bytes()[..], &id.get().to_le_bytes()].concat());
    let name: String = name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    files(folder.path()).into_iter().find(|file| file.to_str().unwrap().ends_with(&name))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// A block of one group that is missing or damaged shortens the hit to what all groups have, and changes no token.
#[track_caller]
fn a_bad_block_shortens_the_hit(family: &Family) {
    let folder = tempfile::tempdir().unwrap();
    let options = family.tiers(&format!("remote=file://{}", folder.path().display()));
    let mut engine = family.open(&options);
    let first = one(&mut engine, &request(1, LEN, 6));
    let hasher = engine.scheduler().cache().hasher();
    drop(engine);
    let groups = family.groups();
    let mut hits = Vec::new();
    for (group, of_group) in groups.iter().enumerate() {
        let size = of_group.spec.block_size.get();
        // The last block of the hit, and one before its window.
        for (index, damaged) in [(WHOLE / size - 1, group % 2 == 0), (96 / size - 1, group % 2 == 1)] {
            let block = GroupBlock { group: GroupId::new(u32::try_from(group).unwrap()), index };
            let Some(file) = object(&folder, hasher, of_group, block) else {
                assert!(needed(of_group, (index + 1) * size).is_empty(), "block {index} of group {group}");
                continue;
            };
            if damaged {
                fs::write(&file, b"not a block").unwrap()
            } else {
                fs::remove_file(&file).unwrap()
            }
            let found = one(&mut family.open(&options), &request(1, LEN, 6));
            let cached = found.usage.cached.total();
            assert_eq!(cached, left(&groups, group, index), "block {index} of group {group}");
            assert_eq!(found.output, first.output, "block {index} of group {group}");
            hits.push(cached);
        }
    }
    hits.sort_unstable();
    hits.dedup();
    assert!(hits.len() > 2 && hits.contains(&WHOLE), "{hits:?}");
}

#[test]
fn a_bad_block_of_compressed_attention_shortens_the_hit() {
    a_bad_block_shortens_the_hit(&Family::new("tiny-deepseek-v4", 8, 90));
}

#[test]
fn a_bad_block_of_a_window_shortens_the_hit() {
    a_bad_block_shortens_the_hit(&Family::new("tiny-gpt-oss", 16, 40));
}
