//! The JSON of a report, which its page draws: rows compared with dense attention, and the recommendation for each limit of
//! loss.

use pagoda::measured::MeasuredPolicy;
use serde::Serialize;
use serde_json::{Value, json};

use super::row::{Compared, PolicyRow, compared, front};
use super::table::{HEADS, sparse, values};
use super::{Facts, KvDtype, recommendations};

/// Limit of loss in the sentence at the top of the page.
const LEAD: &str = "0.5%";

/// A row compared with the dense row of the first KV type.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    /// Number of the row in the table of its length and KV type.
    index: usize,
    kv_dtype: &'static str,
    tokens: u32,
    policy: &'a str,
    loss: f64,
    loss_error: f64,
    /// Loss in words.
    says: String,
    request: f64,
    density: Option<f64>,
    prefill_tok_s: f64,
    decode_tok_s: f64,
    kv_bytes: u64,
    kv_bytes_a_token: f64,
    /// Whether the row has the first KV type, and no other row of its table beats it in both loss and speed.
    front: bool,
    /// Cells of the row, in the columns of [`HEADS`].
    values: [String; HEADS.len()],
}

/// The JSON about `rows`, whose first KV type is what all others are compared with.
pub(super) fn results(facts: &Facts, rows: &[PolicyRow], kv_dtypes: &[KvDtype]) -> Value {
    let own = kv_dtypes.first().copied().unwrap_or(KvDtype::F16);
    let mut lengths: Vec<u32> = rows.iter().map(|row| row.tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let places = kv_dtypes.iter().flat_map(|kv_dtype| lengths.iter().map(move |tokens| (*kv_dtype, *tokens)));
    let shown: Vec<Shown<'_>> =
        places.flat_map(|(kv_dtype, tokens)| at(rows, tokens, kv_dtype, own)).collect();
    let measured = sparse(rows, own);
    let taken = |row: &MeasuredPolicy| json!({ "spec": row.spec, "tokens": row.tokens, "speedup": row.speedup, "says": row.say_loss() });
    let recommended: Vec<Value> = recommendations(&measured)
        .into_iter()
        .map(|(limit, row)| json!({ "limit": limit.to_string(), "taken": row.map(taken) }))
        .collect();
    json!({ "facts": facts, "lead": LEAD, "recommendations": recommended, "heads": HEADS, "rows": shown })
}

/// Rows of a length and KV type, compared with dense attention of the first KV type.
fn at<'a>(rows: &'a [PolicyRow], tokens: u32, kv_dtype: KvDtype, own: KvDtype) -> Vec<Shown<'a>> {
    let mut here = compared(rows, kv_dtype, own);
    here.retain(|row| row.row.tokens == tokens);
    let best = front(&here);
    let shown = |(index, (row, best)): (usize, (&Compared<'a>, bool))| Shown {
        index,
        kv_dtype: kv_dtype.name(),
        tokens,
        policy: &row.row.policy,
        loss: row.loss,
        loss_error: row.loss_error,
        says: if row.is_reference() { "reference".into() } else { row.measured().say_loss() },
        request: row.request,
        density: row.row.density(),
        prefill_tok_s: row.row.prefill_tok_s,
        decode_tok_s: row.row.decode_tok_s,
        kv_bytes: row.row.kv_bytes,
        kv_bytes_a_token: row.row.kv_bytes_a_token(),
        front: best && kv_dtype == own,
        values: values(row),
    };
    here.iter().zip(best).enumerate().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::super::row::{DENSE, example};
    use super::*;

    fn rows() -> Vec<PolicyRow> {
        let of = |kv_dtype, request_s| {
            [
                example(DENSE, kv_dtype, 8192, 0.0, request_s),
                example("quest:page_budget=52", kv_dtype, 8192, 0.004, request_s / 2.0),
                example("flashprefill+quest:page_budget=7", kv_dtype, 8192, 0.1, request_s / 4.0),
            ]
        };
        [of(KvDtype::F16, 4.0), of(KvDtype::Int8, 3.0)].concat()
    }

    #[test]
    fn rows_stand_beside_dense_attention_and_limits_have_a_policy() {
        let results = results(&Facts::example(), &rows(), &[KvDtype::F16, KvDtype::Int8]);
        let limits = results["recommendations"].as_array().unwrap();
        let of = |limit: &str| &limits.iter().find(|of| of["limit"] == limit).unwrap()["taken"];
        assert_eq!((&of(LEAD)["spec"], &of(LEAD)["speedup"]), (&json!("quest:page_budget=52"), &json!(2.0)));
        assert_eq!(of("0.1%"), &Value::Null);
        let rows = results["rows"].as_array().unwrap();
        let told =
            |at: usize| [&rows[at]["kv_dtype"], &rows[at]["policy"], &rows[at]["says"], &rows[at]["front"]];
        assert_eq!(told(0), [&json!("f16"), &json!(DENSE), &json!("reference"), &json!(true)]);
        // int8 is compared with dense attention on f16, and so with what the reader has without either.
        assert_eq!(told(3)[3], &json!(false));
        assert!((rows[3]["request"].as_f64().unwrap() - 4.0 / 3.0).abs() < 1e-9, "{}", rows[3]);
    }
}
