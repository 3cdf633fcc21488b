//! Parts that a role has several tensors of.

/// A tensor of a compressor, for vectors of `dim` elements and `windows` windows per entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressorPart {
    /// Projection to the values that an entry sums, `[windows * dim, hidden_size]`.
    Kv,
    /// Projection to the logits of the weights in an entry's sum, in the shape of `Kv`.
    Gate,
    /// Bias of the logits by position in a window, `[ratio, windows * dim]`.
    Bias,
    /// RMS norm of entries, `[dim]`.
    Norm,
}

/// A tensor of a hyper-connection, which computes `mixes` numbers from `streams` streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HyperPart {
    /// Projection to the mixing coefficients, `[mixes, streams * hidden_size]`.
    Mix,
    /// Bias of the mixing coefficients, `[mixes]`.
    Base,
    /// Factor of each kind of coefficient, `[3]`; `[1]` in the merge before the output head.
    Scale,
}

impl CompressorPart {
    /// Selects the names of this part from those of all parts.
    pub(super) fn pick(self, names: &[&'static [&'static str]; 4]) -> &'static [&'static str] {
        names[self as usize]
    }
}

impl HyperPart {
    /// Selects the names of this part from those of all parts.
    pub(super) fn pick(self, names: &[&'static [&'static str]; 3]) -> &'static [&'static str] {
        names[self as usize]
    }
}
