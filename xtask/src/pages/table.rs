//! Tables of results in pages of Markdown.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use super::results::{Library, Results};

const START: &str = "<!-- results: ";
const END: &str = "<!-- end of results -->";

/// Returns a page in which the text between the marks of each table is the table.
///
/// # Errors
/// If a mark has no end, or names a result or row that does not exist.
pub fn with_tables(page: &str, library: &Library) -> Result<String> {
    let mut text = String::with_capacity(page.len());
    let mut rest = page;
    while let Some(at) = rest.find(START) {
        let (mark, after) = rest[at..].split_once(" -->").context("a mark of results has no -->")?;
        let (_, after) = after.split_once(END).with_context(|| format!("{mark}: no {END} after it"))?;
        let _ = write!(text, "{}{mark} -->\n\n{}\n{END}", &rest[..at], made(&mark[START.len()..], library)?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Returns what stands between the marks: title, table, and circumstances.
fn made(mark: &str, library: &Library) -> Result<String> {
    let (name, chosen) = mark.split_once("; rows: ").map_or((mark, None), |(name, rows)| (name, Some(rows)));
    let results = library.get(name)?;
    let rows = match chosen {
        None => results.rows.iter().collect(),
        Some(chosen) => rows(results, chosen).with_context(|| name.to_owned())?,
    };
    let mut text = format!("**{}**\n\n", results.title);
    let mut line = |cells: &[String]| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    line(&results.columns);
    let rules: Vec<String> = results.columns.iter().map(|_| "---".into()).collect();
    line(&rules);
    rows.into_iter().for_each(|row| line(row));
    let _ = writeln!(text, "\n{}", circumstances(results));
    Ok(text)
}

/// Returns the rows whose first cell is one of `chosen`, in the order of the table.
fn rows<'a>(results: &'a Results, chosen: &str) -> Result<Vec<&'a Vec<String>>> {
    let chosen: Vec<&str> = chosen.split(" | ").collect();
    for label in &chosen {
        ensure!(results.rows.iter().any(|row| row[0] == *label), "no row {label}");
    }
    Ok(results.rows.iter().filter(|row| chosen.contains(&row[0].as_str())).collect())
}

/// Returns the sentences below a table.
fn circumstances(results: &Results) -> String {
    let driver = results.driver.as_ref().map_or(String::new(), |driver| format!(", driver {driver}"));
    let commits = results.commits.join(", ");
    let commits =
        if results.commits.len() == 1 { format!("commit {commits}") } else { format!("commits {commits}") };
    let note = results.note.as_ref().map_or(String::new(), |note| format!(" {note}"));
    let Results { adapter, date, command, .. } = results;
    format!("{adapter}{driver}, {date}, {commits}: `{command}`.{note}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> Library {
        let mut library = Library::default();
        let text = r#"{"title":"Speed","date":"2026-11-23","commits":["a1"],"adapter":"Card","driver":"1.0",
            "command":"cargo xtask bench e2e","note":"One run.","columns":["streams","tok/s"],
            "rows":[["1","10"],["8","60"]]}"#;
        library.add("speed", text).unwrap();
        library
    }

    #[test]
    fn marks_become_tables() {
        let page = "# Page\n\n<!-- results: speed; rows: 8 -->\nold\n<!-- end of results -->\n\nAfter.\n";
        let expected = "# Page\n\n<!-- results: speed; rows: 8 -->\n\n**Speed**\n\n| streams | tok/s |\n| --- | --- |\n\
            | 8 | 60 |\n\nCard, driver 1.0, 2026-11-23, commit a1: `cargo xtask bench e2e`. One run.\n\n\
            <!-- end of results -->\n\nAfter.\n";
        let made = with_tables(page, &library()).unwrap();
        assert_eq!(made, expected);
        assert_eq!(with_tables(&made, &library()).unwrap(), made, "a page that is made stays");
    }

    #[test]
    fn faults_of_marks_are_named() {
        let told = |page: &str| format!("{:#}", with_tables(page, &library()).unwrap_err());
        assert_eq!(told("<!-- results: fast -->\n<!-- end of results -->"), "no results of the name fast");
        assert_eq!(told("<!-- results: speed; rows: 9 -->\n<!-- end of results -->"), "speed: no row 9");
        assert_eq!(
            told("<!-- results: speed -->\n"),
            "<!-- results: speed: no <!-- end of results --> after it"
        );
    }
}
