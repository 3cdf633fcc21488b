//! Why a variant cannot be read.

/// Why a variant cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReflectError {
    /// A variant that does not compose.
    #[error(transparent)]
    Compose(#[from] crate::source::ComposeError),
    /// naga does not take it.
    #[error("kernel {kernel}: {stage}: {message}")]
    Naga {
        /// The kernel.
        kernel: &'static str,
        /// Stage of naga that failed.
        stage: &'static str,
        /// naga's words.
        message: String,
    },
}
