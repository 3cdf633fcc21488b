//! User and password of a service, which are never printed.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::tier::{TierError, TierName};

/// Name of the environment variable with the user of a Redis server.
const USERNAME: &str = "REDIS_USERNAME";
/// Name of the environment variable with the password of a Redis server.
const PASSWORD: &str = "REDIS_PASSWORD";
/// Name of the environment variable with the path of a file that holds the password.
const PASSWORD_FILE: &str = "REDIS_PASSWORD_FILE";

/// User and password of a service. Neither is ever printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    username: Option<String>,
    password: Option<String>,
}

impl Credentials {
    /// Credentials of `username`, or of the service's default user, with or without a password.
    #[must_use]
    pub const fn new(username: Option<String>, password: Option<String>) -> Self {
        Self { username, password }
    }

    /// Reads `REDIS_USERNAME`, and `REDIS_PASSWORD` or the file that `REDIS_PASSWORD_FILE` names; a line break at its end is
    /// dropped. `None` if none of them is set.
    ///
    /// # Errors
    /// [`TierError::Backend`] for a file that cannot be read, which is named, and for values that are not UTF-8.
    pub fn from_env(tier: TierName) -> Result<Option<Self>, TierError> {
        Self::from_variables(tier, &|name| std::env::var_os(name))
    }

    fn from_variables(
        tier: TierName,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, TierError> {
        let failed = |action, told: String| TierError::Backend {
            tier,
            action,
            source: Box::new(std::io::Error::other(told)),
        };
        let text = |name: &'static str| {
            let text = variable(name).filter(|value| !value.is_empty()).map(OsString::into_string);
            text.transpose().map_err(|_| failed("reading credentials", format!("{name} is not UTF-8")))
        };
        let username = text(USERNAME)?;
        let mut password = text(PASSWORD)?;
        if password.is_none()
            && let Some(path) = variable(PASSWORD_FILE).map(PathBuf::from)
        {
            let read = std::fs::read_to_string(&path);
            let read = read.map_err(|error| {
                failed("reading the password file", format!("{}: {error}", path.display()))
            })?;
            password = Some(read.trim_end_matches(['\r', '\n']).to_owned());
        }
        let is_set = username.is_some() || password.is_some();
        Ok(is_set.then_some(Self { username, password }))
    }

    pub(super) fn username(&self) -> &str {
        self.username.as_deref().unwrap_or_default()
    }

    pub(super) fn password(&self) -> &str {
        self.password.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Option<Credentials>, TierError> {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Credentials::from_variables(TierName::REMOTE, &value)
    }

    #[test]
    fn credentials_come_from_variables_or_a_file_and_are_not_shown() {
        assert_eq!(from(&[]).unwrap(), None);
        let user =
            from(&[(USERNAME, "anna"), (PASSWORD, "s3cret"), (PASSWORD_FILE, "nowhere")]).unwrap().unwrap();
        assert_eq!((user.username(), user.password()), ("anna", "s3cret"));
        assert_eq!(format!("{user:?}"), "Credentials(..)");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "with blanks \n").unwrap();
        let file = file.to_str().unwrap();
        let user = from(&[(PASSWORD_FILE, file)]).unwrap().unwrap();
        assert_eq!((user.username(), user.password()), ("", "with blanks "));
        let missing = from(&[(PASSWORD_FILE, "nowhere")]).unwrap_err();
        let source = std::error::Error::source(&missing).unwrap().to_string();
        assert!(source.starts_with("nowhere: "), "{source}");
    }
}
