//! Results of measurements, as `docs/results` keeps them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// One measurement: its circumstances, and a table of what came out.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// Heading of the table.
    pub title: String,
    /// Day of the newest row, as `2026-11-23`.
    pub date: String,
    /// Commits that recorded the rows; their trees, or those of their parents, were measured.
    pub commits: Vec<String>,
    /// Device that ran the kernels, or processor.
    pub adapter: String,
    /// Version of its driver, if it is on record.
    pub driver: Option<String>,
    /// Command that measures the rows again.
    pub command: String,
    /// Conditions that the reader of a row must know, in whole sentences.
    pub note: Option<String>,
    /// Headers of the columns.
    pub columns: Vec<String>,
    /// Cells, row by row, in the digits that were printed.
    pub rows: Vec<Vec<String>>,
}

impl Results {
    fn check(&self) -> Result<()> {
        let width = self.columns.len();
        ensure!(
            width > 1 && !self.rows.is_empty(),
            "a table of {width} columns and {} rows",
            self.rows.len()
        );
        for row in &self.rows {
            ensure!(row.len() == width, "the row {row:?} has {} cells, the table {width} columns", row.len());
        }
        let day: Vec<_> = self.date.split('-').map(str::len).collect();
        ensure!(day == [4, 2, 2], "the date {} is not of the form 2026-11-23", self.date);
        ensure!(!self.commits.is_empty(), "no commit is named");
        Ok(())
    }

    /// Returns the index of a column.
    ///
    /// # Errors
    /// If no column has this header.
    pub fn column(&self, header: &str) -> Result<usize> {
        let at = self.columns.iter().position(|column| column == header);
        at.with_context(|| format!("no column {header}; there are {:?}", self.columns))
    }

    /// Returns the number in a cell, the first one if it holds several, and `None` if it holds none.
    #[must_use]
    pub fn number(&self, row: usize, column: usize) -> Option<f64> {
        number(&self.rows[row][column])
    }
}

/// Returns the first number of a text: digits with commas between thousands, a point and a sign.
pub(super) fn number(text: &str) -> Option<f64> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let rest = &text[start..];
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(rest.len());
    let digits = rest[..end].trim_end_matches(['.', ',']).replace(',', "");
    let value: f64 = digits.parse().ok()?;
    Some(if text[..start].ends_with('-') { -value } else { value })
}

/// All results by name. It remembers which ones were read.
#[derive(Debug, Default)]
pub struct Library {
    results: BTreeMap<String, Results>,
    used: RefCell<BTreeSet<String>>,
}

impl Library {
    /// Reads the files of a folder.
    ///
    /// # Errors
    /// If a file cannot be read or is not a table.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut library = Self::default();
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                library.add(&stem(&path), &text).with_context(|| path.display().to_string())?;
            }
        }
        Ok(library)
    }

    /// Adds the text of a file.
    ///
    /// # Errors
    /// If it is not a table.
    pub fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let results: Results = serde_json::from_str(text)?;
        results.check()?;
        self.results.insert(name.into(), results);
        Ok(())
    }

    /// Returns a result, which then counts as read.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn get(&self, name: &str) -> Result<&Results> {
        self.used.borrow_mut().insert(name.into());
        self.results.get(name).with_context(|| format!("no results of the name {name}"))
    }

    /// Returns the names that nothing read.
    #[must_use]
    pub fn unused(&self) -> BTreeSet<&str> {
        let used = self.used.borrow();
        self.results.keys().filter(|name| !used.contains(*name)).map(String::as_str).collect()
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_printed() {
        let texts =
            ["11,534", "308 to 316", "+9.66", "-0.55", "0.90, 0.95", "167.4 (1.54)", "30 ms", "", "all"];
        let numbers = texts.map(number);
        let expected = [
            Some(11_534.0),
            Some(308.0),
            Some(9.66),
            Some(-0.55),
            Some(0.9),
            Some(167.4),
            Some(30.0),
            None,
            None,
        ];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        let text = |rows: &str| {
            format!(
                r#"{{"title":"T","date":"2026-11-23","commits":["a"],"adapter":"A","command":"c","columns":["x","y"],"rows":[{rows}]}}"#
            )
        };
        let add = |rows: &str| Library::default().add("t", &text(rows));
        assert!(add(r#"["1","2"]"#).is_ok());
        assert!(add("").is_err());
        let told = add(r#"["1"]"#).unwrap_err().to_string();
        assert_eq!(told, r#"the row ["1"] has 1 cells, the table 2 columns"#);
    }
}
