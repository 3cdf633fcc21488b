//! Errors of configurations.

use std::path::PathBuf;

use crate::GgufError;

/// Error of an unusable configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file system refused.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The text is not JSON.
    #[error("the configuration is not a JSON object: {source}")]
    Json {
        /// The defect.
        #[from]
        source: serde_json::Error,
    },
    /// Metadata of a GGUF file is missing or of the wrong type.
    #[error(transparent)]
    Gguf {
        /// The defect.
        #[from]
        source: GgufError,
    },
    /// The rotary factors of a GGUF file are not readable.
    #[error("the factors on rotations: {source}")]
    RopeFactors {
        /// The defect.
        source: crate::WeightError,
    },
    /// A field that is needed is absent.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field has the wrong JSON type.
    #[error("{field} is {found}, not {want}")]
    FieldType {
        /// The field.
        field: String,
        /// Expected value.
        want: &'static str,
        /// The JSON found.
        found: String,
    },
    /// A model family that is not implemented.
    #[error("model family {found:?} is not implemented (implemented: {known})", known = known.join(", "))]
    Family {
        /// `model_type` or `general.architecture`.
        found: String,
        /// Names of the families that are implemented in this format.
        known: Vec<&'static str>,
    },
    /// A field would change the result and is not implemented.
    #[error("{field} = {value} would change the result and is not implemented")]
    Unsupported {
        /// The field.
        field: String,
        /// Value of the field.
        value: String,
    },
    /// Weights are stored in a way that is not implemented.
    #[error("{source}: weights stored so are not implemented")]
    Quantization {
        /// The field.
        source: crate::UnknownQuantization,
    },
    /// A value is out of its range, or contradicts another one.
    #[error("{field} is {value}, it must be {rule}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// Rule that the value breaks.
        rule: &'static str,
    },
    /// A size that is larger than that of any model.
    #[error("{field} is {value}, the limit is {max}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// Value of the size.
        value: u32,
        /// The limit.
        max: u32,
    },
}
