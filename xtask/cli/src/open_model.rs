//! Opens the model of a command, as its flags say. The default model is fetched first.

use std::sync::Arc;

use anyhow::Result;
use pagoda::Model;

use crate::cli::EngineArgs;
use crate::{auto, default_model};

/// Opens `--model` or `--random`, or the default model, which the first use fetches. With `--sparse auto:loss=..`, also takes the
/// policy.
///
/// # Errors
/// If the checkpoint is missing or broken, with its path, or could not be fetched, and if policies cannot be measured.
pub fn open_model(args: &EngineArgs) -> Result<Arc<Model>> {
    let model = match &args.random {
        Some(spec) => Model::random(spec.clone())?,
        None => Model::open(default_model::resolve(args.model.as_deref())?)?,
    };
    let model = match args.quantize {
        Some(dtype) => model.quantize(dtype)?,
        None => model,
    };
    let model = Arc::new(model);
    auto::settle(args, &model)?;
    Ok(model)
}
