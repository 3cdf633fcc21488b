//! Set-up of a machine for a checkout: the first `generate` and `test` install what they need.

use std::env;
use std::io::{self, IsTerminal as _};

use anyhow::Result;
use pagoda_cli::setup::{self, Need, Remedy};

use consent::Consent;

mod consent;

/// Makes sure that `needs` are met: installs what is missing if this process may and `PAGODA_INSTALL` lets it. Says on stderr
/// what it does.
///
/// # Errors
/// If something is missing and may not or could not be installed, with the command that installs it.
pub fn set_up(needs: &[Need]) -> Result<()> {
    let plan = setup::look(needs).1;
    let Remedy::Apt(command) = &plan.remedy else { return plan.check() };
    let may = match Consent::of(|name| env::var(name).ok(), io::stdin().is_terminal())? {
        Consent::Yes => true,
        Consent::Ask => consent::ask(&plan.missing.join(", "), command, &mut io::stdin().lock())?,
        Consent::Never => false,
    };
    if may { setup::install(needs) } else { plan.check() }
}
