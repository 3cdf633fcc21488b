//! Specs: the text form of a policy, `name` or `name:key=value,key=value`, or of one of prefill and one of decode joined
//! by `+`, and a typed view of its parameters.

use core::{cell::Cell, fmt, str::FromStr};

use kvblock::BlockSize;

use crate::SpecError;

/// The name of a policy, with the parameters that differ from their defaults. List values separate their
/// elements by `:`, as in `xattn:threshold=0.9:0.8`.
///
/// Parsing checks only the form; [`Registry::build`](crate::Registry::build) checks names and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name of the policy as written.
    pub name: String,
    /// Keys and values in order, each key once.
    pub params: Vec<(String, String)>,
    /// Policy of decode, if this one is only for prefill, as in `streaming+quest`.
    pub decode: Option<Box<Spec>>,
}

impl Spec {
    /// A policy with all parameters at their defaults.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), params: Vec::new(), decode: None }
    }

    /// Sets `key` unless it is already set; sets it for both policies if there are two. An engine passes its block
    /// size to a policy in this way.
    #[must_use]
    pub fn or(mut self, key: &str, value: impl fmt::Display) -> Self {
        let value = value.to_string();
        let mut policy = Some(&mut self);
        while let Some(Self { params, decode, .. }) = policy {
            if !params.iter().any(|(k, _)| k == key) {
                params.push((key.to_owned(), value.clone()));
            }
            policy = decode.as_deref_mut();
        }
        self
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if let Some((prefill, decode)) = text.split_once('+') {
            let decode: Self = decode.parse()?;
            if decode.decode.is_some() {
                return Err(SpecError::TooManyPolicies { spec: text.to_owned() });
            }
            return Ok(Self { decode: Some(Box::new(decode)), ..prefill.parse()? });
        }
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut spec = Self::new(name.trim());
        for part in rest.split(',').filter(|_| !rest.trim().is_empty()) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| SpecError::NotKeyValue { policy: spec.name.clone(), part: part.to_owned() })?;
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            if spec.params.iter().any(|(k, _)| *k == key) {
                return Err(SpecError::DuplicateKey { policy: spec.name, key });
            }
            spec.params.push((key, value));
        }
        Ok(spec)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (i, (key, value)) in self.params.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { ':' } else { ',' })?;
        }
        self.decode.as_ref().map_or(Ok(()), |decode| write!(f, "+{decode}"))
    }
}

/// A parameter that a policy accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Key {
    /// Name in specs and presets.
    pub name: &'static str,
    /// Default in text form.
    pub default: &'static str,
    /// Meaning, with the unit.
    pub doc: &'static str,
}

impl Key {
    /// A parameter with its default in text form, and its meaning with the unit.
    #[must_use]
    pub const fn new(name: &'static str, default: &'static str, doc: &'static str) -> Self {
        Self { name, default, doc }
    }
}

/// Shorthand for the key tables of the policies.
pub(crate) const fn key(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    Key::new(name, default, doc)
}

/// The checked parameters of one policy: a value for every key of its table, given or default.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    policy: &'static str,
    keys: &'a [Key],
    given: &'a [(String, String)],
    /// Keys that were read, one bit for each in the order of `keys`.
    read: Cell<u64>,
}

impl<'a> Params<'a> {
    /// Checks that every given key is in the table.
    ///
    /// # Errors
    /// [`SpecError::UnknownKey`], which lists the valid keys.
    pub fn new(
        policy: &'static str,
        keys: &'a [Key],
        given: &'a [(String, String)],
    ) -> Result<Self, SpecError> {
        assert!(keys.len() <= 64, "policy {policy} has more than 64 keys");
        for (key, _) in given {
            if !keys.iter().any(|k| k.name == key) {
                let valid = keys.iter().map(|k| k.name).collect();
                return Err(SpecError::UnknownKey { policy, key: key.clone(), valid });
            }
        }
        Ok(Self { policy, keys, given, read: Cell::new(0) })
    }

    /// Checks, once a policy is built, that it has read every key whose value is not the default: a key without an effect in
    /// a mode must not seem to have one.
    ///
    /// # Errors
    /// [`SpecError::Unread`].
    pub(crate) fn check_read(&self) -> Result<(), SpecError> {
        for (at, key) in self.keys.iter().enumerate().filter(|(at, _)| self.read.get() >> at & 1 == 0) {
            let other = |(name, value): &&(String, String)| name == key.name && value != key.default;
            if let Some((_, value)) = self.given.iter().find(other) {
                return Err(SpecError::Unread {
                    policy: self.policy,
                    key: self.keys[at].name,
                    value: value.clone(),
                });
            }
        }
        Ok(())
    }

    /// Name of the policy being built.
    #[must_use]
    pub const fn policy(&self) -> &'static str {
        self.policy
    }

    /// The value of `key` as text.
    ///
    /// # Panics
    /// When the policy's own table lacks `key`.
    #[must_use]
    pub fn text(&self, key: &str) -> &'a str {
        let at = self.keys.iter().position(|k| k.name == key);
        let at = at.unwrap_or_else(|| panic!("policy {} reads the undeclared key {key}", self.policy));
        self.read.set(self.read.get() | 1 << at);
        let given = self.given.iter().find(|(k, _)| k == key);
        given.map_or(self.keys[at].default, |(_, value)| value)
    }

    /// An error about the value of `key`.
    #[must_use]
    pub fn bad(&self, key: &'static str, expected: &'static str) -> SpecError {
        SpecError::BadValue { policy: self.policy, key, value: self.text(key).to_owned(), expected }
    }

    /// An error about the values of several keys together.
    #[must_use]
    pub fn contradiction(&self, rule: &'static str, keys: &[&'static str]) -> SpecError {
        let given = keys.iter().map(|&key| (key, self.text(key).to_owned())).collect();
        SpecError::Contradiction { policy: self.policy, rule, given }
    }

    fn parse<T: FromStr>(
        &self,
        key: &'static str,
        expected: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<T, SpecError> {
        self.text(key).parse().ok().filter(valid).ok_or_else(|| self.bad(key, expected))
    }

    /// The value of `key` as a count, which may be 0.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn count(&self, key: &'static str) -> Result<u32, SpecError> {
        self.parse(key, "a count", |_| true)
    }

    /// The value of `key` as a count of at least 1.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn positive(&self, key: &'static str) -> Result<u32, SpecError> {
        self.parse(key, "a count of at least 1", |&n: &u32| n > 0)
    }

    /// The value of `key` as a count of at least 1, or `None` for the text `none`.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn optional_count(&self, key: &'static str) -> Result<Option<u32>, SpecError> {
        if self.text(key) == "none" {
            return Ok(None);
        }
        self.parse(key, "a count of at least 1, or none", |&n: &u32| n > 0).map(Some)
    }

    /// The value of `key` as a seed.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn seed(&self, key: &'static str) -> Result<u64, SpecError> {
        self.parse(key, "an unsigned 64-bit number", |_| true)
    }

    /// The value of `key` as a ratio above 0 and at most 1.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn ratio(&self, key: &'static str) -> Result<f64, SpecError> {
        self.parse(key, "a number above 0 and at most 1", |&x: &f64| x > 0.0 && x <= 1.0)
    }

    /// The value of `key` as a ratio above 0 and at most 1, or `None` for the text `none`.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn optional_ratio(&self, key: &'static str) -> Result<Option<f64>, SpecError> {
        if self.text(key) == "none" {
            return Ok(None);
        }
        self.parse(key, "a number above 0 and at most 1, or none", |&x: &f64| x > 0.0 && x <= 1.0).map(Some)
    }

    /// The value of `key` as a finite number above 0.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn positive_number(&self, key: &'static str) -> Result<f64, SpecError> {
        self.parse(key, "a finite number above 0", |x: &f64| x.is_finite() && *x > 0.0)
    }

    /// The value of `key` as a flag, `true` or `false`.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn flag(&self, key: &'static str) -> Result<bool, SpecError> {
        self.parse(key, "true or false", |_| true)
    }

    /// The value of `key` as a list separated by `:`, possibly empty.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] with `expected`, when an element does not parse or is not valid.
    pub fn list<T: FromStr>(
        &self,
        key: &'static str,
        expected: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>, SpecError> {
        let parts = self.text(key).split(':').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().ok().filter(&valid).ok_or_else(|| self.bad(key, expected))).collect()
    }

    /// The value of `key` as one of the named `values`.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] with `expected`, which lists the names.
    pub fn choice<T: Copy>(
        &self,
        key: &'static str,
        expected: &'static str,
        values: &[(&str, T)],
    ) -> Result<T, SpecError> {
        let found = values.iter().find(|(name, _)| *name == self.text(key));
        found.map(|&(_, value)| value).ok_or_else(|| self.bad(key, expected))
    }

    /// The value of the key `block_size`, in tokens.
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn block_size(&self) -> Result<BlockSize, SpecError> {
        self.positive("block_size").map(|n| BlockSize::new(n).expect("positive() returned 0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        let specs = [
            "full",
            "gsa:sparse_ratio=0.5,min_blocks=8",
            "xattn:threshold=0.9:0.8",
            "streaming:sink=2+quest",
        ];
        for text in specs {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
        assert_eq!("quest:".parse::<Spec>().unwrap(), Spec::new("quest"));
        let spec = " quest : page_budget = 8 ".parse::<Spec>().unwrap();
        assert_eq!(
            spec.or("page_budget", 9).or("block_size", 4).to_string(),
            "quest:page_budget=8,block_size=4"
        );
    }

    #[test]
    fn malformed_texts_name_the_part() {
        let message = |text: &str| text.parse::<Spec>().unwrap_err().to_string();
        insta::assert_snapshot!(message("gsa:sparse_ratio"), @r#"gsa: expected key=value, found "sparse_ratio""#);
        insta::assert_snapshot!(message("gsa:a=1,"), @r#"gsa: expected key=value, found """#);
        insta::assert_snapshot!(message("gsa:a=1,a=2"), @r#"gsa: key "a" is given twice"#);
    }
}
