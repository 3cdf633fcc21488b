//! Objects that tiers keep of a model with several cache groups: of equal size, each named by a block's hash and a group.
//!
//! A pool that gives the blocks of windows back has a group for each kind of layer; one whose contexts go on in memory of the
//! host has all layers in one. Both read and write the objects of the former, so that a store serves both.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::kernel::KvShape;
use kvblock::{
    AttentionKind, BlockHash, CacheLayout, CacheTensor, GroupBlock, GroupId, HashAlgorithm, KvCacheGroup,
    PrefixNeeds,
};
use models::{CachePart, DecoderConfig, KvPlan, LayerCache, ModelError};

/// Division of the blocks of the device into objects, the units that tiers store.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) needs: PrefixNeeds,
    /// Objects of a block, by group of the device.
    groups: Vec<Vec<Part>>,
    /// Number of bytes of an object.
    bytes: usize,
    /// Number of bytes of a block of the device.
    block_bytes: usize,
    /// Largest number of pages of an object.
    pages: u32,
    /// Whether each page has the keys of a layer, then its values.
    pairs: bool,
    /// Description of the groups, which is a part of the names of stores; empty if there is a single group.
    about: String,
}

/// Object of a block: pages of the layers of one group.
#[derive(Debug)]
struct Part {
    /// The group of the object; `None` if there is one only.
    group: Option<u32>,
    /// Byte ranges of the object's pages in the contents of a block.
    pages: Vec<Range<usize>>,
}

impl Objects {
    /// The objects of the blocks of a plan.
    ///
    /// # Errors
    /// Those of the plan of a pool that gives blocks back.
    pub(super) fn new(config: &DecoderConfig, plan: &KvPlan) -> Result<Self, ModelError> {
        let own = &plan.layout;
        let recycled = KvPlan::new(config, plan.options.recycle(true))?.layout;
        // Where blocks of the two have the same tokens, those of all layers are cut.
        let sizes = |layout: &CacheLayout| layout.groups.iter().map(|group| group.spec.block_size).collect();
        let (mut all, one): (Vec<_>, Vec<_>) = (sizes(&recycled), sizes(own));
        all.dedup();
        let stored = if own.groups.len() == 1 && all == one { &recycled } else { own };
        let places = places(own);
        let page = |cache: &usize| places[plan.caches[*cache].tensor].clone();
        let several = stored.groups.len() > 1;
        let part = |(index, group): (u32, &KvCacheGroup)| Part {
            group: several.then_some(index),
            pages: joined(group.layers.iter().map(page).collect()),
        };
        let parts = (0..).zip(&stored.groups).map(part);
        let groups = match own.groups.len() {
            1 => vec![parts.collect()],
            _ => parts.map(|part| vec![part]).collect(),
        };
        let block_bytes = places.last().map_or(0, |last| last.end);
        let bytes = groups.iter().flatten().map(Part::bytes).max().unwrap_or(block_bytes);
        let pages = stored.groups.iter().map(|group| group.layers.len()).max().unwrap_or(1);
        Ok(Self {
            needs: PrefixNeeds::new(&resumed(config, plan)),
            groups,
            bytes,
            block_bytes,
            pages: u32::try_from(pages).expect("a model has few layers"),
            pairs: plan.caches.iter().all(|cache| cache.part == CachePart::KeyValue),
            about: if several { about(plan, stored) } else { String::new() },
        })
    }

    /// Bytes of an object.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Largest number of objects of a block.
    pub(super) fn most_per_block(&self) -> usize {
        self.groups.iter().map(Vec::len).max().unwrap_or(1)
    }

    /// Groups of the device.
    pub(super) fn groups(&self) -> impl Iterator<Item = GroupId> + Clone + use<> {
        (0..u32::try_from(self.groups.len()).expect("a model has few groups")).map(GroupId::new)
    }

    /// Number of objects of some blocks.
    pub(super) fn count(&self, blocks: &[GroupBlock]) -> usize {
        blocks.iter().map(|block| self.groups[block.group.index()].len()).sum()
    }

    /// Description of the groups, for names of stores.
    pub(super) fn about(&self) -> &str {
        &self.about
    }

    /// Number of pairs of keys and values in an object; `None` if the object has other contents.
    pub(super) fn pairs(&self, shape: &KvShape) -> Option<u32> {
        let bytes = self.pages as usize * 2 * shape.block_bytes();
        (self.pairs && self.bytes == bytes).then_some(self.pages)
    }

    /// Number of leading blocks that together have up to `most` objects, but at least one.
    pub(super) fn portion(&self, blocks: &[GroupBlock], most: usize) -> usize {
        self.ends(blocks).take_while(|end| *end <= most).count().max(1).min(blocks.len())
    }

    /// Index of the block whose objects include the one at `position` among those of all `blocks`.
    pub(super) fn owner(&self, blocks: &[GroupBlock], position: usize) -> usize {
        self.ends(blocks).take_while(|end| *end <= position).count().min(blocks.len() - 1)
    }

    /// For each block, the number of objects of this block and all blocks before it.
    fn ends(&self, blocks: &[GroupBlock]) -> impl Iterator<Item = usize> {
        blocks.iter().scan(0, |end, block| {
            *end += self.groups[block.group.index()].len();
            Some(*end)
        })
    }

    /// Names of the objects of a block with this hash.
    pub(super) fn names(&self, group: GroupId, hash: BlockHash) -> impl Iterator<Item = BlockHash> + '_ {
        self.groups[group.index()].iter().map(move |part| part.name(hash))
    }

    /// Returns the names of the objects of some blocks of a sequence: `named` makes each name from the block and its
    /// hash.
    pub(super) fn names_of(
        &self,
        blocks: &[GroupBlock],
        hashes: &[BlockHash],
        named: impl Fn(&GroupBlock, BlockHash) -> BlockHash,
    ) -> Vec<BlockHash> {
        let names =
            |block: &GroupBlock| self.names(block.group, named(block, self.needs.hash(hashes, *block)));
        blocks.iter().flat_map(names).collect()
    }

    /// Cuts the contents of a block into its objects.
    pub(super) fn cut(&self, group: GroupId, contents: &Arc<[u8]>) -> Vec<Arc<[u8]>> {
        let cut = |part: &Part| {
            let is_whole = |page: &Range<usize>| page.len() == contents.len();
            if contents.len() == self.bytes && part.pages.first().is_some_and(is_whole) {
                return Arc::clone(contents);
            }
            let mut object: Arc<[u8]> = std::iter::repeat_n(0, self.bytes).collect();
            let mut rest = Arc::get_mut(&mut object).expect("nobody shares it yet");
            for page in &part.pages {
                let (place, others) = rest.split_at_mut(page.len());
                place.copy_from_slice(&contents[page.clone()]);
                rest = others;
            }
            object
        };
        self.groups[group.index()].iter().map(cut).collect()
    }

    /// Joins the objects of a block into its contents.
    pub(super) fn join(&self, group: GroupId, objects: &[Arc<[u8]>]) -> Vec<u32> {
        let mut contents = vec![0; self.block_bytes / 4];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut contents);
        for (part, object) in self.groups[group.index()].iter().zip(objects) {
            let mut at = 0;
            for page in &part.pages {
                bytes[page.clone()].copy_from_slice(&object[at..at + page.len()]);
                at += page.len();
            }
        }
        contents
    }
}

/// The cache groups of a plan, each with the window of tokens that a request needs when it resumes after a prefix.
/// The states of a compressor get a smaller window than in the pool: a prefix ends where a compressed entry ends, so
/// the next entry reads only the windows before it. Nothing reads the other places of the pool's window before they
/// are given back.
fn resumed(config: &DecoderConfig, plan: &KvPlan) -> Vec<KvCacheGroup> {
    let before = |cache: &usize| {
        let LayerCache { layer, part, .. } = &plan.caches[*cache];
        let of_states = matches!(part, CachePart::States | CachePart::IndexStates);
        let compressor = config.compressed.as_ref().filter(|_| of_states)?.compressors[*layer].as_ref()?;
        Some((compressor.windows() - 1) * compressor.ratio)
    };
    let mut groups = plan.layout.groups.clone();
    for group in &mut groups {
        // Without windows that are given back, the pool takes a hit for all of the states.
        let before: Option<Vec<u32>> = group.layers.iter().map(before).collect();
        if let Some(before) = before.filter(|_| plan.options.recycle) {
            let tokens = before.into_iter().max().unwrap_or(0);
            group.spec.kind = AttentionKind::SlidingWindow { window: tokens + 1 };
        }
    }
    groups
}

impl Part {
    fn bytes(&self) -> usize {
        self.pages.iter().map(ExactSizeIterator::len).sum()
    }

    fn name(&self, hash: BlockHash) -> BlockHash {
        let Some(group) = self.group else { return hash };
        HashAlgorithm::Sha256.hash(&[&hash.as_bytes()[..], &group.to_le_bytes()].concat())
    }
}

/// Byte range of each buffer's page in the contents of a block; empty for buffers that hold no layer.
fn places(layout: &CacheLayout) -> Vec<Range<usize>> {
    let mut end = 0;
    let of_tensor = |tensor: &CacheTensor| {
        let bytes = if tensor.layers.is_empty() { 0 } else { tensor.page_bytes };
        let start = end;
        end += usize::try_from(bytes).expect("pages fit in memory");
        start..end
    };
    layout.tensors.iter().map(of_tensor).collect()
}

/// Merges pages that follow each other directly into one range.
fn joined(pages: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for page in pages {
        match joined.last_mut() {
            Some(last) if last.end == page.start => last.end = page.end,
            _ => joined.push(page),
        }
    }
    joined
}

/// Description of a layout: the number of tokens in a block of each group, and a digest of the caches in the block.
fn about(plan: &KvPlan, stored: &CacheLayout) -> String {
    let cache = |index: &usize| {
        let LayerCache { layer, part, .. } = &plan.caches[*index];
        let bytes = stored.tensors.iter().find(|tensor| tensor.layers.contains(index)).map(|t| t.page_bytes);
        format!("{part:?} of layer {layer} in {bytes:?} bytes")
    };
    let of_group = |group: &KvCacheGroup| {
        let caches: Vec<String> = group.layers.iter().map(cache).collect();
        (group.spec.block_size.get().to_string(), caches.join(", "))
    };
    let (sizes, caches): (Vec<_>, Vec<_>) = stored.groups.iter().map(of_group).unzip();
    let digest = HashAlgorithm::Sha256.hash(caches.join("\n").as_bytes());
    let digest: String = digest.as_bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!(", groups of {} tokens a block with caches {digest}", sizes.join(" and "))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use attn_kernels::kernel::KvDtype;
    use models::KvOptions;

    use super::*;

    /// The objects of a model whose windows are given back, or not, and its plan.
    fn objects(name: &str, block_size: u32, recycle: bool) -> (Objects, KvPlan) {
        let folder = [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "tests", "fixtures", name];
        let config = DecoderConfig::from_hf_dir(folder.iter().collect::<PathBuf>()).unwrap();
        let plan = KvPlan::new(&config, KvOptions::new(KvDtype::F16, block_size).recycle(recycle)).unwrap();
        (Objects::new(&config, &plan).unwrap(), plan)
    }

    /// A block of a group: pages of the group contain the number of its cache, others contain garbage.
    fn block(plan: &KvPlan, group: usize) -> Arc<[u8]> {
        let page = |tensor: &CacheTensor| {
            let own = tensor.layers.iter().find(|cache| plan.layout.groups[group].layers.contains(cache));
            let number = own.map_or(0xee, |cache| u8::try_from(*cache).unwrap());
            vec![number; usize::try_from(tensor.page_bytes).unwrap()]
        };
        plan.layout.tensors.iter().filter(|tensor| !tensor.layers.is_empty()).flat_map(page).collect()
    }

    #[test]
    fn blocks_of_all_layers_are_the_objects_of_all_groups() {
        let hash = HashAlgorithm::Sha256.hash(b"a prefix");
        for (name, groups) in
            [("tiny-gpt-oss", 2), ("tiny-gemma3", 7), ("tiny-llama4", 4), ("tiny-mistral", 1)]
        {
            let (recycled, by_group) = objects(name, 16, true);
            let (kept, whole) = objects(name, 16, false);
            assert_eq!((by_group.layout.groups.len(), whole.layout.groups.len()), (groups, 1), "{name}");
            assert_eq!((kept.about(), kept.bytes()), (recycled.about(), recycled.bytes()), "{name}");
            let ids: Vec<GroupId> =
                (0..groups).map(|group| GroupId::new(u32::try_from(group).unwrap())).collect();
            let contents = block(&whole, 0);
            let cut = kept.cut(ids[0], &contents);
            let names: Vec<BlockHash> = ids.iter().flat_map(|group| recycled.names(*group, hash)).collect();
            assert_eq!(kept.names(ids[0], hash).collect::<Vec<_>>(), names, "{name}");
            for (n, group) in ids.iter().enumerate() {
                let own = recycled.cut(*group, &block(&by_group, n));
                assert_eq!(own, [Arc::clone(&cut[n])], "{name}");
                let joined: Vec<u8> = bytemuck::cast_slice(&recycled.join(*group, &own)).to_vec();
                let expected = block(&by_group, n);
                let expected = expected.iter().map(|byte| if *byte == 0xee { 0 } else { *byte });
                assert_eq!(joined, expected.collect::<Vec<u8>>(), "{name}");
            }
            assert_eq!(bytemuck::cast_slice::<u32, u8>(&kept.join(ids[0], &cut)), &*contents, "{name}");
        }
    }

    /// Prefixes end every 32 tokens; of 64, entries, windows of 16, and states of entries of 32 tokens and of 8 are named.
    #[test]
    fn states_that_no_later_entry_takes_in_are_not_kept() {
        let (objects, plan) = objects("tiny-deepseek-v4", 8, true);
        let of_group = |group: usize| {
            let blocks = objects.needs.filled(0..64).filter(|block| block.group.index() == group);
            format!("{}: {:?}", plan.group_name(group), blocks.map(|block| block.index).collect::<Vec<_>>())
        };
        let groups: Vec<String> = (0..plan.layout.groups.len()).map(of_group).collect();
        insta::assert_snapshot!(groups.join("\n"), @r"
        full: [0, 1]
        window_16: [2, 3, 6, 7]
        states_32: []
        states_8: [28, 29, 30, 31, 60, 61, 62, 63]
        ");
    }
}
