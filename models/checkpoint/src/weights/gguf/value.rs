//! Metadata values.

use std::fmt;

/// A metadata value. Integers are widened, since their stored width does not matter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `uint8` to `uint64`.
    Unsigned(u64),
    /// `int8` to `int64`.
    Signed(i64),
    /// `float32` or `float64`.
    Float(f64),
    /// `bool`.
    Bool(bool),
    /// `string`.
    String(String),
    /// `array`.
    Array(Array),
}

/// A metadata array, of one element type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// `uint8` to `uint64`.
    Unsigned(Vec<u64>),
    /// `int8` to `int64`.
    Signed(Vec<i64>),
    /// `float32` or `float64`.
    Float(Vec<f64>),
    /// `bool`.
    Bool(Vec<bool>),
    /// `string`.
    String(Vec<String>),
    /// Arrays in an array.
    Nested(Vec<Array>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Unsigned(v) => v.len(),
            Self::Signed(v) => v.len(),
            Self::Float(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Nested(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    pub(super) fn as_u32(&self) -> Option<u32> {
        match *self {
            Self::Unsigned(n) => u32::try_from(n).ok(),
            // Some converters store counts and ids as signed.
            Self::Signed(n) => u32::try_from(n).ok(),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        if let Self::Float(x) = *self { Some(x) } else { None }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(b) = *self { Some(b) } else { None }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::String(s) = self { Some(s) } else { None }
    }

    pub(super) fn as_strings(&self) -> Option<&[String]> {
        if let Self::Array(Array::String(v)) = self { Some(v) } else { None }
    }

    pub(super) fn as_floats(&self) -> Option<&[f64]> {
        if let Self::Array(Array::Float(v)) = self { Some(v) } else { None }
    }

    pub(super) fn as_ints(&self) -> Option<Vec<i64>> {
        match self {
            Self::Array(Array::Signed(v)) => Some(v.clone()),
            Self::Array(Array::Unsigned(v)) => v.iter().map(|&n| i64::try_from(n).ok()).collect(),
            Self::Array(Array::Bool(v)) => Some(v.iter().map(|&b| b.into()).collect()),
            _ => None,
        }
    }
}

/// Shows a value in one line of at most about 80 characters, for lists and messages.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(n) => write!(f, "{n}"),
            Self::Signed(n) => write!(f, "{n}"),
            Self::Float(x) => write!(f, "{x}"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::String(s) if s.chars().nth(60).is_none() => write!(f, "{s:?}"),
            Self::String(s) => write!(f, "{:?}..", s.chars().take(60).collect::<String>()),
            Self::Array(a) => write!(f, "an array of {}", a.len()),
        }
    }
}
