//! The result of a policy.

use core::fmt;

use kvblock::BlockIdx;

/// Blocks selected for each group (a KV head, or one group for all heads) and query block (or one for all
/// queries).
///
/// Rows are stored like a CSR matrix, group-major: row `g * query_blocks + b` is
/// `indices[indptr[row] .. indptr[row + 1]]`, strictly ascending. Every query block can see a prefix of the
/// sequence's blocks, its *visible* blocks; a row never names others.
///
/// ```
/// use sparse_select::Selection;
///
/// // One set of blocks for all heads, two query blocks: the first sees two of four blocks.
/// let mut selection = Selection::new();
/// selection.begin_causal(4, 1, [2, 4]);
/// selection.push_row([0, 1]);
/// selection.push_row([0, 3]);
/// assert_eq!(selection.to_string(), "[0, 0] ##--\n[0, 1] #..#");
/// assert_eq!(selection.row(0, 1).len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    num_blocks: u32,
    groups: usize,
    /// `[query_blocks]`
    visible: Vec<u32>,
    /// `[rows + 1]`, first element 0
    indptr: Vec<u32>,
    indices: Vec<BlockIdx>,
}

impl Default for Selection {
    fn default() -> Self {
        Self::new()
    }
}

impl Selection {
    /// A selection without rows; [`Policy::select_into`](crate::Policy::select_into) fills it.
    #[must_use]
    pub fn new() -> Self {
        Self { num_blocks: 0, groups: 0, visible: Vec::new(), indptr: vec![0], indices: Vec::new() }
    }

    /// Empties the selection and sets its shape; every query block sees all `num_blocks` blocks. Keeps the
    /// allocations.
    pub fn begin(&mut self, num_blocks: u32, groups: usize, query_blocks: usize) {
        self.begin_causal(num_blocks, groups, core::iter::repeat_n(num_blocks, query_blocks));
    }

    /// Empties the selection and sets its shape; query block `b` sees the first `visible[b]` blocks.
    ///
    /// # Panics
    /// When a query block would see more than `num_blocks` blocks.
    pub fn begin_causal(&mut self, num_blocks: u32, groups: usize, visible: impl IntoIterator<Item = u32>) {
        self.num_blocks = num_blocks;
        self.groups = groups;
        self.visible.clear();
        self.visible.extend(visible);
        for &v in &self.visible {
            assert!(v <= num_blocks, "{v} visible blocks of {num_blocks}");
        }
        self.indptr.clear();
        self.indptr.push(0);
        self.indices.clear();
    }

    /// Appends the next row, in group-major order.
    ///
    /// # Panics
    /// When the row is not strictly ascending, names an invisible block, or there is no row left.
    pub fn push_row(&mut self, row: impl IntoIterator<Item = u32>) {
        let at = self.indptr.len() - 1;
        assert!(at < self.groups * self.query_blocks(), "row {at} of {}", self.groups * self.query_blocks());
        let visible = self.visible[at % self.query_blocks()];
        let mut previous = None;
        for block in row {
            assert!(block < visible, "block {block} of {visible} visible ones");
            assert!(previous.is_none_or(|p| p < block), "block {block} after {previous:?}");
            previous = Some(block);
            self.indices.push(BlockIdx::new(block));
        }
        self.indptr.push(count_u32(self.indices.len()));
    }

    /// Fills the remaining rows with all their visible blocks.
    pub fn fill_all(&mut self) {
        for row in self.indptr.len() - 1..self.groups * self.query_blocks() {
            self.push_row(0..self.visible[row % self.query_blocks()]);
        }
    }

    /// Replaces the selection with one row of all of `num_blocks` blocks, which serves all queries and heads.
    pub fn keep_all(&mut self, num_blocks: u32) {
        self.begin(num_blocks, 1, 1);
        self.fill_all();
    }

    /// Number of blocks of the sequence.
    #[must_use]
    pub const fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Number of groups: KV heads, or 1 if all heads share a set.
    #[must_use]
    pub const fn groups(&self) -> usize {
        self.groups
    }

    /// Number of query blocks; 1 if one set serves all queries.
    #[must_use]
    pub fn query_blocks(&self) -> usize {
        self.visible.len()
    }

    /// Number of blocks that query block `b` can see.
    #[must_use]
    pub fn visible(&self, b: usize) -> u32 {
        self.visible[b]
    }

    /// The blocks selected for a group and query block, strictly ascending.
    ///
    /// # Panics
    /// When the row does not exist or was never pushed.
    #[must_use]
    pub fn row(&self, group: usize, query_block: usize) -> &[BlockIdx] {
        assert!(group < self.groups && query_block < self.query_blocks(), "row [{group}, {query_block}]");
        let at = group * self.query_blocks() + query_block;
        &self.indices[self.indptr[at] as usize..self.indptr[at + 1] as usize]
    }

    /// Like [`row`](Self::row), for a selection whose groups or query blocks may be shared: a single group
    /// serves every KV head, and a single query block all queries.
    #[must_use]
    pub fn row_shared(&self, group: usize, query_block: usize) -> &[BlockIdx] {
        self.row(
            if self.groups == 1 { 0 } else { group },
            if self.query_blocks() == 1 { 0 } else { query_block },
        )
    }

    /// Start of every row in [`indices`](Self::indices), `[groups * query_blocks + 1]`, in the form that
    /// kernels take.
    #[must_use]
    pub fn indptr(&self) -> &[u32] {
        &self.indptr
    }

    /// All rows, concatenated.
    #[must_use]
    pub fn indices(&self) -> &[BlockIdx] {
        &self.indices
    }

    /// Drawing of one row, one character per block: `#` selected, `.` dropped, `-` not visible.
    #[must_use]
    pub fn strip(&self, group: usize, query_block: usize) -> Strip<'_> {
        Strip {
            row: self.row(group, query_block),
            visible: self.visible[query_block],
            num_blocks: self.num_blocks,
            sink: 0,
            recent: 0,
        }
    }
}

/// One line per row, which starts with `[group, query block]` if there is more than one.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.groups * self.query_blocks();
        for row in 0..rows {
            let (group, query_block) = (row / self.query_blocks(), row % self.query_blocks());
            if rows > 1 {
                write!(f, "[{group}, {query_block}] ")?;
            }
            write!(f, "{}", self.strip(group, query_block))?;
            if row + 1 < rows {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// One row as a line of text, such as `S..##.RR`; see [`Selection::strip`].
#[derive(Clone, Copy, Debug)]
pub struct Strip<'a> {
    row: &'a [BlockIdx],
    visible: u32,
    num_blocks: u32,
    sink: u32,
    recent: u32,
}

impl Strip<'_> {
    /// Draws selected blocks among the first `sink` as `S`, and among the last `recent` visible ones as `R`.
    #[must_use]
    pub const fn marks(mut self, sink: u32, recent: u32) -> Self {
        self.sink = sink;
        self.recent = recent;
        self
    }
}

impl fmt::Display for Strip<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.row;
        for block in 0..self.num_blocks {
            let selected = rest.first().is_some_and(|b| b.get() == block);
            if selected {
                rest = &rest[1..];
            }
            f.write_str(match selected {
                _ if block >= self.visible => "-",
                false => ".",
                true if block < self.sink => "S",
                true if block + self.recent >= self.visible => "R",
                true => "#",
            })?;
        }
        Ok(())
    }
}

/// A count of blocks, tokens or rows as u32.
///
/// # Panics
/// When the count exceeds `u32::MAX`.
#[must_use]
pub(crate) fn count_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or_else(|_| panic!("{n} items exceed the 32-bit index space"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_draw_sinks_recent_and_invisible_blocks() {
        let mut s = Selection::new();
        s.begin_causal(8, 2, [6, 8]);
        for row in [vec![0, 3, 5], vec![0, 1, 6, 7], vec![], vec![2]] {
            s.push_row(row);
        }
        assert_eq!(s.strip(0, 0).marks(1, 1).to_string(), "S..#.R--");
        assert_eq!(s.strip(0, 1).marks(1, 2).to_string(), "S#....RR");
        insta::assert_snapshot!(s, @"
        [0, 0] #..#.#--
        [0, 1] ##....##
        [1, 0] ......--
        [1, 1] ..#.....
        ");
        assert_eq!(s.indptr(), [0, 3, 7, 7, 8]);
    }

    #[test]
    #[should_panic(expected = "block 6 of 6 visible ones")]
    fn invisible_blocks_are_refused() {
        let mut s = Selection::new();
        s.begin_causal(8, 1, [6]);
        s.push_row([6]);
    }

    #[test]
    #[should_panic(expected = "block 3 after Some(3)")]
    fn repeated_blocks_are_refused() {
        let mut s = Selection::new();
        s.begin(8, 1, 1);
        s.push_row([3, 3]);
    }
}
