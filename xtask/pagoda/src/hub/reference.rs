//! Names of models on the hub.

use std::fmt;
use std::str::FromStr;

use super::error::HubError;

/// The form of a reference, for messages.
const FORM: &str = "hf:USER/REPO, or with a revision and a file hf:USER/REPO@REVISION:FILE";

/// A model on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Name of the repository, `USER/REPO`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// A file of the repository, or a part of the name of a GGUF file, such as `Q4_K_M`; `None` if the repository has
    /// a single model.
    pub file: Option<String>,
}

impl Reference {
    /// Whether a value of `--model` is meant as a reference to the hub.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("hf:")
    }
}

impl FromStr for Reference {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = |reason: String| HubError::Reference { text: text.to_owned(), reason };
        let rest = text.strip_prefix("hf:").ok_or_else(|| wrong("does not begin with hf:".into()))?;
        let (name, file) = rest.split_once(':').map_or((rest, None), |(name, file)| (name, Some(file)));
        let (repo, revision) = name.split_once('@').unwrap_or((name, "main"));
        let parts: Vec<&str> = repo.split('/').collect();
        let plain = |part: &&str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
        };
        if parts.len() != 2 || !parts.iter().all(plain) {
            return Err(wrong(format!("is not of the form {FORM}")));
        }
        if !is_relative(revision) || !file.is_none_or(is_relative) {
            let reason = "names a revision or file that is empty or leads outside of the repository";
            return Err(wrong(reason.into()));
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.to_owned(), file: file.map(str::to_owned) })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

/// Whether a path of a repository stays within it, on every system.
pub(super) fn is_relative(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(plain) && !path.contains(['\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_a_repository_and_may_have_more() {
        for text in ["hf:a/b", "hf:a/b:Q4_K_M", "hf:a-1/b.c_d@v1:sub/model.gguf", "hf:a/b@refs/pr/3"] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        let whole: Reference = "hf:a/b@v1:x.gguf".parse().unwrap();
        let file = Some("x.gguf".to_owned());
        assert_eq!(whole, Reference { repo: "a/b".to_owned(), revision: "v1".to_owned(), file });
        for text in [
            "hf:",
            "hf:b",
            "hf:a/b/c",
            "hf:a/..",
            "hf:../b",
            "hf:a/b:",
            "hf:a/b:../x",
            "hf:a/b@",
            "hf:a/b:/x",
            "a/b",
        ] {
            let told = text.parse::<Reference>().unwrap_err().to_string();
            assert!(told.contains(text), "{told}");
        }
    }
}
