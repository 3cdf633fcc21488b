//! Policies that score, on the CPU: queries and new keys are read back in every layer.

use attn_kernels::gpu::{Pass, Timing};
use attn_kernels::kernel::KvShape;
use sparse_select::certificate::selection_mass;
use sparse_select::{Heads, Selection};

use super::measure::Measured;
use super::mirror::Mirror;
use super::{SelectingRows, Selector, Sparse};
use crate::ModelError;
use crate::decoder::inputs::{Plan, ViewRows};
use crate::decoder::ops::Ctx;

/// State of a policy that selects on the host.
#[derive(Debug)]
pub(super) struct OnHost {
    pub(super) mirror: Mirror,
    /// Selections of the last layer that selected itself.
    last: Vec<Selection>,
}

/// Queries of a step, `[rows, num_heads, head_dim]`.
struct Queries {
    values: Vec<f32>,
    num_heads: usize,
    head_dim: usize,
    /// Times of what ran until they were read.
    timings: Vec<Timing>,
}

/// Queries and keys of chosen rows.
struct Tensors {
    q: Vec<f32>,
    k: Vec<f32>,
}

impl OnHost {
    pub(super) fn new(shape: KvShape, num_layers: usize) -> Self {
        Self { mirror: Mirror::new(shape, num_layers), last: Vec::new() }
    }

    /// Runs the pass so far, and reads back the queries of the step and the keys that are not here yet.
    fn read(&mut self, ctx: &mut Ctx<'_>, layer: usize, view: &ViewRows) -> Result<Queries, ModelError> {
        let tables = view.selecting.iter().flat_map(|chosen| {
            let len = chosen.kv_len().div_ceil(ctx.kv.shape().block_size as usize);
            bytemuck::cast_slice(&ctx.plan.tables[chosen.table.start..chosen.table.start + len])
        });
        let missing = self.mirror.read_missing(ctx.pass, ctx.kv, layer, tables);
        let [num_heads, head_dim] = [ctx.config.num_heads, ctx.config.head_dim].map(|n| n as usize);
        let q = ctx.pass.read(&ctx.act.q, 0..ctx.rows() as usize * num_heads * head_dim);
        let so_far = std::mem::replace(ctx.pass, Pass::new("step"));
        let mut done = ctx.gpu.submit(so_far)?.wait()?;
        let timings = std::mem::take(&mut done.timings);
        for (block, read) in missing {
            self.mirror.insert(layer, block, &done.get(read));
        }
        Ok(Queries { values: done.get(q), num_heads, head_dim, timings })
    }

    /// Queries `[num_heads, rows, head_dim]` and keys `[num_kv_heads, kv_len, head_dim]` of chosen rows.
    fn tensors(&self, chosen: &SelectingRows, queries: &Queries, layer: usize, plan: &Plan) -> Tensors {
        let Queries { values, num_heads, head_dim, .. } = queries;
        let mut q = Vec::with_capacity(chosen.rows * num_heads * head_dim);
        for head in 0..*num_heads {
            for row in chosen.row..chosen.row + chosen.rows {
                q.extend_from_slice(&values[(row * num_heads + head) * head_dim..][..*head_dim]);
            }
        }
        let table = bytemuck::cast_slice(&plan.tables[chosen.table.clone()]);
        Tensors { q, k: self.mirror.keys(layer, table, chosen.kv_len()) }
    }
}

impl Sparse {
    /// Selects the blocks of a layer between the write of its keys and its attention.
    pub(in crate::decoder) fn select(&mut self, ctx: &mut Ctx<'_>, layer: usize) -> Result<(), ModelError> {
        let view = ctx.view(layer);
        match &self.selector {
            Selector::ByPosition => {}
            Selector::OnHost(_) if self.is_sparse_in(view, layer) => {
                // It is taken out, for it borrows what selects beside the selection itself.
                let selector = std::mem::replace(&mut self.selector, Selector::ByPosition);
                if let Selector::OnHost(mut host) = selector {
                    let done = self.select_on_host(&mut host, ctx, layer);
                    self.selector = Selector::OnHost(host);
                    return done;
                }
            }
            Selector::OnHost(_) => {}
            Selector::Ranked(ranker) => self.rank(ranker, ctx, layer),
            Selector::Estimated(estimator) => self.estimate(estimator, ctx, layer),
        }
        Ok(())
    }

    /// The policy's own code, once the pass so far has run.
    fn select_on_host(
        &mut self,
        host: &mut OnHost,
        ctx: &mut Ctx<'_>,
        layer: usize,
    ) -> Result<(), ModelError> {
        let view = ctx.view(layer);
        let mut queries = host.read(ctx, layer, view)?;
        self.timings.append(&mut queries.timings);
        let dim = queries.head_dim;
        let mut selections = Vec::with_capacity(view.selecting.len());
        let mut masses = Vec::new();
        for (index, chosen) in view.selecting.iter().enumerate() {
            let tensors = host.tensors(chosen, &queries, layer, ctx.plan);
            let q = Heads::new("q", &tensors.q, [queries.num_heads, chosen.rows, dim])?;
            let k = Heads::new("k", &tensors.k, [self.num_kv_heads, chosen.kv_len(), dim])?;
            let selection = match self.source[layer] {
                Some(_) => host.last[index].clone(),
                None => self.options.select(chosen, layer, Some((q, k)), self.digests)?,
            };
            if self.options.measure {
                let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
                let measured = Measured { chosen, selection: &selection, layer, q, k };
                self.options.measure_into(attended, &measured)?;
            }
            if self.options.policy.certifies() {
                let block = self.options.policy.block_size();
                masses.push(selection_mass(&selection, &q, &k, block, self.digests)?);
            }
            selections.push(selection);
        }
        self.place(ctx.gpu, view, layer, &selections)?;
        host.last.clone_from(&selections);
        let masses = Some(&masses[..]).filter(|masses| !masses.is_empty());
        self.count(view, layer, selections, masses);
        Ok(())
    }
}
