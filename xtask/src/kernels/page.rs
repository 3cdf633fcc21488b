//! Tables of the kernels in `docs/kernels.md`, from their declarations.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use attn_kernels::declare::Sizes;
use attn_kernels::{Access, Binding, Kernel};

/// The page.
pub(super) const FILE: &str = "docs/kernels.md";

/// Lists the kernels of a crate.
type Catalog = fn() -> Vec<&'static Kernel>;

/// Headings of the page, each with the catalogue that the first table below it lists.
const TABLES: [(&str, Catalog); 2] =
    [("## attn-kernels", attn_kernels::catalog), ("## dense-kernels", models::kernel::catalog)];

/// First line of a table.
const HEADER: &str = "| kernel | bindings | variants | bytes moved |\n|---|---|---|---|\n";

/// The page with the tables of all kernels in place of those that it has.
///
/// # Errors
/// A page without a table below one of the headings.
pub(super) fn with_tables(page: &str) -> Result<String> {
    TABLES.into_iter().try_fold(page.to_owned(), |page, (heading, catalog)| {
        let at = page.find(&format!("\n{heading}\n"));
        let at = at.with_context(|| format!("{FILE} has no heading {heading}"))?;
        let start = page[at..].find(HEADER).map(|start| at + start);
        let start = start.with_context(|| format!("{FILE} has no table of kernels below {heading}"))?;
        let end = page[start..].find("\n\n").map_or(page.len(), |end| start + end + 1);
        ensure!(
            page[start..end].lines().all(|line| line.starts_with('|')),
            "{FILE}: a line of a table ends early"
        );
        Ok([&page[..start], &table(&catalog()), &page[end..]].concat())
    })
}

/// Table of a catalogue, with one row per kernel.
fn table(kernels: &[&Kernel]) -> String {
    let mut table = String::from(HEADER);
    for kernel in kernels {
        let Some(declared) = &kernel.declared else { continue };
        let listed = (declared.listed)(&Sizes::of_heads(128));
        let bound = |binding: &&Binding| {
            listed.iter().any(|(_, variant)| variant.bindings.iter().any(|of| of.name == binding.name))
        };
        let bindings: Vec<String> = kernel
            .bindings
            .iter()
            .filter(bound)
            .map(|binding| {
                let mark = match (binding.access, binding.optional) {
                    (Access::Write, true) => "***",
                    (Access::Write, false) => "**",
                    (_, true) => "*",
                    (_, false) => "",
                };
                format!("{mark}{}{mark}", binding.name)
            })
            .collect();
        let [name, bindings] = [kernel.name, &bindings.join(", ")];
        writeln!(table, "| `{name}` | {bindings} | {} | {} |", declared.variants, declared.bytes)
            .expect("a String takes every write");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_that_of_the_declarations() {
        let page = std::fs::read_to_string(crate::tree::root().join(FILE)).unwrap();
        let made = with_tables(&page).unwrap();
        let differing = page.lines().zip(made.lines()).find(|(have, want)| have != want);
        assert!(page == made, "`cargo xtask kernels --write` makes {FILE} anew; {differing:?} differ");
    }

    #[test]
    fn a_page_without_tables_is_refused() {
        let said = |page: &str| with_tables(page).unwrap_err().to_string();
        assert_eq!(said("# Kernels\n"), "docs/kernels.md has no heading ## attn-kernels");
        assert_eq!(
            said("\n## attn-kernels\n"),
            "docs/kernels.md has no table of kernels below ## attn-kernels"
        );
    }
}
