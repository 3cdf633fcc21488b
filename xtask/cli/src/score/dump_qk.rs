//! Queries and keys of one layer, recorded while a sequence is scored, in the file that `select` reads.
//!
//! The engine hands both to policies that select on the host, so the recorder is one: it keeps every block.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use kvblock::BlockSize;
use models::{DecoderConfig, Reach, SelectionPlace};
use pagoda::Sparse;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sparse_select::policy::num_blocks;
use sparse_select::{Input, Policy, SelectError, Selection, Stage, Support};

/// Name under which the recorder runs in place of a policy.
const NAME: &str = "dump-qk";

/// A policy that keeps every block, and the queries and keys of one layer.
#[derive(Debug)]
pub(super) struct Recorder {
    layer: u32,
    block_size: BlockSize,
    seen: Mutex<Seen>,
}

/// Queries of all steps so far, and the keys of the last one.
#[derive(Debug, Default)]
struct Seen {
    /// Queries of each head, `[tokens, head_dim]`.
    q: Vec<Vec<f32>>,
    /// Keys of the last step, `[kv_heads, tokens, head_dim]`.
    k: Vec<f32>,
    kv_heads: usize,
    head_dim: usize,
}

impl Recorder {
    /// A recorder of `layer` of the model, for a cache with blocks of `block_size` tokens.
    ///
    /// # Errors
    /// If the model has no such layer, or the layer sees a window or a chunk only.
    pub(super) fn new(config: &DecoderConfig, layer: u32, block_size: u32) -> Result<Arc<Self>> {
        let layers = config.layers.len();
        let of_layer = config.layers.get(layer as usize);
        let of_layer = of_layer
            .with_context(|| format!("--layer is {layer}, the model has the layers 0 to {}", layers - 1))?;
        let full = of_layer.reach == Reach::Full;
        ensure!(
            full,
            "--layer is {layer}, which does not see all keys ({:?}); policies select in layers that do",
            of_layer.reach
        );
        let block_size = BlockSize::new(block_size.max(8)).context("--block-size")?;
        Ok(Arc::new(Self { layer, block_size, seen: Mutex::default() }))
    }

    /// The recorder as the policy of an engine.
    ///
    /// # Errors
    /// None that can come up: the name is fixed.
    pub(super) fn policy(self: &Arc<Self>) -> Result<Sparse> {
        let policy = Arc::clone(self) as Arc<dyn Policy>;
        Ok(Sparse::of(policy, NAME.parse()?).place(SelectionPlace::Host))
    }

    /// Writes `q`, f32 `[heads, min(last, tokens), head_dim]`, and `k`, f32 `[kv_heads, tokens, head_dim]`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, path: &Path, last: Option<u32>) -> Result<()> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { q, k, kv_heads, head_dim } = &*seen;
        let tokens = k.len() / (kv_heads * head_dim).max(1);
        let rows = last.map_or(tokens, |last| tokens.min(last as usize));
        let last_rows: Vec<f32> =
            q.iter().flat_map(|head| &head[head.len() - rows * head_dim..]).copied().collect();
        let q =
            TensorView::new(Dtype::F32, vec![q.len(), rows, *head_dim], bytemuck::cast_slice(&last_rows))?;
        let k = TensorView::new(Dtype::F32, vec![*kv_heads, tokens, *head_dim], bytemuck::cast_slice(k))?;
        let file = safetensors::serialize([("q", q), ("k", k)], None::<HashMap<String, String>>)?;
        std::fs::write(path, file).with_context(|| format!("{}: cannot be written", path.display()))
    }
}

impl Policy for Recorder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn support(&self) -> Support {
        Support { query: true, ..Support::POSITIONS_ONLY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Whether `layer` is not the recorded one: other layers need no selection.
    fn keeps_all(&self, layer: Option<u32>, _: usize) -> bool {
        layer.is_some_and(|layer| layer != self.layer)
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let (q, k, _) = input.scored(NAME)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.q.resize_with(q.heads(), Vec::new);
        for (head, rows) in seen.q.iter_mut().enumerate() {
            rows.extend(q.rows(head).flatten());
        }
        seen.k = (0..k.heads()).flat_map(|head| k.rows(head)).flatten().copied().collect();
        (seen.kv_heads, seen.head_dim) = (k.heads(), k.dim());
        let blocks = num_blocks(input.kv_len, self.block_size);
        let first = match input.stage {
            Stage::Prefill { chunk_idx } => chunk_idx,
            Stage::Decode => blocks - 1,
        };
        out.begin_causal(blocks, 1, first + 1..=blocks);
        out.fill_all();
        Ok(())
    }
}
