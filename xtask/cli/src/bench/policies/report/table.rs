//! Values of a report's rows as text: a table for terminals, and the cells of the page's tables.

use models::grouped;
use pagoda::measured::MeasuredPolicy;

use super::row::{Compared, PolicyRow, compared};
use super::{KvDtype, recommendations};

/// Heads of [`values`].
pub(super) const HEADS: [&str; 10] = [
    "KV",
    "loss",
    "request",
    "prefill",
    "decode",
    "density",
    "decode tok/s",
    "tasks",
    "to finish",
    "KV memory",
];

/// The values of a row, in the order of [`HEADS`].
pub(super) fn values(row: &Compared<'_>) -> [String; 10] {
    let of = row.row;
    let times = |factor: f64| format!("{factor:.2} ×");
    let some = |value: Option<f64>, shown: fn(f64) -> String| value.map_or("-".into(), shown);
    [
        of.kv_dtype.to_string(),
        if row.is_reference() { "reference".into() } else { row.measured().say_loss() },
        times(row.request),
        times(row.prefill),
        times(row.decode),
        some(of.density(), |density| format!("{:.1} %", density * 100.0)),
        whole(of.decode_tok_s),
        some(of.answers.score(), |score| format!("{:.0} %", score * 100.0)),
        some(of.answers.tokens_to_finish(), |tokens| format!("{tokens:.0}")),
        pagoda::usage::readable(of.kv_bytes),
    ]
}

/// A number without digits after the point, with commas between thousands.
pub(super) fn whole(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates and bytes a token")]
    let value = value.round() as u32;
    grouped(value)
}

/// The recommendation for a limit of loss, as a sentence.
pub(super) fn sentence(limit: impl std::fmt::Display, taken: Option<&MeasuredPolicy>) -> String {
    match taken {
        Some(row) => format!("for at most {limit} loss take {row}"),
        None => {
            format!("for at most {limit} loss stay with dense attention: no policy that keeps it is faster")
        }
    }
}

/// Prints all rows, and the recommendations.
#[expect(clippy::print_stdout, reason = "the command's result")]
pub(super) fn print(rows: &[PolicyRow], kv_dtypes: &[KvDtype]) {
    let [own, ..] = kv_dtypes else { return };
    println!("{:>7} {:72} {}", "tokens", "policy", HEADS.map(|head| format!("{head:>17}")).concat());
    for kv_dtype in kv_dtypes {
        for row in compared(rows, *kv_dtype, *own) {
            let values = values(&row).map(|value| format!("{value:>17}")).concat();
            println!("{:>7} {:72} {values}", row.row.tokens, row.row.policy);
        }
    }
    let measured: Vec<MeasuredPolicy> = sparse(rows, *own);
    for (limit, taken) in recommendations(&measured) {
        println!("{}", sentence(limit, taken));
    }
}

/// The policies of a KV type, compared with dense attention of the same type.
pub(super) fn sparse(rows: &[PolicyRow], kv_dtype: KvDtype) -> Vec<MeasuredPolicy> {
    let rows = compared(rows, kv_dtype, kv_dtype);
    rows.iter().filter(|row| !row.is_dense()).map(Compared::measured).collect()
}
