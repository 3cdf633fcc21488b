//! `pagoda tokenize`: the token ids of a text, in the form that `--ids-file` takes.

use std::io;

use anyhow::Result;
use pagoda::Model;

use crate::cli::TokenizeArgs;
use crate::{default_model, generate, report};

/// Prints the ids as one JSON list, the beginning of a sequence included where the model has one.
///
/// # Errors
///
/// If the model has no tokenizer, or the text cannot be read.
pub fn run(args: &TokenizeArgs) -> Result<()> {
    let model = Model::open(default_model::resolve(args.model.as_deref())?)?;
    let text = match &args.file {
        Some(path) => generate::read_text(path)?,
        None => args.text.clone().unwrap_or_default(),
    };
    let ids = model.tokenizer()?.encode(&text, !args.no_special)?;
    report::json_line(&mut io::stdout().lock(), &ids)?;
    Ok(())
}
