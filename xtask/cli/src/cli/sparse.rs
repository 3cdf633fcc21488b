//! `--sparse`: a policy, or a limit of loss that one is to keep.

use std::fmt;
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use pagoda::measured::LossLimit;
use pagoda::{Registry, Sparse, Spec};

use super::values::{no_policy, policy_of};

/// Name that stands in `--sparse` for a limit of loss instead of a policy.
const AUTO: &str = "auto";

/// Value of `--sparse`.
#[derive(Debug, Clone)]
pub enum SparseArg {
    /// A policy.
    Policy(Sparse),
    /// The fastest policy within a limit of loss.
    Auto(Auto),
}

/// A limit of loss, and the policy that keeps it once the model is known.
#[derive(Debug, Clone)]
pub struct Auto {
    /// The limit.
    pub limit: LossLimit,
    /// Policies that measurements name.
    pub registry: Registry,
    /// The policy for `--sparse`, set when a model is opened; the inner `None` means dense attention.
    pub taken: OnceLock<Option<Sparse>>,
}

impl SparseArg {
    /// Reads a SPEC, the path of a preset, or `auto:loss=0.5%`.
    ///
    /// # Errors
    /// An unknown policy or key, and a limit that is none.
    pub fn read(registry: &Registry, text: &str) -> Result<Self> {
        let is_auto = text.split(':').next().is_some_and(|name| name.trim().eq_ignore_ascii_case(AUTO));
        if !is_auto {
            return policy_of(registry, text).map(Self::Policy);
        }
        let Spec { params, decode, .. } = text.parse()?;
        ensure!(decode.is_none(), "auto chooses for both phases: it is joined with no other policy by +");
        let [(key, value)] = &params[..] else {
            bail!("auto takes one key, loss, the limit of the loss: auto:loss=0.5%");
        };
        ensure!(key == "loss", "auto has no key {key:?}; valid keys: loss");
        Ok(Self::Auto(Auto { limit: value.parse()?, registry: registry.clone(), taken: OnceLock::new() }))
    }

    /// The policy that runs, `None` for dense attention.
    ///
    /// # Panics
    /// If no model was opened since a limit was read.
    #[must_use]
    pub fn policy(&self) -> Option<&Sparse> {
        match self {
            Self::Policy(sparse) => Some(sparse),
            Self::Auto(auto) => auto.taken.get().expect("opening a model takes a policy").as_ref(),
        }
    }
}

impl From<Sparse> for SparseArg {
    fn from(sparse: Sparse) -> Self {
        Self::Policy(sparse)
    }
}

impl fmt::Display for SparseArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(sparse) => sparse.spec.fmt(f),
            Self::Auto(auto) => write!(f, "{AUTO}:loss={}", auto.limit),
        }
    }
}

/// Refuses every value of `--sparse`, as [`no_policy`] does.
pub(super) fn no_choice(text: &str) -> Result<SparseArg, &'static str> {
    no_policy(text).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        SparseArg::read(&Registry::builtin(), text).unwrap_err().to_string()
    }

    #[test]
    fn a_limit_of_loss_is_read_and_written() {
        for text in ["auto:loss=0.5%", "AUTO: loss = 0.5%"] {
            let read = SparseArg::read(&Registry::builtin(), text).unwrap();
            assert_eq!(read.to_string(), "auto:loss=0.5%");
        }
        let policy = SparseArg::read(&Registry::builtin(), "quest:page_budget=8").unwrap();
        assert_eq!(policy.policy().unwrap().spec.to_string(), "quest:page_budget=8");
    }

    #[test]
    fn what_is_no_limit_is_told() {
        insta::assert_snapshot!(refused("auto:loss=abc"), @r#"loss is "abc"; give a percentage of dense attention's likelihood, from 0% up, such as 0.5%"#);
        insta::assert_snapshot!(refused("auto:loss=-1%"), @r#"loss is "-1%"; give a percentage of dense attention's likelihood, from 0% up, such as 0.5%"#);
        insta::assert_snapshot!(refused("auto:loss=0.5"), @r#"loss is "0.5"; give a percentage of dense attention's likelihood, from 0% up, such as 0.5%"#);
        insta::assert_snapshot!(refused("auto"), @"auto takes one key, loss, the limit of the loss: auto:loss=0.5%");
        insta::assert_snapshot!(refused("auto:speed=2"), @r#"auto has no key "speed"; valid keys: loss"#);
        insta::assert_snapshot!(refused("auto:loss=1%+quest"), @"auto chooses for both phases: it is joined with no other policy by +");
        assert!(refused("xattn+auto:loss=1%").contains("auto"));
    }
}
