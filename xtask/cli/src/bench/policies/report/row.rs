//! Measurements of a report: a policy with one KV type at one length, and how it compares with dense attention.

use pagoda::KvDtype;
use pagoda::measured::MeasuredPolicy;
use serde::{Deserialize, Serialize, Serializer};

use super::super::cells::Kept;
use crate::bench::measure::count;

/// Name of dense attention, the first policy of every KV type and length.
pub(super) const DENSE: &str = "full";

/// A policy on one KV type and length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::bench::policies) struct PolicyRow {
    /// Model, device and everything else that a result depends on except the keys below.
    pub(in crate::bench::policies) setup: String,
    #[serde(serialize_with = "name")]
    pub(super) kv_dtype: KvDtype,
    /// Number of tokens of the prompt.
    pub(super) tokens: u32,
    /// SPEC of the policy.
    pub(super) policy: String,
    /// Negative log likelihood of each token after the prompt, in nats.
    pub(super) nll: Vec<f32>,
    /// Attended share of the blocks in prefill and, in the next field, in decode; 1 if the policy leaves the phase
    /// dense, none if it was not counted.
    pub(super) prefill_density: Option<f64>,
    pub(super) decode_density: Option<f64>,
    pub(super) prefill_tok_s: f64,
    pub(super) decode_tok_s: f64,
    /// Seconds of a request: the prompt, and an answer of the plan's length.
    pub(super) request_s: f64,
    /// Bytes of the KV of prompt and scored tokens.
    pub(super) kv_bytes: u64,
    /// Answers to the plan's tasks.
    pub(super) answers: Answers,
}

fn name<S: Serializer>(kv_dtype: &KvDtype, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kv_dtype)
}

/// Answers to prompts that have one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Answers {
    pub(super) asked: u32,
    /// Sum, over all answers, of the share of the expected texts that the answer contains.
    pub(super) found: f64,
    /// Number of answers that the model ended by itself; the next field is the number of their tokens.
    pub(super) ended: u32,
    pub(super) ended_tokens: u32,
}

impl Answers {
    /// Share of the expected texts that was found.
    pub(super) fn score(self) -> Option<f64> {
        (self.asked > 0).then(|| self.found / f64::from(self.asked))
    }

    /// Mean number of tokens of the answers that the model ended by itself.
    pub(super) fn tokens_to_finish(self) -> Option<f64> {
        (self.ended > 0).then(|| f64::from(self.ended_tokens) / f64::from(self.ended))
    }
}

impl Kept for PolicyRow {
    type Key = (String, KvDtype, u32, String);

    fn key(&self) -> Self::Key {
        (self.setup.clone(), self.kv_dtype, self.tokens, self.policy.clone())
    }
}

impl PolicyRow {
    fn mean_nll(&self) -> f64 {
        mean(self.nll.iter().map(|nll| f64::from(*nll)))
    }

    /// The smaller density of the two phases: the density of the phase in which the policy drops most.
    pub(super) fn density(&self) -> Option<f64> {
        [self.prefill_density, self.decode_density].into_iter().flatten().reduce(f64::min)
    }

    /// Bytes of KV per token, over all layers. If some layers have windows, the number falls as the prompt gets
    /// longer.
    pub(super) fn kv_bytes_a_token(&self) -> f64 {
        count(self.kv_bytes) / (f64::from(self.tokens) + count(self.nll.len() as u64))
    }
}

/// A row compared with a dense one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compared<'a> {
    pub(super) row: &'a PolicyRow,
    /// Mean negative log likelihood divided by that of the dense row, minus 1; the next field is its standard error.
    pub(super) loss: f64,
    pub(super) loss_error: f64,
    /// Speed of prefill as a multiple of the dense row's speed; the next fields are the speeds of decode and of a
    /// request.
    pub(super) prefill: f64,
    pub(super) decode: f64,
    pub(super) request: f64,
}

impl<'a> Compared<'a> {
    /// Compares a row with the dense one of the same tokens.
    pub(super) fn new(row: &'a PolicyRow, dense: &PolicyRow) -> Self {
        let differences = || row.nll.iter().zip(&dense.nll).map(|(a, b)| f64::from(*a) - f64::from(*b));
        let (by, of) = (mean(differences()), dense.mean_nll());
        let tokens = count(row.nll.len() as u64);
        let variance = differences().map(|d| (d - by).powi(2)).sum::<f64>() / (tokens - 1.0).max(1.0);
        Self {
            row,
            loss: by / of,
            loss_error: (variance / tokens).sqrt() / of,
            prefill: row.prefill_tok_s / dense.prefill_tok_s,
            decode: row.decode_tok_s / dense.decode_tok_s,
            request: dense.request_s / row.request_s,
        }
    }

    /// The values by which a policy is chosen.
    pub(super) fn measured(&self) -> MeasuredPolicy {
        MeasuredPolicy {
            spec: self.row.policy.clone(),
            tokens: self.row.tokens,
            loss: self.loss,
            loss_error: self.loss_error,
            speedup: self.request,
        }
    }

    /// Whether the row is the one that others are compared with.
    pub(super) fn is_reference(&self) -> bool {
        self.is_dense() && self.loss == 0.0 && self.loss_error == 0.0
    }

    /// Whether the row measures dense attention.
    pub(super) fn is_dense(&self) -> bool {
        self.row.policy == DENSE
    }
}

/// Rows of `kv_dtype`, each compared with the dense row of its length in `dense_kv`. Rows without a dense one are left out.
pub(super) fn compared(rows: &[PolicyRow], kv_dtype: KvDtype, dense_kv: KvDtype) -> Vec<Compared<'_>> {
    let dense = |tokens| {
        let mut all = rows.iter();
        all.find(|row| row.policy == DENSE && row.tokens == tokens && row.kv_dtype == dense_kv)
    };
    let of_type = rows.iter().filter(|row| row.kv_dtype == kv_dtype);
    of_type.filter_map(|row| Some(Compared::new(row, dense(row.tokens)?))).collect()
}

/// True for each row that no other one beats in both loss and speed.
pub(super) fn front(rows: &[Compared<'_>]) -> Vec<bool> {
    let beats = |a: &Compared<'_>, b: &Compared<'_>| {
        a.loss <= b.loss && a.request >= b.request && (a.loss < b.loss || a.request > b.request)
    };
    rows.iter().map(|row| !rows.iter().any(|other| beats(other, row))).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0u64), |(sum, n), value| (sum + value, n + 1));
    sum / count(n.max(1))
}

#[cfg(test)]
pub(in crate::bench::policies) fn example(
    policy: &str,
    kv_dtype: KvDtype,
    tokens: u32,
    worse: f32,
    request_s: f64,
) -> PolicyRow {
    PolicyRow {
        setup: "model on device".into(),
        kv_dtype,
        tokens,
        policy: policy.into(),
        nll: vec![2.0 + worse, 3.0 + worse, 1.0 + worse, 2.0],
        prefill_density: Some(1.0),
        decode_density: Some(if policy == DENSE { 1.0 } else { 0.1 }),
        prefill_tok_s: 10_000.0,
        decode_tok_s: 100.0 / request_s,
        request_s,
        kv_bytes: 1000 * u64::from(tokens + 4),
        answers: Answers { asked: 3, found: 2.0, ended: 2, ended_tokens: 21 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_compared_with_the_dense_one_token_by_token() {
        let dense = example(DENSE, KvDtype::F16, 8192, 0.0, 4.0);
        let quest = example("quest", KvDtype::F16, 8192, 0.04, 2.0);
        let compared = Compared::new(&quest, &dense);
        assert!((compared.loss - 0.015).abs() < 1e-6, "{compared:?}");
        // Differences of 0.04 three times and 0 once have a standard deviation of 0.02; over four tokens, and a mean of 2.
        assert!((compared.loss_error - 0.02 / 2.0 / 2.0).abs() < 1e-6, "{compared:?}");
        assert_eq!((compared.request, compared.prefill, compared.decode), (2.0, 1.0, 2.0));
        assert!((quest.kv_bytes_a_token() - 1000.0).abs() < 1e-9);
        assert_eq!((quest.answers.score(), quest.answers.tokens_to_finish()), (Some(2.0 / 3.0), Some(10.5)));
        let itself = Compared::new(&dense, &dense);
        assert_eq!((itself.loss, itself.loss_error, itself.request), (0.0, 0.0, 1.0));
    }

    #[test]
    fn a_kv_type_is_compared_with_its_own_dense_rows_or_with_those_of_another() {
        let rows = [
            example(DENSE, KvDtype::F16, 8192, 0.0, 4.0),
            example(DENSE, KvDtype::Int8, 8192, 0.04, 2.0),
            example("quest", KvDtype::Int8, 8192, 0.08, 1.0),
            example("quest", KvDtype::Int8, 512, 0.08, 1.0),
        ];
        let speeds =
            |of| compared(&rows, KvDtype::Int8, of).iter().map(|row| row.request).collect::<Vec<_>>();
        assert_eq!((speeds(KvDtype::Int8), speeds(KvDtype::F16)), (vec![1.0, 2.0], vec![2.0, 4.0]));
    }

    #[test]
    fn the_front_is_what_nothing_beats_in_both() {
        let rows = [
            example(DENSE, KvDtype::F16, 8192, 0.0, 4.0),
            example("quest:page_budget=205", KvDtype::F16, 8192, 0.02, 2.0),
            example("quest:page_budget=51", KvDtype::F16, 8192, 0.1, 1.0),
            example("esa", KvDtype::F16, 8192, 0.05, 2.0),
            example("slow", KvDtype::F16, 8192, 0.01, 5.0),
        ];
        let rows = compared(&rows, KvDtype::F16, KvDtype::F16);
        assert_eq!(front(&rows), [true, true, true, false, false]);
    }
}
