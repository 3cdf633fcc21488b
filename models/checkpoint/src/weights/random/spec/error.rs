//! Errors of the text form of random models.

use std::path::PathBuf;

use super::SHAPES;
use crate::{ConfigError, Dtype};

/// Error of parsing the text form of a random model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RandomError {
    /// The shape is neither a built-in one nor a RON file.
    #[error(
        "unknown shape {shape:?}; shapes are {known}, and RON files by path",
        known = SHAPES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
    )]
    Shape {
        /// The shape as given.
        shape: String,
    },
    /// No storage type has this name.
    #[error(
        "unknown type {name:?}; types are {known}",
        known = Dtype::ALL.map(|dtype| dtype.name().to_lowercase()).join(" ")
    )]
    Type {
        /// The name as given.
        name: String,
    },
    /// No option has this key.
    #[error("unknown key {key:?}; keys are layers context seed alike")]
    Key {
        /// The key as given.
        key: String,
    },
    /// A value has the wrong form for its option.
    #[error("{key}={value} is not {rule}")]
    Value {
        /// The option.
        key: String,
        /// Value of the field.
        value: String,
        /// The values that the option takes.
        rule: &'static str,
    },
    /// The number of layers is 0, or more than the shape has.
    #[error("layers={layers}: {shape} has 1 to {max}")]
    Layers {
        /// The number of layers as given.
        layers: u32,
        /// Number of layers of the shape.
        max: u32,
        /// The shape.
        shape: String,
    },
    /// The file system refused.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file does not describe a shape.
    #[error("shape {shape} is not readable: {source}")]
    Ron {
        /// The name or path.
        shape: String,
        /// The defect.
        source: Box<ron::error::SpannedError>,
    },
    /// The shape's configuration is invalid or not supported.
    #[error("shape {shape}: {source}")]
    Config {
        /// The name or path.
        shape: String,
        /// The defect.
        source: ConfigError,
    },
}
