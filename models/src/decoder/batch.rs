//! The batch of a step, as lists that kernels read.

use std::ops::Range;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::paged_prefill::Tile;
use attn_kernels::rows::{Angle, DecodeRow, PhysicalBlock};
use kvblock::BlockId;
use smallvec::SmallVec;

use super::attention_groups::AttentionGroup;
use super::buffers::StepList;
use super::options::DecoderOptions;
use super::rope_cos_sin::RopeCosSin;
use super::selecting::SelectingRows;
use crate::Rope;
use crate::batch::{Phase, Slice};
use crate::cast::{f32_of, u32_of};
use crate::kv::ROWS;
use crate::{DecoderConfig, ModelError, Reach};

/// Tokens, positions, block tables and rows of a step. Each part of the decoder keeps what it derives from them.
#[derive(Debug)]
pub(super) struct Batch {
    prefill: Prefill,
    pub(super) rows: u32,
    /// Number of leading rows that belong to decode slices; all that follow belong to prefills.
    pub(super) decode_until: u32,
    /// Length of the longest context of any row.
    pub(super) longest: u32,
    /// Token of each row, unless the step [follows](Self::follows) another one.
    pub(super) tokens: StepList<u32>,
    /// Whether the token of each row is the one that the step before draws for it.
    pub(super) follows: bool,
    /// Positions of each slice.
    pub(super) positions: Vec<Range<u32>>,
    /// Rope factors of layers with full attention, then those of layers with a window, if they differ.
    cos_sin: SmallVec<[RopeRows; 2]>,
    /// Scale of each row's query in layers without rope, as a cosine with a sine of 0.
    query_scales: StepList<Angle>,
    /// Block tables of all slices and cache groups, one after the other.
    pub(super) tables: StepList<PhysicalBlock>,
    pub(super) attn_groups: Vec<GroupRows>,
}

/// Rope factors of each row's position, followed by the scale of its query.
#[derive(Debug)]
struct RopeRows {
    rope: RopeCosSin,
    list: StepList<Angle>,
}

/// Division of rows of prefills into tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefill {
    /// Whether rows are attended one by one, by the decode kernel. Rows of selected blocks are in tiles anyway,
    /// because a tile shares lists.
    pub(super) by_rows: bool,
    /// Whether rows are attended one by one, except in steps that skip keys, since only tiles can skip keys.
    pub(super) by_rows_unless_skipping: bool,
    /// Maximum number of rows of a tile.
    pub(super) tile_rows: u32,
}

/// The rows of a step for the layers of one attention group.
#[derive(Debug)]
pub(super) struct GroupRows {
    /// Slot of each row's keys and values.
    pub(super) slots: StepList<i32>,
    pub(super) all: AttentionRows,
    /// Rows that attend everything, in steps where other rows attend a selection.
    pub(super) whole: AttentionRows,
    /// Rows that attend a selection.
    pub(super) selected: AttentionRows,
    /// Rows for which blocks are selected.
    pub(super) selecting: Vec<SelectingRows>,
}

/// Work items of attention.
#[derive(Debug)]
pub(super) struct AttentionRows {
    /// Rows that are attended one by one. Lists of selected blocks have the same order.
    pub(super) decode: StepList<DecodeRow>,
    /// Length of the longest context of the decode rows.
    pub(super) longest: u32,
    pub(super) tiles: StepList<Tile>,
}

/// Rows that attend every key they can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dense {
    /// All rows of an attention group.
    All,
    /// The rows of an attention group for which no blocks are selected.
    Whole,
}

impl Dense {
    /// Both variants, in numerical order.
    pub(super) const BOTH: [Self; 2] = [Self::All, Self::Whole];
}

impl Batch {
    /// An empty batch with capacity for the largest step.
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        attn_groups: &[AttentionGroup],
        prefill: Prefill,
    ) -> Result<Self, ModelError> {
        let rows = options.max_rows as usize;
        let cos_sin = |rope: &Rope, label| {
            let len = rows * (config.rope.inv_freq().len() + 1);
            Ok::<_, ModelError>(RopeRows {
                rope: RopeCosSin::new(rope),
                list: StepList::new(gpu, label, len)?,
            })
        };
        Ok(Self {
            prefill,
            rows: 0,
            decode_until: 0,
            longest: 0,
            tokens: StepList::new(gpu, "tokens", rows)?,
            follows: false,
            positions: Vec::new(),
            cos_sin: std::iter::once(cos_sin(&config.rope, "rope_cos_sin"))
                .chain(config.window_rope.as_ref().map(|rope| cos_sin(rope, "window_rope_cos_sin")))
                .collect::<Result<_, _>>()?,
            query_scales: StepList::new(gpu, "query_scales", rows)?,
            tables: StepList::new(gpu, "tables", 1024)?,
            attn_groups: attn_groups
                .iter()
                .map(|_| GroupRows::new(gpu, options))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Plans the rows of `slices`. If earlier queries select blocks, `queries` has each slice's row among these queries;
    /// a slice without such a row attends everything.
    pub(super) fn plan(
        &mut self,
        config: &DecoderConfig,
        options: &DecoderOptions,
        attn_groups: &[AttentionGroup],
        slices: &[Slice<'_>],
        queries: Option<&[Option<u32>]>,
    ) -> Result<(), ModelError> {
        self.clear();
        for (attn_group, rows) in attn_groups.iter().zip(&mut self.attn_groups) {
            let sparse = options.selection().filter(|_| attn_group.reach == Reach::Full);
            rows.selecting = sparse
                .map_or_else(Vec::new, |sparse| sparse.selecting_rows(slices, attn_group.kv_group, queries));
        }
        let by_rows =
            self.prefill.by_rows || self.prefill.by_rows_unless_skipping && !options.skips_in(slices);
        let prefill = Prefill { by_rows, ..self.prefill };
        for (index, slice) in slices.iter().enumerate() {
            let mut tables: SmallVec<[u32; 4]> = SmallVec::new();
            for table in slice.tables {
                tables.push(u32_of(self.tables.len()));
                self.tables.extend(table.iter().map(|b| PhysicalBlock(b.get())));
            }
            let (row, select_block) = (self.rows, options.select_block());
            for (attn_group, rows) in attn_groups.iter().zip(&mut self.attn_groups) {
                let table = tables[attn_group.kv_group];
                rows.push(&SliceWork { attn_group, index, row, table, prefill, select_block }, slice);
            }
            self.push_tokens(config, slice)?;
            self.positions.push(slice.positions());
            self.rows += u32_of(slice.tokens.len());
            if slice.phase == Phase::Decode {
                // A decode slice after a prefill makes the prefill's rows exact too, which is always correct.
                self.decode_until = self.rows;
            }
            self.longest = self.longest.max(slice.first + u32_of(slice.tokens.len()));
        }
        let (same, scaled) = (Angle { cos: 1.0, sin: 0.0 }, config.temperature.is_some_and(|t| t.all_layers));
        let factors = self.query_scales.iter().map(|factor| if scaled { *factor } else { same });
        self.cos_sin.iter_mut().for_each(|cos_sin| cos_sin.list.extend(factors.clone()));
        assert!(
            self.rows <= options.max_rows,
            "{} rows in a step of at most {}",
            self.rows,
            options.max_rows
        );
        Ok(())
    }

    fn clear(&mut self) {
        (self.rows, self.decode_until, self.longest) = (0, 0, 0);
        self.tokens.clear();
        self.follows = false;
        self.positions.clear();
        self.query_scales.clear();
        self.tables.clear();
        self.cos_sin.iter_mut().for_each(|cos_sin| cos_sin.list.clear());
        self.attn_groups.iter_mut().for_each(GroupRows::clear);
    }

    /// Adds the tokens of a slice, with the rope factors and query scales of their positions.
    fn push_tokens(&mut self, config: &DecoderConfig, slice: &Slice<'_>) -> Result<(), ModelError> {
        for (position, id) in (slice.first..).zip(slice.tokens) {
            if *id >= config.vocab_size {
                return Err(ModelError::Token { id: *id, position, vocab: config.vocab_size });
            }
            self.tokens.push(*id);
            let temperature = config.temperature.map_or(1.0, |temperature| temperature.factor(position));
            self.query_scales.push(Angle { cos: f32_of(temperature), sin: 0.0 });
        }
        for RopeRows { rope, list } in &mut self.cos_sin {
            rope.extend(slice.positions(), list);
        }
        Ok(())
    }

    /// Uploads the lists.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.tokens.upload(gpu)?;
        self.cos_sin.iter_mut().try_for_each(|cos_sin| cos_sin.list.upload(gpu))?;
        self.query_scales.upload(gpu)?;
        self.tables.upload(gpu)?;
        self.attn_groups.iter_mut().try_for_each(|attn_group| attn_group.upload(gpu))
    }

    /// Returns the rope factors of layers with full attention.
    pub(super) fn cos_sin(&self) -> &Buf<Angle> {
        self.cos_sin[0].list.on_device()
    }

    /// Returns the rope factors of a layer; query scales alone for layers without rope.
    pub(super) fn cos_sin_of(&self, rotary: bool, reach: Reach) -> &Buf<Angle> {
        match self.cos_sin.last() {
            _ if !rotary => self.query_scales.on_device(),
            Some(cos_sin) if matches!(reach, Reach::Window(_)) => cos_sin.list.on_device(),
            _ => self.cos_sin(),
        }
    }
}

/// Parameters of the rows of one slice.
struct SliceWork<'a> {
    attn_group: &'a AttentionGroup,
    /// Index of the slice.
    index: usize,
    /// First row of the slice in the step.
    row: u32,
    /// First entry of the slice's block table in the batch.
    table: u32,
    prefill: Prefill,
    select_block: u32,
}

impl GroupRows {
    fn new(gpu: &Gpu, options: &DecoderOptions) -> Result<Self, ModelError> {
        let rows = options.max_rows as usize;
        let split = if options.selection().is_some() { rows } else { 1 };
        // Room for the gaps between groups of rows that go through the ring.
        let gaps = if options.offload.is_some() { options.max_seqs.max(1) * ROWS } else { 0 } as usize;
        Ok(Self {
            slots: StepList::new(gpu, "slots", rows)?,
            all: AttentionRows::new(gpu, rows + gaps)?,
            whole: AttentionRows::new(gpu, split + gaps)?,
            selected: AttentionRows::new(gpu, split)?,
            selecting: Vec::new(),
        })
    }

    fn clear(&mut self) {
        self.slots.clear();
        [&mut self.all, &mut self.whole, &mut self.selected].into_iter().for_each(AttentionRows::clear);
        self.selecting.clear();
    }

    fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.slots.upload(gpu)?;
        self.all.upload(gpu)?;
        if self.selecting.is_empty() {
            return Ok(());
        }
        self.whole.upload(gpu)?;
        self.selected.upload(gpu)
    }

    /// Returns the rows that attend every key they can see.
    pub(super) fn dense(&self, which: Dense) -> &AttentionRows {
        match which {
            Dense::All => &self.all,
            Dense::Whole => &self.whole,
        }
    }

    fn push(&mut self, work: &SliceWork<'_>, slice: &Slice<'_>) {
        let rows = u32_of(slice.tokens.len());
        let blocks = slice.tables[work.attn_group.kv_group];
        let positions = slice.first..slice.first + rows;
        self.slots.extend(positions.map(|at| slot(blocks, at, work.attn_group.block_size)));
        let in_tiles = slice.phase == Phase::Prefill && !work.prefill.by_rows;
        let tiles = |rows: u32| in_tiles.then(|| rows.min(work.prefill.tile_rows));
        let mut i = 0;
        while i < rows {
            i += self.all.push(work, slice, i, tiles(rows - i), 0);
        }
        let mut i = 0;
        while i < rows && !self.selecting.is_empty() {
            let position = slice.first + i;
            i += match self.list(work, slice, position) {
                None => self.whole.push(work, slice, i, tiles(rows - i), 0),
                // A tile has one list a KV head, and rows that share a list are in tiles.
                Some(list) if slice.phase == Phase::Prefill => {
                    let to_boundary = work.select_block - position % work.select_block;
                    let max = work.prefill.tile_rows.min(rows - i).min(to_boundary);
                    self.selected.push(work, slice, i, Some(max), list)
                }
                Some(list) => self.selected.push(work, slice, i, None, list),
            };
        }
    }

    /// Returns the list group of the row at `position`; `None` if it attends everything.
    fn list(&self, work: &SliceWork<'_>, slice: &Slice<'_>, position: u32) -> Option<u32> {
        let mut selecting = self.selecting.iter().filter(|selecting| selecting.slice == work.index);
        match slice.phase {
            Phase::Prefill => {
                selecting.next().map(|selecting| selecting.list_at(position, work.select_block))
            }
            Phase::Decode => {
                selecting.find(|selecting| selecting.position == position).map(|selecting| selecting.list)
            }
        }
    }
}

impl AttentionRows {
    fn new(gpu: &Gpu, rows: usize) -> Result<Self, ModelError> {
        Ok(Self {
            decode: StepList::new(gpu, "decode_rows", rows)?,
            longest: 0,
            tiles: StepList::new(gpu, "tiles", rows)?,
        })
    }

    fn clear(&mut self) {
        self.decode.clear();
        self.tiles.clear();
        self.longest = 0;
    }

    fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.decode.upload(gpu)?;
        self.tiles.upload(gpu)
    }

    /// Adds rows of `slice` from its row `i` on: one row, or one tile. Returns how many.
    fn push(&mut self, work: &SliceWork<'_>, slice: &Slice<'_>, i: u32, tile: Option<u32>, list: u32) -> u32 {
        let (row, position, table) = (work.row + i, slice.first + i, work.table);
        let Some(rows) = tile else {
            let first_key = work.attn_group.reach.first_key(position);
            self.decode.push(DecodeRow { row, len: position + 1, table, first_key });
            self.longest = self.longest.max(position + 1);
            return 1;
        };
        self.tiles.push(Tile::new(row..row + rows, position, table).listed(list));
        rows
    }
}

/// Returns the slot of a position in a block table.
pub(super) fn slot(table: &[BlockId], position: u32, block_size: u32) -> i32 {
    let block = table[(position / block_size) as usize].get();
    i32::try_from(block * block_size + position % block_size).expect("a pool has under 2^31 slots")
}
