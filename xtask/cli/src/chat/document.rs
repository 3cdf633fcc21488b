//! Documents that are put before a message.

use std::path::Path;

use anyhow::{Result, bail};

use crate::generate::read_text;

/// The text of a file.
///
/// # Errors
/// If it cannot be read or is no text, with its name.
pub(super) fn read(path: &Path) -> Result<String> {
    let is_pdf = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("pdf"));
    if is_pdf && cfg!(not(feature = "pdf")) {
        bail!(
            "{}: this build lacks the feature `pdf`; `pdftotext {0} notes.txt` makes a file of it",
            path.display()
        );
    }
    let text = read_text(path)?;
    if text.trim().is_empty() {
        bail!("{}: there is no text in it", path.display());
    }
    Ok(text)
}
