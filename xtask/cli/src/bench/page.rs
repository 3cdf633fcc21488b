//! Files of results: the JSON of each suite, and next to it one page that draws all results of its folder. The page loads
//! nothing.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

const PAGE: &str = include_str!("../../bench/page.html");
const STYLE: &str = include_str!("../../bench/page.css");
const SCRIPTS: [&str; 3] = [
    include_str!("../../bench/draw.mjs"),
    include_str!("../../bench/policies.mjs"),
    include_str!("../../bench/suites.mjs"),
];

/// Name of the page of a folder.
const FILE: &str = "bench.html";

/// Suites whose JSON the page draws. The files of a suite have its name, or begin with its name and a dash.
const SUITES: [&str; 8] = ["e2e", "kernels", "policies", "report", "restart", "serve", "trace", "turnover"];

/// JSON of a suite on the page.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    /// Name of the suite.
    pub suite: &'a str,
    /// Name of the JSON file.
    pub file: String,
    /// Content of the file.
    pub data: Value,
}

/// Writes `results` as the JSON file `name`, and rewrites the page of the folder.
///
/// # Errors
/// If the folder cannot be created or read, or a file cannot be written.
pub fn write(folder: &Path, name: &str, results: &impl Serialize) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    save(&folder.join(name), &serde_json::to_string_pretty(results)?)?;
    let path = folder.join(FILE);
    save(&path, &page(&read(folder)?)?)?;
    eprintln!("{}: charts of all results there", path.display());
    Ok(())
}

/// Writes a file.
///
/// # Errors
/// If it cannot be written.
pub fn save(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// The results in a folder, by name. Files that are no JSON, such as one that is half written, are left out.
fn read(folder: &Path) -> Result<Vec<Shown<'static>>> {
    let mut all = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("{}: cannot be read", folder.display()))?;
    for entry in entries.filter_map(Result::ok) {
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(suite) = suite_of(&file) else { continue };
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        all.extend(serde_json::from_str(&text).ok().map(|data| Shown { suite, file, data }));
    }
    all.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(all)
}

fn suite_of(file: &str) -> Option<&'static str> {
    let stem = file.strip_suffix(".json")?;
    SUITES
        .into_iter()
        .find(|suite| stem.strip_prefix(suite).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
}

/// The page of results.
///
/// # Errors
/// If they are no JSON.
pub fn page(results: &[Shown<'_>]) -> Result<String> {
    // The scripts are modules that tests import; here they are one.
    let lines = SCRIPTS.iter().flat_map(|script| script.lines()).filter(|line| !line.starts_with("import "));
    let script: Vec<&str> = lines.map(|line| line.strip_prefix("export ").unwrap_or(line)).collect();
    // No text of the results can end the element that holds them.
    let data = serde_json::to_string(results)?.replace('<', "\\u003c");
    let (head, rest) = PAGE.split_once("/* style */").unwrap_or_default();
    let (before, rest) = rest.split_once("/* results */").unwrap_or_default();
    let (between, end) = rest.split_once("/* script */").unwrap_or_default();
    Ok([head, STYLE.trim_end(), before, &data, between, &script.join("\n"), end].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_page_of_all_results() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("trace-two bursts.json", "{\"workload\": \"</script>\"}");
        write("kernels.json", "{\"half");
        write("policies.jsonl", "{}");
        write("package.json", "{}");
        super::write(folder.path(), "e2e.json", &[1, 2]).unwrap();
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        let data = text.split_once("id=\"results\">").unwrap().1.split_once("</script>").unwrap().0;
        let shown: Value = serde_json::from_str(data).unwrap();
        let files: Vec<_> =
            shown.as_array().unwrap().iter().map(|shown| [&shown["suite"], &shown["file"]]).collect();
        assert_eq!(files, [["e2e", "e2e.json"], ["trace", "trace-two bursts.json"]]);
        assert_eq!(shown[1]["data"]["workload"], "</script>");
    }

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let page = page(&[]).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        for gone in ["/* style */", "/* results */", "/* script */", "\nimport ", "\nexport "] {
            assert!(!page.contains(gone), "{gone}");
        }
        for loads in ["<link", "<img", "src=", "url(", "@import", "fetch("] {
            assert!(!page.contains(loads), "{loads}");
        }
    }

    /// Contrast of two colours after WCAG 2.2, from 1 to 21.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |color: &str| {
            let wide = if color.len() == 4 {
                color[1..].chars().flat_map(|c| [c, c]).collect()
            } else {
                color[1..].to_owned()
            };
            let linear = |at: usize| {
                let part = f64::from(u8::from_str_radix(&wide[at..at + 2], 16).unwrap()) / 255.0;
                if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * linear(0) + 0.7152 * linear(2) + 0.0722 * linear(4)
        };
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn colours_are_readable_in_both_schemes() {
        let values = |name: &str| -> Vec<&str> {
            STYLE.split(name).skip(1).map(|rest| rest.split([';', '}']).next().unwrap()).collect()
        };
        let (papers, inks) = (values("--paper:"), values("--ink:"));
        let series: Vec<&str> = (0..10).map(|at| values(&format!(".s{at}{{color:"))[0]).collect();
        assert_eq!((papers.len(), inks.len()), (2, 2));
        // The bounds are WCAG's for graphics and for text.
        for (paper, ink) in papers.iter().zip(inks) {
            assert!(contrast(ink, paper) >= 7.0, "{ink} on {paper}");
            for color in &series {
                assert!(contrast(color, paper) >= 3.0, "{color} on {paper}: {}", contrast(color, paper));
            }
        }
    }
}
