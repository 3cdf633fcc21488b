//! Whether system packages may be installed: `PAGODA_INSTALL` is `never`, `ask` or `yes`.

use std::io::BufRead;

use anyhow::{Result, bail};

/// Variable that decides.
const VARIABLE: &str = "PAGODA_INSTALL";

/// Permission to install system packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consent {
    /// Nothing is installed; the command is printed.
    Never,
    /// A user at the terminal is asked.
    Ask,
    /// Packages are installed, after saying which.
    Yes,
}

impl Consent {
    /// The permission that the environment gives. Without one, the user at a terminal is asked; CI and other unattended runs
    /// go on by themselves.
    ///
    /// # Errors
    /// For another value than the three, and if a user is to be asked and no terminal is there.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>, is_terminal: bool) -> Result<Self> {
        let is_ci = variable("CI").is_some_and(|value| !["", "0", "false"].contains(&&*value));
        match variable(VARIABLE).as_deref() {
            None | Some("") => Ok(if is_terminal && !is_ci { Self::Ask } else { Self::Yes }),
            Some("never") => Ok(Self::Never),
            Some("yes") => Ok(Self::Yes),
            Some("ask") if is_terminal => Ok(Self::Ask),
            Some("ask") => bail!("{VARIABLE}=ask needs a terminal; give yes or never"),
            Some(other) => bail!("{VARIABLE} is {other:?}; it can be never, ask or yes"),
        }
    }
}

/// Asks whether `command` may run.
pub(super) fn ask(missing: &str, command: &str, answers: &mut impl BufRead) -> Result<bool> {
    eprint!("missing: {missing}\nRun `{command}` now? [y/N] ");
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides_and_ci_needs_nobody() {
        let of = |install: Option<&str>, ci: Option<&str>, is_terminal| {
            let variable = |name: &str| match name {
                VARIABLE => install.map(str::to_owned),
                "CI" => ci.map(str::to_owned),
                _ => None,
            };
            Consent::of(variable, is_terminal).map_err(|error| error.to_string())
        };
        for is_terminal in [false, true] {
            assert_eq!(of(None, Some("true"), is_terminal), Ok(Consent::Yes));
            assert_eq!(of(Some("never"), Some("true"), is_terminal), Ok(Consent::Never));
            assert_eq!(of(Some("yes"), None, is_terminal), Ok(Consent::Yes));
            assert_eq!(
                of(Some("maybe"), None, is_terminal).unwrap_err(),
                r#"PAGODA_INSTALL is "maybe"; it can be never, ask or yes"#
            );
        }
        assert_eq!(
            [of(None, None, true), of(Some("ask"), Some("true"), true)],
            [Ok(Consent::Ask), Ok(Consent::Ask)]
        );
        assert_eq!(
            [of(None, None, false), of(None, Some("false"), false)],
            [Ok(Consent::Yes), Ok(Consent::Yes)]
        );
        assert_eq!(
            of(Some("ask"), None, false).unwrap_err(),
            "PAGODA_INSTALL=ask needs a terminal; give yes or never"
        );
    }

    #[test]
    fn only_yes_is_yes() {
        let answered = |text: &str| ask("a driver", "apt-get install driver", &mut text.as_bytes()).unwrap();
        assert!(answered("y\n") && answered(" Yes\n"));
        assert!(!answered("\n") && !answered("") && !answered("no\n") && !answered("yikes\n"));
    }
}
