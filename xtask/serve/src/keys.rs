//! API keys: the clients that may call, and their limits.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode, header};
use derive_setters::Setters;
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::limits::Limits;

/// An API key and the limits of its calls. Only a digest of the key is kept.
#[derive(Clone, PartialEq, Eq, Setters)]
#[setters(generate_private = false)]
#[non_exhaustive]
pub struct ApiKey {
    digest: [u8; 32],
    /// Name of the key in the access log; without it, the first eight digits of its digest.
    #[setters(into, strip_option)]
    pub name: Option<String>,
    /// Whether calls of this key may empty the prefix cache.
    pub is_admin: bool,
    /// Whether calls of this key can hit prefixes that other sharing keys cached. The time to an answer shows whether a
    /// prefix was cached, and so what others have asked.
    pub shares_prefixes: bool,
    /// Maximum number of calls a minute.
    #[setters(strip_option)]
    pub requests_per_minute: Option<u32>,
    /// Maximum number of tokens a minute, of prompts and answers together.
    #[setters(strip_option)]
    pub tokens_per_minute: Option<u32>,
}

/// Why a file of API keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiKeyError {
    /// A word after a key is unknown.
    #[error(
        "line {line}: {word:?} is none of admin, name=NAME, share-prefixes, requests-per-minute=N and tokens-per-minute=N, N from 1 on"
    )]
    Word {
        /// Number of the line, from 1.
        line: usize,
        /// The word.
        word: String,
    },
    /// A key occurs twice.
    #[error("line {line}: this key has a line before")]
    Twice {
        /// Number of the second line, from 1.
        line: usize,
    },
    /// The file contains no key. Without keys, everybody may call.
    #[error("there is no key in it")]
    None,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { digest: _, name, is_admin, shares_prefixes, requests_per_minute, tokens_per_minute } =
            self;
        f.debug_struct("ApiKey")
            .field("name", name)
            .field("is_admin", is_admin)
            .field("shares_prefixes", shares_prefixes)
            .field("requests_per_minute", requests_per_minute)
            .field("tokens_per_minute", tokens_per_minute)
            .finish_non_exhaustive()
    }
}

impl ApiKey {
    /// A key without limits, whose prefixes are its own.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        let digest = Sha256::digest(secret).into();
        Self {
            digest,
            name: None,
            is_admin: false,
            shares_prefixes: false,
            requests_per_minute: None,
            tokens_per_minute: None,
        }
    }

    /// Reads a file of keys. Each line has a key and then words about the key. Empty lines, and lines that begin with
    /// `#`, are skipped.
    ///
    /// # Errors
    /// [`ApiKeyError`], which never contains a key.
    pub fn read_all(text: &str) -> Result<Vec<Self>, ApiKeyError> {
        let mut keys: Vec<Self> = Vec::new();
        for (line, words) in (1..).zip(text.lines()) {
            let mut words = words.split_whitespace();
            let Some(secret) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let mut key = Self::new(secret);
            for word in words {
                key.add(word).ok_or_else(|| ApiKeyError::Word { line, word: word.to_owned() })?;
            }
            if keys.iter().any(|known| known.digest == key.digest) {
                return Err(ApiKeyError::Twice { line });
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(ApiKeyError::None) } else { Ok(keys) }
    }

    /// Applies a word about the key; `None` if the word means nothing.
    fn add(&mut self, word: &str) -> Option<()> {
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        match word.split_once('=') {
            None if word == "admin" => self.is_admin = true,
            None if word == "share-prefixes" => self.shares_prefixes = true,
            Some(("name", text)) if !text.is_empty() => self.name = Some(text.to_owned()),
            Some(("requests-per-minute", text)) => self.requests_per_minute = Some(number(text)?),
            Some(("tokens-per-minute", text)) => self.tokens_per_minute = Some(number(text)?),
            _ => return None,
        }
        Some(())
    }
}

/// The keys that a server accepts, by their digests, so that the time of a look-up reveals nothing about a key.
#[derive(Debug, Default)]
pub(crate) struct Keys(HashMap<[u8; 32], Arc<Known>>);

/// An accepted key, and the rest of its limits.
#[derive(Debug)]
struct Known {
    key: ApiKey,
    /// Salt that separates the key's prefixes from those of other keys; `None` if it shares them. It is the same after a
    /// restart, so that blocks on disk are found again.
    salt: Option<String>,
    limits: Limits,
}

/// Caller of the server; without a key if calls need no key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Client(Option<Arc<Known>>);

impl Client {
    /// Name of the key; `None` if calls need none.
    pub(crate) fn name(&self) -> Option<String> {
        let key = &self.0.as_ref()?.key;
        let digits = || key.digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(key.name.clone().unwrap_or_else(digits))
    }

    /// Refuses clients whose key is not an admin's, if calls need keys.
    pub(crate) fn check_admin(&self) -> Result<(), ApiError> {
        match &self.0 {
            Some(known) if !known.key.is_admin => {
                let message = "this call needs a key with the word admin in the file of keys";
                Err(ApiError::new(StatusCode::FORBIDDEN, message).with_code("not_admin"))
            }
            _ => Ok(()),
        }
    }

    /// The salt of a request of this client: the client's own salt and the salt `asked`, as far as they exist.
    pub(crate) fn salt(&self, asked: Option<&str>) -> Option<String> {
        let own = self.0.as_ref().and_then(|known| known.salt.as_deref());
        match (own, asked) {
            (Some(own), Some(asked)) => Some(format!("{own} {asked}")),
            (own, asked) => own.or(asked).map(str::to_owned),
        }
    }

    /// Adds headers that state what is left of the client's limits.
    pub(crate) fn tell_limits(&self, headers: &mut HeaderMap) {
        if let Some(known) = &self.0 {
            known.limits.tell(headers, Instant::now());
        }
    }

    /// Takes a call on, if the client has not used up its limits.
    pub(crate) fn admit(&self) -> Result<(), ApiError> {
        let Some(known) = &self.0 else { return Ok(()) };
        known.limits.admit(Instant::now()).map_err(|full| {
            let retry_after_s = u32::try_from(full.wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
            ApiError {
                retry_after_s,
                ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, full.to_string())
                    .with_code("rate_limit_exceeded")
            }
        })
    }

    /// Counts tokens that the key has used.
    pub(crate) fn use_tokens(&self, tokens: usize) {
        if let Some(known) = &self.0 {
            known.limits.use_tokens(tokens, Instant::now());
        }
    }
}

impl Keys {
    pub(crate) fn new(keys: &[ApiKey]) -> Self {
        Self::default().replaced(keys)
    }

    /// Returns a new set of keys. Keys that were in the old set continue with what is left of their limits.
    pub(crate) fn replaced(&self, keys: &[ApiKey]) -> Self {
        let now = Instant::now();
        let known = |key: &ApiKey| {
            let same = self.0.get(&key.digest).filter(|known| known.key == *key);
            let known = same.cloned().unwrap_or_else(|| {
                let salt = Sha256::new_with_prefix("prefixes of ").chain_update(key.digest).finalize();
                let salt =
                    (!key.shares_prefixes).then(|| salt.iter().map(|byte| format!("{byte:02x}")).collect());
                let limits = Limits::new(key.requests_per_minute, key.tokens_per_minute, now);
                Arc::new(Known { key: key.clone(), salt, limits })
            });
            (key.digest, known)
        };
        Self(keys.iter().map(known).collect())
    }

    /// Returns the caller with these headers; `None` if their key is not accepted.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Option<Client> {
        if self.0.is_empty() {
            return Some(Client::default());
        }
        let digest: [u8; 32] = Sha256::digest(presented(headers)?).into();
        Some(Client(Some(Arc::clone(self.0.get(&digest)?))))
    }
}

/// The key of a call: OpenAI's clients send it as `Authorization: Bearer`, Anthropic's as `x-api-key`.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn keys_come_in_either_header() {
        let keys = Keys::new(&[ApiKey::new("secret")]);
        let allow = |headers: &HeaderMap| keys.client(headers).is_some();
        let x_api_key = header::HeaderName::from_static("x-api-key");
        assert!(allow(&with(header::AUTHORIZATION, "bearer secret")));
        assert!(allow(&with(x_api_key.clone(), "secret")));
        for wrong in ["Bearer secre", "Bearer", "Basic secret", "secret", ""] {
            assert!(!allow(&with(header::AUTHORIZATION, wrong)), "{wrong}");
        }
        assert!(!allow(&with(x_api_key, "Secret")) && !allow(&HeaderMap::new()));
        assert!(Keys::default().client(&HeaderMap::new()).is_some());
    }

    #[test]
    fn a_file_has_a_key_a_line() {
        let text = "# people\nalpha\n\nbeta name=people admin share-prefixes requests-per-minute=60 tokens-per-minute=10000\n";
        let keys = ApiKey::read_all(text).unwrap();
        insta::assert_debug_snapshot!(keys, @r#"
        [
            ApiKey {
                name: None,
                is_admin: false,
                shares_prefixes: false,
                requests_per_minute: None,
                tokens_per_minute: None,
                ..
            },
            ApiKey {
                name: Some(
                    "people",
                ),
                is_admin: true,
                shares_prefixes: true,
                requests_per_minute: Some(
                    60,
                ),
                tokens_per_minute: Some(
                    10000,
                ),
                ..
            },
        ]
        "#);
        assert_eq!(keys[0], ApiKey::new("alpha"));
        let wrong = |text| ApiKey::read_all(text).unwrap_err().to_string();
        insta::assert_snapshot!(wrong("a\nb tokens-per-minute=0"), @r#"line 2: "tokens-per-minute=0" is none of admin, name=NAME, share-prefixes, requests-per-minute=N and tokens-per-minute=N, N from 1 on"#);
        insta::assert_snapshot!(wrong("a\na"), @"line 2: this key has a line before");
        insta::assert_snapshot!(wrong("\n#\n"), @"there is no key in it");
    }

    #[test]
    fn each_key_has_its_own_prefixes_unless_it_shares_them() {
        let shared = ApiKey { shares_prefixes: true, ..ApiKey::new("shared") };
        let keys = Keys::new(&[ApiKey::new("a"), ApiKey::new("b"), shared]);
        let salt = |key: &str, asked| {
            keys.client(&with(header::AUTHORIZATION, &format!("Bearer {key}"))).unwrap().salt(asked)
        };
        assert_ne!(salt("a", None), salt("b", None));
        assert_ne!(salt("a", Some("x")), salt("b", Some("x")));
        assert!(salt("a", None).is_some() && salt("a", None) != salt("a", Some("x")));
        assert_eq!([salt("shared", None), salt("shared", Some("x"))], [None, Some("x".to_owned())]);
        assert_eq!(salt("a", None), Keys::new(&[ApiKey::new("a")]).0.values().next().unwrap().salt);
    }
}
