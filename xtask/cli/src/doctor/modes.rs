//! Modes of attention and of the KV cache in the report.

use std::fmt;

use models::{AttentionForm, Mode};
use serde::Serialize;

use super::line;

/// Mode that does not work with a form of attention.
#[derive(Debug, Serialize)]
pub struct Refused {
    /// Attention of the model.
    pub attention: String,
    /// The mode.
    pub mode: String,
    /// Condition of the mode that the model does not meet.
    pub needs: &'static str,
}

impl Refused {
    /// Lists every pair of a mode and a form of attention that do not work together.
    pub(super) fn all() -> Vec<Self> {
        let refused = |form: AttentionForm, mode: Mode| {
            let row = |needs| Self { attention: form.to_string(), mode: mode.to_string(), needs };
            mode.lacks(form).map(row)
        };
        let of_form = |form| Mode::ALL.into_iter().filter_map(move |mode| refused(form, mode));
        AttentionForm::ALL.into_iter().flat_map(of_form).collect()
    }
}

/// Lists the modes that do not work, grouped by attention and missing condition.
pub(super) fn write(f: &mut fmt::Formatter<'_>, refused: &[Refused]) -> fmt::Result {
    let same = |a: &Refused, b: &Refused| a.attention == b.attention && a.needs == b.needs;
    for (index, rows) in refused.chunk_by(same).enumerate() {
        let label = if index == 0 { "modes" } else { "" };
        let modes: Vec<_> = rows.iter().map(|row| row.mode.as_str()).collect();
        let Refused { attention, needs, .. } = &rows[0];
        line(f, label, format_args!("{attention}: not {}, which needs {needs}", modes.join(", nor ")))?;
    }
    Ok(())
}
