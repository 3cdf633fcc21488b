//! Counts of the blocks that slices attended.

use kvblock::BlockIdx;
use sparse_select::Selection;

use crate::cast::u32_of;

/// Block counts of a layer, summed over KV heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of blocks attended.
    pub blocks: u64,
    /// Number of visible blocks.
    pub visible: u64,
}

/// Running mean of measured values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: u64,
}

/// Blocks that one slice attended under a policy, in layers of full attention. Rows that attend everything count all blocks.
/// Layers with windows or chunks are not affected by a policy, and are not counted. If the model's own indexer selects, a block
/// is a token, or an entry of a compressed cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attended {
    /// Blocks of each layer.
    pub layers: Vec<Tally>,
    /// Lower bound of the attention mass that the attended blocks have, as the minimum over layers and query heads;
    /// `None` if it was not requested or the policy gives no bound. The mass of a sink is not counted, so with sinks even
    /// less of the whole is lost.
    pub mass: Option<f64>,
    /// Blocks that any layer attended, ascending, for policies that use earlier accesses; empty otherwise.
    pub accessed: Vec<BlockIdx>,
    /// `(layer, selection)`, if [`SparseOptions::trace`](crate::SparseOptions::trace) or
    /// [`trace_selections`](crate::Decoder::trace_selections) requests them.
    pub selections: Vec<(u32, Selection)>,
    /// Share of dense attention's mass in the attended blocks, if [`SparseOptions::measure`](crate::SparseOptions::measure)
    /// requests it.
    pub recall: Mean,
    /// Share of blocks that query heads select before their selections are merged, if it is requested and the policy merges them.
    pub head_density: Mean,
}

impl Tally {
    /// Attended blocks divided by visible blocks; 1 if there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn density(self) -> f64 {
        if self.visible == 0 { 1.0 } else { self.blocks as f64 / self.visible as f64 }
    }

    fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.visible += other.visible;
    }
}

impl Mean {
    /// Adds one value.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// Adds the values of another mean.
    pub fn join(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// Returns the mean; `None` without values.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

impl Attended {
    /// Adds the counts of another slice of the same sequence.
    pub fn add(&mut self, other: &Self) {
        self.add_layers(other, 0);
    }

    fn add_layers(&mut self, other: &Self, first_layer: usize) {
        for (layer, tally) in (first_layer..).zip(&other.layers) {
            self.count(layer, *tally);
        }
        self.lower_mass(other.mass);
        self.recall.join(other.recall);
        self.head_density.join(other.head_density);
    }

    /// Adds the counts of other rows, or of other layers that begin with number `first_layer` of the model.
    pub(crate) fn join(own: &mut Option<Self>, other: Option<Self>, first_layer: usize) {
        let Some(other) = other else { return };
        let own = own.get_or_insert_default();
        own.add_layers(&other, first_layer);
        own.accessed.extend(other.accessed);
        own.accessed.sort_unstable();
        own.accessed.dedup();
        let first_layer = u32_of(first_layer);
        own.selections
            .extend(other.selections.into_iter().map(|(layer, chosen)| (first_layer + layer, chosen)));
    }

    /// Adds the counts of a layer.
    pub fn count(&mut self, layer: usize, tally: Tally) {
        self.layers.resize(self.layers.len().max(layer + 1), Tally::default());
        self.layers[layer].add(tally);
    }

    /// Returns the sum over all layers.
    #[must_use]
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.layers.iter().for_each(|tally| total.add(*tally));
        total
    }

    /// Lowers the bound of the kept attention mass to the minimum of itself and `bounds`.
    pub(crate) fn lower_mass(&mut self, bounds: impl IntoIterator<Item = f64>) {
        self.mass = self.mass.into_iter().chain(bounds).reduce(f64::min);
    }

    /// Attended blocks divided by visible blocks of all layers; 1 if there were none.
    #[must_use]
    pub fn density(&self) -> f64 {
        self.total().density()
    }
}
