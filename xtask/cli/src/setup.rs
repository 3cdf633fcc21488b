//! Set-up of the machine: what the commands need beyond Rust, whether it is installed, and how to install it.
//!
//! [`plan`] decides what to do from what was found, and is pure. Commands fail by [`ensure()`] if something is missing; only
//! [`install`] carries the plan out.

use std::env;
use std::io;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

mod found;

pub use found::{Driver, Found, Host, Platform, Python, Vulkan};

/// A thing that a command is about to use, and that has requirements on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A GPU adapter, possibly a software one that runs on the CPU.
    Gpu,
    /// The default model, which Python's pip fetches.
    DefaultModel,
    /// The tests of the whole workspace.
    Tests,
}

impl Need {
    /// All needs.
    pub const ALL: &[Self] = &[Self::Gpu, Self::DefaultModel, Self::Tests];
}

/// One thing the commands need beyond Rust.
#[derive(Debug)]
pub struct Requirement {
    /// Name of the requirement in messages.
    pub name: &'static str,
    /// The uses that need the requirement.
    pub needs: &'static [Need],
    /// Debian and Ubuntu packages that provide the requirement.
    pub packages: &'static [&'static str],
    /// Homebrew formulas that provide the requirement on macOS.
    pub brew: &'static [&'static str],
    /// Purpose of the requirement.
    pub reason: &'static str,
    /// Whether the host has the requirement.
    pub met: fn(&Found) -> bool,
}

/// Everything the commands need beyond Rust.
pub const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        name: "Vulkan loader and driver",
        needs: &[Need::Gpu],
        packages: &["libvulkan1", "mesa-vulkan-drivers"],
        brew: &[],
        reason: "wgpu reaches the GPU through them; Mesa's lavapipe driver runs on the CPU where there is no GPU",
        met: |found| found.vulkan.as_ref().is_none_or(Vulkan::usable),
    },
    Requirement {
        name: "Python 3 with pip",
        needs: &[Need::DefaultModel, Need::Tests],
        packages: &["python3", "python3-pip"],
        brew: &["python"],
        reason: "pip fetches the default model, and the clients of other projects that tests call servers with",
        met: |found| found.python.as_ref().is_some_and(|python| python.pip.is_some()),
    },
    Requirement {
        name: "Redis server",
        needs: &[Need::Tests],
        packages: &["redis-server"],
        brew: &["redis"],
        reason: "tests of the remote KV tier start one of their own",
        met: |found| found.redis_server.is_some(),
    },
    Requirement {
        name: "Node.js",
        needs: &[Need::Tests],
        packages: &["nodejs"],
        brew: &["node"],
        reason: "tests of the live page run its scripts",
        met: |found| found.node.is_some(),
    },
    Requirement {
        name: "npm",
        needs: &[Need::Tests],
        packages: &["npm"],
        brew: &["node"],
        reason: "fetches the client for Node.js that tests call servers with",
        met: |found| found.npm.is_some(),
    },
    Requirement {
        name: "Chromium with its driver",
        needs: &[Need::Tests],
        packages: &["chromium", "chromium-driver"],
        brew: &["google-chrome", "chromedriver"],
        reason: "tests of the live page use it as a person would",
        met: |found| found.chromedriver.is_some(),
    },
];

/// Missing requirements, and their remedy.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct SetupPlan {
    /// Names of the unmet requirements.
    pub missing: Vec<&'static str>,
    /// Debian and Ubuntu packages that provide the missing requirements.
    pub packages: Vec<&'static str>,
    /// Way to install the missing requirements.
    pub remedy: Remedy,
}

/// Way to install missing requirements.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nothing is missing.
    Nothing,
    /// The command of apt-get, which this process may run.
    Apt(String),
    /// One command for the user to run.
    Print(String),
    /// No command can install it; the text says what the user has to do.
    Advise(String),
}

/// Decides which of `needs` are missing and how they are installed.
pub fn plan(found: &Found, needs: &[Need]) -> SetupPlan {
    let needed = |r: &&Requirement| r.needs.iter().any(|need| needs.contains(need));
    let unmet = || REQUIREMENTS.iter().filter(needed).filter(|r| !(r.met)(found));
    let missing: Vec<_> = unmet().map(|r| r.name).collect();
    let packages: Vec<_> = unmet().flat_map(|r| r.packages).copied().collect();
    let vulkan_missing = unmet().any(|r| r.needs.contains(&Need::Gpu));
    let remedy = match (&found.platform, found.vulkan.as_ref().and_then(|vulkan| vulkan.redirected_by)) {
        _ if missing.is_empty() => Remedy::Nothing,
        (_, Some(variable)) if vulkan_missing => Remedy::Advise(format!(
            "{variable} is set and names no usable Vulkan driver: unset it, or name the manifest of a driver"
        )),
        (Platform::Debian { root: true }, _) => Remedy::Apt(apt_command(&packages)),
        (Platform::Debian { root: false }, _) => {
            Remedy::Print(format!("sudo sh -c '{}'", apt_command(&packages)))
        }
        (Platform::OtherLinux, _) => Remedy::Advise(format!(
            "install what your distribution offers in place of the Debian packages {}",
            packages.join(" ")
        )),
        (Platform::MacOs, _) => {
            let mut formulas: Vec<_> = unmet().flat_map(|r| r.brew).copied().collect();
            // Node.js comes with npm there.
            formulas.dedup();
            Remedy::Print(format!("brew install {}", formulas.join(" ")))
        }
        (Platform::Windows, _) => Remedy::Advise(format!("install {}", missing.join(" and "))),
    };
    SetupPlan { missing, packages, remedy }
}

impl SetupPlan {
    /// Fails if something is missing.
    ///
    /// # Errors
    /// A message that names the missing requirements, and the command that installs them or what the user has to do.
    pub fn check(&self) -> Result<()> {
        let missing = self.missing.join(", ");
        match &self.remedy {
            Remedy::Nothing => Ok(()),
            Remedy::Apt(command) | Remedy::Print(command) => {
                bail!("missing: {missing}; to install, run\n  {command}")
            }
            Remedy::Advise(advice) => bail!("missing: {missing}; {advice}"),
        }
    }
}

/// Looks on this machine for what `needs` require. No GPU is required with `ATTN_GPU=skip`.
pub fn look(needs: &[Need]) -> (Found, SetupPlan) {
    let without_gpu = env::var_os("ATTN_GPU").is_some_and(|value| value == "skip");
    let needs: Vec<_> = needs.iter().copied().filter(|&need| need != Need::Gpu || !without_gpu).collect();
    let found = Found::on_this_machine(&needs);
    let plan = plan(&found, &needs);
    (found, plan)
}

/// Fails if a requirement of `needs` is missing; installs nothing. Returns what the machine has.
///
/// # Errors
/// Those of [`SetupPlan::check`].
pub fn ensure(needs: &[Need]) -> Result<Found> {
    let (found, plan) = look(needs);
    plan.check()?;
    Ok(found)
}

/// Installs what `needs` require and the machine lacks, if this process may; says on stderr what it does. Only
/// `doctor --install` and the set-up of a checkout call this.
///
/// # Errors
/// Those of [`SetupPlan::check`] if this process may not install, those of apt-get, and what is missing after it.
pub fn install(needs: &[Need]) -> Result<()> {
    let (_, plan) = look(needs);
    let Remedy::Apt(command) = &plan.remedy else { return plan.check() };
    eprintln!("missing: {}; running {command}", plan.missing.join(", "));
    apt_get(&["update"])?;
    apt_get(&[&["install", "-y", "--no-install-recommends"], plan.packages.as_slice()].concat())?;
    let still_missing = look(needs).1.missing;
    ensure!(still_missing.is_empty(), "still missing after the installation: {}", still_missing.join(", "));
    Ok(())
}

/// Command that installs packages on Debian and Ubuntu.
fn apt_command(packages: &[&str]) -> String {
    format!("apt-get update && apt-get install -y --no-install-recommends {}", packages.join(" "))
}

/// Runs apt-get non-interactively; its output goes to stderr, because stdout is for results. Waits for other
/// apt-get processes, which often run on a machine that has just started.
fn apt_get(args: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .status()
        .context("apt-get cannot be run")?;
    ensure!(status.success(), "apt-get {} failed: {status}", args.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests;
