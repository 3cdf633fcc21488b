//! Indices that a kernel makes for a later one, and their check.

use serde::Serialize;

/// The order of indices in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// A count n, then n ascending indices; the words after them are not checked.
    List,
    /// Distinct indices, in any order.
    Different,
}

/// Rules for the indices in a buffer, which consists of runs of `stride` words.
#[derive(Clone, Debug, Serialize)]
pub struct Indices {
    /// Order of the indices of a run.
    pub order: Order,
    /// Number of words from one run to the next.
    pub stride: usize,
    /// Exclusive upper bound of the indices of each run.
    pub limits: Vec<u32>,
    /// Word that stands for the absence of an index.
    pub none: Option<u32>,
}

impl Indices {
    /// Returns a description of the first index that a later kernel could not use.
    pub(crate) fn check(&self, words: &[u32]) -> Result<(), String> {
        let runs = words.chunks_exact(self.stride).zip(&self.limits);
        assert_eq!(runs.len(), self.limits.len(), "a limit for each run");
        for (run, (words, limit)) in runs.enumerate() {
            let indices = match self.order {
                Order::Different => words,
                Order::List => {
                    let count = words[0] as usize;
                    words[1..].get(..count).ok_or_else(|| {
                        format!("list {run} of {} words counts {count} indices", self.stride)
                    })?
                }
            };
            if let Some(index) = indices.iter().find(|index| *index >= limit && Some(**index) != self.none) {
                return Err(format!("run {run} has index {index}, the limit is {limit}"));
            }
            let mut sorted = indices.to_vec();
            if self.order == Order::Different {
                sorted.sort_unstable();
            }
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] >= pair[1]) {
                return Err(format!("run {run} has index {} and then {}", pair[0], pair[1]));
            }
        }
        Ok(())
    }
}
