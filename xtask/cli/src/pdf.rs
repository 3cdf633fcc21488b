//! The text of PDF files.
//!
//! Compressed streams are unpacked whole: this version of lopdf, the newest that pdf-extract takes, has no limit of their sizes.

use std::fmt::{self, Write};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use pdf_extract::encryption::DecryptionError;
use pdf_extract::{ConvertToFmt, Document, Error, OutputError, PlainTextOutput, output_doc_page};

/// Maximum size of a PDF file in bytes.
const MAX_BYTES: usize = 256 << 20;

/// Maximum number of bytes of text: some 16 million tokens.
const MAX_TEXT: usize = 64 << 20;

/// Stack size in bytes of the thread that reads a PDF, whose objects may be deeply nested.
const STACK: usize = 64 << 20;

/// Whether a file that begins with these bytes is a PDF.
pub(crate) fn is_pdf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"%PDF-")
}

/// The text of a PDF in the order in which its pages draw it, with an empty line between pages.
///
/// # Errors
/// If the file is broken, encrypted or too large, or contains pictures only.
pub(crate) fn text(bytes: Vec<u8>) -> Result<String> {
    let size = bytes.len();
    ensure!(size <= MAX_BYTES, "a PDF of {size} bytes; at most {MAX_BYTES} are read");
    // The library panics at some files that break the format.
    let reader = thread::Builder::new().name("read-pdf".to_owned()).stack_size(STACK);
    let reader = reader.spawn(move || extract(&bytes)).context("no thread to read a PDF with")?;
    reader.join().unwrap_or_else(|_| bail!("a broken PDF: its reader gave up"))
}

fn extract(bytes: &[u8]) -> Result<String> {
    let mut document = Document::load_mem(bytes).map_err(refused)?;
    if document.is_encrypted() {
        // Whoever may read needs no password if only changes are protected.
        document.decrypt("").map_err(refused)?;
    }
    let mut text = Bounded(String::new());
    let pages = document.get_pages();
    for page in pages.keys() {
        let mut output = PlainTextOutput::new(&mut text);
        output_doc_page(&document, &mut output, *page).map_err(|error| match error {
            OutputError::FormatError(_) => anyhow!("a PDF with more than {MAX_TEXT} bytes of text"),
            OutputError::PdfError(error) => refused(error).context(format!("page {page}")),
            error => anyhow!("a broken PDF: page {page}: {error}"),
        })?;
        text.0.push_str("\n\n");
    }
    let text = plain(&text.0);
    let pages = pages.len();
    ensure!(
        !text.is_empty(),
        "a PDF of {pages} pages without text: pictures are not read, OCR makes text of them"
    );
    Ok(text)
}

fn refused(error: Error) -> anyhow::Error {
    match error {
        Error::Decryption(DecryptionError::IncorrectPassword) => {
            anyhow!("an encrypted PDF: it needs a password; `qpdf --decrypt --password=..` makes one without")
        }
        Error::Decryption(error) => anyhow!("an encrypted PDF that cannot be read: {error}"),
        error => anyhow!("a broken PDF: {error}"),
    }
}

/// Replaces ligatures by letters, and the several spaces that justify a line by one space.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.trim().lines() {
        let words = line.split_whitespace().flat_map(|word| [" ", word]).skip(1);
        for char in words.flat_map(str::chars) {
            match char {
                '\u{fb00}' => plain.push_str("ff"),
                '\u{fb01}' => plain.push_str("fi"),
                '\u{fb02}' => plain.push_str("fl"),
                '\u{fb03}' => plain.push_str("ffi"),
                '\u{fb04}' => plain.push_str("ffl"),
                '\u{fb05}' | '\u{fb06}' => plain.push_str("st"),
                other => plain.push(other),
            }
        }
        plain.push('\n');
    }
    plain
}

/// Text that is cut off at [`MAX_TEXT`] bytes.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

impl<'a> ConvertToFmt for &'a mut Bounded {
    type Writer = &'a mut Bounded;

    fn convert(self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const COLUMNS: &[u8] = include_bytes!("../tests/fixtures/pdf/columns.pdf");

    #[test]
    fn columns_are_read_one_after_the_other() {
        insta::assert_snapshot!(text(COLUMNS.to_vec()).unwrap(), @r"
        On filing

        The first column: five flies
        had filled the office.
        Naïve café: “12 €”.
        The second column: the flux
        of a fluid. Last words.
        ");
    }

    #[test]
    fn what_has_no_text_is_refused_by_name() {
        let picture = include_bytes!("../tests/fixtures/pdf/picture.pdf");
        let locked = include_bytes!("../tests/fixtures/pdf/locked.pdf");
        let cut = &COLUMNS[..COLUMNS.len() / 2];
        for (bytes, told) in [
            (&picture[..], "a PDF of 1 pages without text"),
            (locked, "an encrypted PDF: it needs a password"),
            (cut, "a broken PDF"),
            (b"%PDF-1.7", "a broken PDF"),
        ] {
            let error = text(bytes.to_vec()).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let mut text = Bounded("x".repeat(MAX_TEXT));
        assert_eq!(text.write_str("y"), Err(fmt::Error));
    }

    #[test]
    fn prompts_are_read_from_a_pdf() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pdf");
        let read = |name| crate::generate::read_text(&Path::new(folder).join(name));
        assert!(read("columns.pdf").unwrap().contains("five flies"));
        let error = format!("{:#}", read("locked.pdf").unwrap_err());
        assert!(error.contains("locked.pdf: an encrypted PDF"), "{error}");
    }

    /// Every 29th byte of the file is another one.
    #[test]
    fn damage_is_an_error_or_other_text() {
        for at in (0..COLUMNS.len()).step_by(29) {
            let mut bytes = COLUMNS.to_vec();
            bytes[at] ^= 0x15;
            let _ = text(bytes).map_err(|error| assert!(!error.to_string().is_empty(), "{at}"));
        }
    }
}
