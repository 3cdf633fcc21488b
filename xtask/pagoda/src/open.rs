//! From a model to an engine that runs, in one line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use derive_setters::Setters;

use crate::engine::Engine;
use crate::error::Error;
use crate::handle::{EngineHandle, HandleOptions};
use crate::model::Model;
use crate::options::{Demand, EngineOptions};

/// Number of sequences that run at a time by default.
const SEQUENCES: u32 = 8;

/// Prepares an engine for a model: a path or a name that [`Model::open`] takes, or a [`Model`].
pub fn open(model: impl Into<ModelSource>) -> EngineBuilder {
    EngineBuilder {
        model: model.into(),
        sequences: SEQUENCES,
        options: EngineOptions::new(),
        bounds: HandleOptions::default().recover(true),
    }
}

/// A model, or the path of one.
#[derive(Debug)]
pub struct ModelSource(Source);

#[derive(Debug)]
enum Source {
    Path(PathBuf),
    Model(Arc<Model>),
}

impl From<&str> for ModelSource {
    fn from(path: &str) -> Self {
        PathBuf::from(path).into()
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        path.to_owned().into()
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        Self(Source::Path(path))
    }
}

impl From<Model> for ModelSource {
    fn from(model: Model) -> Self {
        Arc::new(model).into()
    }
}

impl From<Arc<Model>> for ModelSource {
    fn from(model: Arc<Model>) -> Self {
        Self(Source::Model(model))
    }
}

/// An engine that is not open yet, with room for 8 sequences of the model's context length unless something else is said. It
/// [is opened anew](HandleOptions::recover) if its device is lost.
#[derive(Debug, Setters)]
#[must_use = "nothing is opened before `spawn`"]
pub struct EngineBuilder {
    #[setters(skip)]
    model: ModelSource,
    /// Maximum number of sequences that run at a time; others wait.
    sequences: u32,
    /// All options of the engine, the context included. If they state a [`Demand`], it takes the place of the number of
    /// sequences.
    options: EngineOptions,
    /// All bounds of the handle.
    bounds: HandleOptions,
}

impl EngineBuilder {
    /// Sets the maximum number of tokens of a sequence, prompt and answer together, up to the model's context length.
    pub fn context(mut self, tokens: u32) -> Self {
        self.options.max_context = Some(tokens);
        self
    }

    /// Opens the model and the engine, and moves the engine to a thread of its own.
    ///
    /// # Errors
    /// Those of [`Model::open`], [`Engine::open`] and [`EngineHandle::spawn`].
    pub fn spawn(self) -> Result<EngineHandle, Error> {
        let Self { model, sequences, mut options, bounds } = self;
        let model = match model.0 {
            Source::Path(path) => Arc::new(Model::open(path)?),
            Source::Model(model) => model,
        };
        let longest = u64::from(options.context_within(model.config.context_length));
        let demand = Demand::new(sequences, longest.saturating_mul(sequences.into())).longest(longest);
        options.demand.get_or_insert(demand);
        EngineHandle::spawn(Engine::open(model, options)?, bounds)
    }
}
