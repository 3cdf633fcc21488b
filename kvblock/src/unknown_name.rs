//! Refusal of a text that names no value of an enum.

use strum::VariantNames;
use thiserror::Error;

/// A text that is the name of no value of an enum.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("unknown name {name:?}; names are {}", names.join(" "))]
#[non_exhaustive]
pub struct UnknownName {
    /// The text.
    pub name: String,
    /// All names of the enum.
    pub names: &'static [&'static str],
}

impl UnknownName {
    /// An error that says that `name` is the name of no value of the enum `T`.
    #[must_use]
    pub fn of<T: VariantNames>(name: &str) -> Self {
        Self { name: name.to_owned(), names: T::VARIANTS }
    }
}

#[cfg(test)]
mod tests {
    use crate::KvDtype;

    #[test]
    fn names_are_read_and_others_refused() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Fp8, KvDtype::Int8] {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        let error = "f64".parse::<KvDtype>().unwrap_err();
        assert_eq!(error.to_string(), r#"unknown name "f64"; names are f32 f16 fp8 int8"#);
    }
}
