//! Queries of the previous step, for policies that [select by them](SelectBy::Previous): blocks are selected without waiting for
//! any result of the step.

use std::sync::Arc;

use attn_kernels::gpu::Buf;
use rustc_hash::FxHashMap;
use sparse_select::SelectBy;

use crate::ModelError;
use crate::batch::{Phase, Slice};
use crate::cast::u32_of;
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;
use crate::sparse::SparseOptions;

/// Queries of each layer that selects, `[rows, num_heads * head_dim]`.
pub(super) type Queries = Arc<[Option<Buf<f32>>]>;

/// Queries that a step stores for the next step, and the rows in which the previous step stored its queries.
#[derive(Debug)]
pub(in crate::decoder) struct Previous {
    pub(super) queries: Queries,
    /// Maximum number of rows of a buffer.
    capacity: u32,
    /// Number of elements per row.
    width: usize,
    /// Cache group whose blocks identify tokens.
    group: usize,
    block_size: u32,
    /// Rows of the queries that the last step stored, by token.
    rows: FxHashMap<Token, u32>,
    /// Queries of the current step that are stored.
    kept: Vec<KeptQuery>,
    /// Whether layers write their queries directly to the place where they are stored.
    in_place: bool,
}

/// Identifies a token of a sequence: its block, which no other sequence writes, and its position.
type Token = (u32, u32);

/// A row of queries that is stored.
#[derive(Clone, Copy, Debug)]
struct KeptQuery {
    token: Token,
    /// Row of the query in the step.
    row: u32,
    /// Row of the query among the stored ones.
    to: u32,
}

impl Previous {
    /// Creates the storage of queries; `None` for policies that select by a row's own queries. `selects` says which
    /// layers select.
    pub(super) fn new(
        load: &LoadContext<'_>,
        sparse: &SparseOptions,
        group: usize,
        selects: &[bool],
    ) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        if sparse.of(Phase::Decode).select_by() == SelectBy::Current {
            return Ok(None);
        }
        let (capacity, width) = (options.max_seqs, (config.num_heads * config.head_dim) as usize);
        let buffer =
            |selects: &bool| selects.then(|| gpu.buffer("previous_q", capacity as usize * width)).transpose();
        Ok(Some(Self {
            queries: selects.iter().map(buffer).collect::<Result<_, _>>()?,
            capacity,
            width,
            group,
            block_size: kv.shape().block_size,
            rows: FxHashMap::default(),
            kept: Vec::new(),
            in_place: false,
        }))
    }

    /// Plans which queries the step stores: those of decode rows, and of the last row of each prompt chunk. Returns, for
    /// each slice, the stored row of the token before its first token, or of its first token if a step already ran it;
    /// `None` for prompts, and if no such query is stored. `at_once` says whether steps of single tokens select in all
    /// layers before any layer has its queries.
    pub(super) fn plan(&mut self, slices: &[Slice<'_>], at_once: bool) -> Vec<Option<u32>> {
        self.kept.clear();
        let mut row = 0;
        for slice in slices {
            let rows = u32_of(slice.tokens.len());
            let first = if slice.phase == Phase::Decode { 0 } else { rows - 1 };
            for i in first..rows {
                let (token, to) = (self.token(slice, slice.first + i), u32_of(self.kept.len()));
                self.kept.push(KeptQuery { token, row: row + i, to });
            }
            row += rows;
        }
        let alike = slices.iter().all(|slice| slice.phase == Phase::Decode && slice.tokens.len() == 1);
        self.in_place = at_once && alike && row <= self.capacity;
        self.kept.truncate(self.capacity as usize);
        let before = |slice: &Slice<'_>| {
            let tokens = [slice.first.checked_sub(1)?, slice.first].map(|at| self.token(slice, at));
            tokens.iter().find_map(|token| self.rows.get(token).copied())
        };
        let of_slice = |slice: &Slice<'_>| if slice.phase == Phase::Decode { before(slice) } else { None };
        slices.iter().map(of_slice).collect()
    }

    fn token(&self, slice: &Slice<'_>, position: u32) -> Token {
        (slice.tables[self.group][(position / self.block_size) as usize].get(), position)
    }

    /// Returns the buffer that a layer's queries are written to, if they are stored directly.
    pub(in crate::decoder) fn in_place(&self, layer: usize) -> Option<&Buf<f32>> {
        self.queries[layer].as_ref().filter(|_| self.in_place)
    }

    /// Records the storing of a layer's queries.
    pub(in crate::decoder) fn keep(&self, ctx: &mut Ctx<'_>, layer: usize) {
        let Some(queries) = self.queries[layer].as_ref().filter(|_| !self.in_place) else { return };
        // Rows of decode slices follow one another.
        for run in self.kept.chunk_by(|a, b| a.row + 1 == b.row) {
            let [row, to] = [run[0].row, run[0].to].map(|n| n as usize * self.width);
            ctx.pass.copy(&ctx.act.q, row..row + run.len() * self.width, queries, to);
        }
    }

    /// Returns whether queries are stored directly, as a number: the step's commands depend on it.
    pub(super) fn shape(&self) -> usize {
        usize::from(self.in_place)
    }

    /// Forgets the queries of the last step, which the current step replaces.
    pub(super) fn begin(&mut self) {
        self.rows.clear();
    }

    /// Ends the step: its queries become those of the previous step.
    pub(super) fn end(&mut self) {
        self.rows = self.kept.iter().map(|kept| (kept.token, kept.to)).collect();
    }
}
