//! Errors of reading a variant.

/// Reason why a variant cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReflectError {
    /// The text of the variant could not be composed.
    #[error(transparent)]
    Compose(#[from] crate::source::ComposeError),
    /// naga refuses the text.
    #[error("kernel {kernel}: {stage}: {message}")]
    Naga {
        /// The kernel.
        kernel: &'static str,
        /// Stage of naga that failed.
        stage: &'static str,
        /// Message of naga.
        message: String,
    },
}
