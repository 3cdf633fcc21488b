//! The order of the tree: file sizes, kernels and their twins, stray text, links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use xtask::tree;

/// Lines that a source file should not pass.
const LINES_SOFT: usize = 600;
/// Lines that no source file may pass.
const LINES_HARD: usize = 1000;

/// Files above the soft limit, each with the reason why it is better left whole.
const LONG_FOR_A_REASON: [(&str, &str); 0] = [];

/// Columns that no comment may pass; rustfmt takes care of code.
const COMMENT_COLUMNS: usize = 130;

/// Crates whose kernels are a `.wgsl` with a twin of the same stem in each of these folders.
const KERNEL_CRATES: [&str; 2] = ["attn-kernels", "models/dense-kernels"];
const TWINS: [&str; 2] = ["src/kernel", "src/cpu"];

/// A path that begins like one of these belongs to one machine. Spelled in two parts, as this file is checked too.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tm", "p/"), concat!("/ho", "me/")];

/// A text file of the tree: its path with `/`, and its text.
struct File {
    path: String,
    text: String,
}

fn slashed(path: &Path) -> String {
    path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Files of the tree that people write, as far as they are text.
fn written() -> Vec<File> {
    const EXTENSIONS: [&str; 8] = ["rs", "wgsl", "toml", "md", "ron", "yml", "sh", "py"];
    let is_written = |path: &PathBuf| {
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        path.starts_with(".ci") || extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
    };
    let paths = tree::files(tree::root()).into_iter().filter(is_written);
    let file = |path: PathBuf| {
        Some(File { text: fs::read_to_string(tree::root().join(&path)).ok()?, path: slashed(&path) })
    };
    let files: Vec<_> = paths.filter_map(file).collect();
    assert!(files.iter().any(|file| file.path == "xtask/tests/it/tidy.rs"), "the tree was not found");
    files
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

fn size_fault(path: &str, lines: usize, exempt: bool) -> Option<String> {
    if lines > LINES_HARD {
        Some(format!("{path}: {lines} lines, no file may pass {LINES_HARD}"))
    } else if lines > LINES_SOFT && !exempt {
        Some(format!(
            "{path}: {lines} lines; split it below {LINES_SOFT}, or give a reason in xtask/tests/it/tidy.rs"
        ))
    } else {
        None
    }
}

#[test]
fn source_files_are_short() {
    let mut faults = Vec::new();
    for file in written().iter().filter(|file| file.path.ends_with(".rs") || file.path.ends_with(".wgsl")) {
        let exempt = LONG_FOR_A_REASON.iter().any(|(path, _)| *path == file.path);
        faults.extend(size_fault(&file.path, file.text.lines().count(), exempt));
    }
    for (path, reason) in LONG_FOR_A_REASON {
        let lines = fs::read_to_string(tree::root().join(path)).map_or(0, |text| text.lines().count());
        if lines <= LINES_SOFT || reason.is_empty() {
            faults.push(format!("{path}: {lines} lines need no exception, or it gives no reason"));
        }
    }
    assert_none(&faults);
}

#[test]
fn size_limits_hold_at_their_edges() {
    assert_eq!(size_fault("a.rs", 600, false), None);
    assert!(size_fault("a.rs", 601, false).is_some());
    assert_eq!(size_fault("a.rs", 1000, true), None);
    assert!(size_fault("a.rs", 1001, true).is_some());
}

#[test]
fn comments_are_narrow() {
    let mut faults = Vec::new();
    for file in written().iter().filter(|file| file.path.ends_with(".rs") || file.path.ends_with(".wgsl")) {
        let wide =
            |line: &&str| line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS;
        let wide = file.text.lines().enumerate().filter(|(_, line)| wide(line));
        faults.extend(
            wide.map(|(at, _)| format!("{}:{}: more than {COMMENT_COLUMNS} columns", file.path, at + 1)),
        );
    }
    assert_none(&faults);
}

#[test]
fn every_kernel_has_its_twins() {
    let mut faults = Vec::new();
    for name in KERNEL_CRATES {
        faults.extend(
            kernel_faults(&tree::root().join(name)).into_iter().map(|fault| format!("{name}/{fault}")),
        );
    }
    assert_none(&faults);
}

/// Kernels of a crate that lack a twin. Files below `wgsl/shared` are parts of kernels.
fn kernel_faults(folder: &Path) -> Vec<String> {
    let kernels = tree::files(&folder.join("wgsl"));
    let kernels = kernels.iter().filter(|path| path.extension().is_some_and(|extension| extension == "wgsl"));
    let mut faults = Vec::new();
    for kernel in kernels.filter(|path| !path.starts_with("shared")) {
        let stem = kernel.file_stem().unwrap().to_string_lossy();
        // A kernel of another level or tiling computes what the kernel it is named after computes: they share the reference.
        let [kernel_twin, reference] = TWINS;
        let ends = ["_coop", "_broadcast", "_subgroup", "_tile"];
        let computed = ends.iter().fold(&*stem, |stem, end| stem.trim_end_matches(end));
        let twins = [(kernel_twin, &*stem), (reference, computed)];
        for twin in twins.map(|(twins, stem)| format!("{twins}/{stem}.rs")) {
            if !folder.join(&twin).is_file() {
                faults.push(format!("wgsl/{} has no twin {twin}", slashed(kernel)));
            }
        }
    }
    faults
}

#[test]
fn a_kernel_without_a_twin_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    for path in [
        "wgsl/a.wgsl",
        "wgsl/b.wgsl",
        "wgsl/shared/c.wgsl",
        "src/kernel/a.rs",
        "src/cpu/a.rs",
        "src/cpu/b.rs",
    ] {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    assert_eq!(kernel_faults(folder.path()), ["wgsl/b.wgsl has no twin src/kernel/b.rs"]);
}

/// Returns what is wrong with a line, if anything.
fn line_fault(line: &str) -> Option<&'static str> {
    if line.ends_with([' ', '\t', '\r']) {
        return Some("ends in white space");
    }
    let machine_path = MACHINE_PATHS.iter().any(|path| {
        line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|before| !before.is_alphanumeric() && !"_-.}~".contains(before))
        })
    });
    machine_path.then_some("holds a path of one machine")
}

#[test]
fn lines_are_clean() {
    let mut faults = Vec::new();
    for file in written() {
        let lines = file.text.lines().enumerate();
        let found =
            lines.filter_map(|(at, line)| Some(format!("{}:{}: {}", file.path, at + 1, line_fault(line)?)));
        faults.extend(found);
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            faults.push(format!("{}: does not end in a line break", file.path));
        }
    }
    assert_none(&faults);
}

#[test]
fn stray_text_in_a_line_is_caught() {
    assert_eq!(line_fault("let a = 1; "), Some("ends in white space"));
    for path in MACHINE_PATHS {
        assert_eq!(line_fault(&format!("open(\"{path}x\")")), Some("holds a path of one machine"));
        assert_eq!(line_fault(&format!("see docs{path}x")), None);
    }
    assert_eq!(line_fault("let a = 1;"), None);
}

/// Doc summaries that begin with a word that needs something before it. A summary begins with a verb in the third person, or
/// is a noun phrase that stands alone.
fn unvoiced<'a>(text: &'a str, marks: &[&'static str]) -> Vec<&'a str> {
    const OPENINGS: [&str; 16] = [
        "What ",
        "Of ",
        "Where ",
        "Which ",
        "How ",
        "Most ",
        "Whose ",
        "The same ",
        "Those ",
        "That of ",
        "Its ",
        "Their ",
        "They ",
        "These ",
        "So many ",
        "In which ",
    ];
    let mark = |line: &str| marks.iter().copied().find(|mark| line.starts_with(mark));
    let mut before = None;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let here = mark(line);
        let summary = here.filter(|_| here != before).map_or("", |mark| line[mark.len()..].trim_start());
        if OPENINGS.iter().any(|opening| summary.starts_with(opening)) {
            found.push(line);
        }
        before = here;
    }
    found
}

#[test]
fn doc_summaries_stand_alone() {
    let mut faults = Vec::new();
    for (ending, marks) in [(".rs", &["///", "//!"][..]), (".wgsl", &["// "])] {
        for file in written().iter().filter(|file| file.path.ends_with(ending)) {
            let unvoiced = unvoiced(&file.text, marks).into_iter();
            faults.extend(unvoiced.map(|line| format!("{}: {line}", file.path)));
        }
    }
    assert_none(&faults);
}

#[test]
fn summaries_that_do_not_are_caught() {
    let text = [
        "//! What is here.",
        "",
        "/// Counts.",
        "/// Of all, some.",
        "fn a() {}",
        "    /// Of its bytes, some.",
        "    b: u32,",
    ];
    assert_eq!(unvoiced(&text.join("\n"), &["///", "//!"]), [text[0], text[5].trim()]);
    assert_eq!(unvoiced("// Which one.\n// What it is.\nfn a() {}", &["// "]), ["// Which one."]);
}

/// Phrases that make a doc comment hard to read, each with what to write instead.
const UNCLEAR_PHRASES: [(&str, &str); 15] = [
    ("at hand", "name the thing"),
    ("all the same", "nevertheless"),
    ("asked for", "requested"),
    ("behind", "after"),
    ("beside", "next to"),
    ("besides", "in addition to"),
    ("lays out", "arranges"),
    ("nobody", "name who"),
    ("of which `", "say it in a sentence of its own"),
    ("somebody", "name who"),
    ("taken in", "summarised, read or copied"),
    ("where there are", "if there are"),
    ("where there is", "if there is"),
    ("wants to", "needs to"),
    ("wishes", "requests"),
];

/// Sources whose doc comments are the texts of `--help`, which users and snapshots know.
const HELP_TEXTS: [&str; 2] = ["xtask/src/cli", "xtask/cli/src/cli"];

/// Returns the first of [`UNCLEAR_PHRASES`], or a bare "of which", in each paragraph of the doc comments of a source file.
fn unclear(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    for line in text.lines().map(str::trim).chain([""]) {
        let rest = ["///", "//!"].iter().find_map(|mark| line.strip_prefix(mark)).map_or("", str::trim);
        if rest.is_empty() {
            found.extend(unclear_phrase(&paragraph).or_else(|| bare_of_which(&paragraph)));
            paragraph.clear();
        } else {
            paragraph.push(' ');
            paragraph.push_str(rest);
        }
    }
    found
}

/// Returns the first of [`UNCLEAR_PHRASES`] in a paragraph, and what is wrong with it.
fn unclear_phrase(paragraph: &str) -> Option<String> {
    let padded = format!("{} ", paragraph.to_lowercase().replace([',', ';', ':', '.'], " "));
    let (phrase, instead) = UNCLEAR_PHRASES.iter().find(|(phrase, _)| {
        let end = if phrase.ends_with('`') { "" } else { " " };
        padded.contains(&format!(" {phrase}{end}"))
    })?;
    Some(format!("\"{phrase}\" ({instead}) in \"{}\"", paragraph.trim()))
}

/// Returns what is wrong with a paragraph that says "of which" without the part that it is about, such as "each of which".
fn bare_of_which(paragraph: &str) -> Option<String> {
    const PARTS: [&str; 8] = ["all", "both", "each", "first", "last", "none", "one", "some"];
    let words: Vec<_> = paragraph.split_whitespace().collect();
    let bare = words.windows(3).any(|words| words[1..] == ["of", "which"] && !PARTS.contains(&words[0]));
    bare.then(|| format!("\"of which\" (say it in a sentence of its own) in \"{}\"", paragraph.trim()))
}

/// Units that summaries of numbers begin with by mistake.
const COUNTED: [&str; 18] = [
    "16-byte",
    "Blocks",
    "Channels",
    "Columns",
    "Elements",
    "Entries",
    "Experts",
    "KV heads",
    "Keys",
    "Lanes",
    "Lists",
    "Query heads",
    "Rows",
    "Tokens",
    "Words",
    "Workgroups",
    "f32",
    "u32",
];

/// Summaries of whole-number fields that begin with the counted things, and not with "Number of".
fn uncounted(text: &str) -> Vec<&str> {
    const NUMBERS: [&str; 4] = ["u16,", "u32,", "u64,", "usize,"];
    // Bindings of a kernel, which are buffers of numbers.
    const BUFFERS: [&str; 3] = ["read ", "write ", "index "];
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let is_buffer =
        |line: &str| line.starts_with("//") || BUFFERS.iter().any(|access| line.starts_with(access));
    let is_number =
        |line: &str| !is_buffer(line) && line.rsplit_once(": ").is_some_and(|(_, of)| NUMBERS.contains(&of));
    let is_doc = |line: &&str| line.starts_with("///");
    let mut found = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(at, line)| *at > 0 && is_number(line)) {
        let docs = lines[..at].iter().rev().take_while(|line| is_doc(line)).count();
        let summary = lines[at - docs];
        let begins = |unit: &&str| summary.strip_prefix("/// ").and_then(|rest| rest.strip_prefix(*unit));
        let counts =
            COUNTED.iter().filter_map(begins).any(|rest| rest.starts_with([' ', '.', ',', ':', ';']));
        if docs > 0 && counts {
            found.push(summary);
        }
    }
    found
}

#[test]
fn summaries_of_numbers_say_so() {
    let mut faults = Vec::new();
    for file in written().iter().filter(|file| file.path.contains("src/") && file.path.ends_with(".rs")) {
        if !HELP_TEXTS.iter().any(|help| file.path.starts_with(help)) {
            let uncounted = uncounted(&file.text).into_iter();
            faults.extend(uncounted.map(|line| format!("{}: begin with \"Number of\": {line}", file.path)));
        }
    }
    assert_none(&faults);
}

#[test]
fn numbers_without_the_word_are_caught() {
    let text = "/// Rows.\npub rows: u32,\n/// Number of rows.\nold: usize,\n/// Rows of x.\nx: Vec<u32>,\n";
    assert_eq!(uncounted(text), ["/// Rows."]);
    assert_eq!(
        uncounted("    /// Keys of a part,\n    /// at least one.\n    keys: u64,"),
        ["/// Keys of a part,"]
    );
    assert_eq!(uncounted("rows: u32,\nkeys: u32,"), [""; 0]);
}

#[test]
fn doc_comments_are_in_plain_words() {
    let files = written();
    let sources = files.iter().filter(|file| file.path.contains("src/") && file.path.ends_with(".rs"));
    let faults =
        sources.filter(|file| !HELP_TEXTS.iter().any(|help| file.path.starts_with(help))).flat_map(|file| {
            unclear(&file.text).into_iter().map(|fault| format!("{}: {fault}", file.path)).collect::<Vec<_>>()
        });
    assert_none(&faults.collect::<Vec<_>>());
}

/// Pages for users and contributors that are held to plain words.
const PLAIN_PAGES: [&str; 17] = [
    "README.md",
    "SECURITY.md",
    "docs/benchmarks.md",
    "docs/crates.md",
    "docs/first-hour.md",
    "docs/fleet.md",
    "docs/guide.md",
    "docs/host-weights.md",
    "docs/kernels.md",
    "docs/kv-tiers.md",
    "docs/measuring-a-server.md",
    "docs/models.md",
    "docs/reading-benchmarks.md",
    "docs/serving.md",
    "docs/sparse-attention.md",
    "docs/testing.md",
    "docs/troubleshooting.md",
];

/// Returns the paragraphs and table rows of a page, without code.
fn paragraphs(page: &str) -> Vec<String> {
    let prose = page.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    let prose = prose.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let rows = prose.replace("\n|", "\n\n|");
    rows.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect()
}

#[test]
fn pages_are_in_plain_words() {
    let mut faults = Vec::new();
    for path in PLAIN_PAGES {
        let page = fs::read_to_string(tree::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let unclear = paragraphs(&page).into_iter().filter_map(|paragraph| unclear_phrase(&paragraph));
        faults.extend(unclear.map(|fault| format!("{path}: {fault}")));
    }
    assert_none(&faults);
}

#[test]
fn unclear_phrases_of_pages_are_caught() {
    let page = "Runs behind\nit.\n\n```sh\nrun behind it\n```\n\n| a | b |\n|---|---|\n| beside c | d |\n";
    let found: Vec<_> = paragraphs(page).iter().filter_map(|text| unclear_phrase(text)).collect();
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn unclear_phrases_are_caught() {
    let text =
        "/// The norm behind the\n/// last layer, where there is one.\nfn a() {}\n/// Counts.\nfn b() {}";
    let fault = "\"behind\" (after) in \"The norm behind the last layer, where there is one.\"";
    assert_eq!(unclear(text), [fault]);
    assert_eq!(unclear("/// Counts.\n///\n/// A tensor, of which `done` was read.").len(), 1);
    assert_eq!(unclear("/// Extents, the last of which is a row."), [""; 0]);
    assert_eq!(unclear("/// A number of which budgets are multiples.").len(), 1);
    assert_eq!(unclear("// behind it\nlet behind = 1;"), [""; 0]);
}

/// Targets of the links `[text](target)` in Markdown, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let prose = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (at, _) in prose.match_indices("](").filter(|_| !in_code) {
            let target = prose[at + 2..].split([')', ' ']).next().unwrap_or_default();
            links.push(target.to_string());
        }
    }
    links
}

/// Anchors of a page, as forges make them from headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    headings
        .map(|h| h.to_lowercase().chars().filter(|&c| kept(c)).collect::<String>().replace(' ', "-"))
        .collect()
}

/// Whether a relative link on the page `from` leads to a file, and its anchor to a heading there.
fn resolves(root: &Path, from: &str, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let page = root.join(from);
    let target = if path.is_empty() { page } else { page.parent().unwrap().join(path) };
    match anchor {
        Some(anchor) if target.extension().is_some_and(|extension| extension == "md") => {
            fs::read_to_string(target).is_ok_and(|text| anchors(&text).contains(anchor))
        }
        _ => target.exists(),
    }
}

#[test]
fn links_lead_somewhere() {
    let mut faults = Vec::new();
    for page in written().iter().filter(|file| file.path.ends_with(".md")) {
        let relative = links(&page.text).into_iter().filter(|link| !link.contains("://"));
        let dead = relative.filter(|link| !resolves(tree::root(), &page.path, link));
        faults.extend(dead.map(|link| format!("{}: {link} leads nowhere", page.path)));
    }
    assert_none(&faults);
}

#[test]
fn dead_links_are_caught() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("docs")).unwrap();
    let page = "# Two words, really\n[a](b.md) `[no](x)` and [c](../README.md#top)\n```\n[no](y)\n```\n[d](#two-words-really)\n";
    fs::write(folder.path().join("docs/a.md"), page).unwrap();
    fs::write(folder.path().join("README.md"), "# Start\n").unwrap();
    let found = links(page);
    assert_eq!(found, ["b.md", "../README.md#top", "#two-words-really"]);
    let alive: Vec<_> = found.iter().map(|link| resolves(folder.path(), "docs/a.md", link)).collect();
    assert_eq!(alive, [false, false, true]);
    assert!(resolves(folder.path(), "docs/a.md", "../README.md#start"));
}

/// Pages that are kept for the record and are no part of the book.
const NOT_IN_THE_BOOK: [&str; 1] = ["lab-notes.md"];

#[test]
fn the_summary_lists_every_page() {
    let docs = tree::root().join("docs");
    let listed: BTreeSet<_> =
        links(&fs::read_to_string(docs.join("SUMMARY.md")).unwrap()).into_iter().collect();
    let pages = tree::files(&docs).into_iter().map(|path| slashed(&path));
    let unlisted: Vec<_> = pages
        .filter(|page| page.ends_with(".md") && page != "SUMMARY.md" && !listed.contains(page))
        .filter(|page| !NOT_IN_THE_BOOK.contains(&&**page))
        .collect();
    assert_none(&unlisted);
    assert!(
        NOT_IN_THE_BOOK.iter().all(|page| !listed.contains(*page)),
        "the book lists a page of the record"
    );
}

/// Links of the book lead to its pages, or to pictures and other files below `docs`, which mdBook copies.
#[test]
fn links_of_the_book_stay_inside_it() {
    let docs = tree::root().join("docs");
    let listed: BTreeSet<_> =
        links(&fs::read_to_string(docs.join("SUMMARY.md")).unwrap()).into_iter().collect();
    let mut faults = Vec::new();
    for page in &listed {
        let targets = links(&fs::read_to_string(docs.join(page)).unwrap());
        let copied =
            |link: &str| !link.starts_with("..") && !link.ends_with(".md") && docs.join(link).is_file();
        let inside = |link: &str| {
            link.starts_with('#') || listed.contains(link.split('#').next().unwrap()) || copied(link)
        };
        let outside = targets.into_iter().filter(|link| !link.contains("://") && !inside(link));
        faults.extend(outside.map(|link| format!("docs/{page}: {link} is no page of the book")));
    }
    assert_none(&faults);
}

#[test]
fn every_snapshot_file_names_a_source_that_exists() {
    let snapshots =
        tree::files(tree::root()).into_iter().filter(|path| path.extension().is_some_and(|e| e == "snap"));
    let mut faults = Vec::new();
    for path in snapshots {
        let text = fs::read_to_string(tree::root().join(&path)).unwrap();
        let source =
            text.lines().find_map(|line| line.strip_prefix("source: ")).unwrap_or_default().trim_matches('"');
        if source.is_empty() || !tree::root().join(source).is_file() {
            faults.push(format!("{}: its source {source:?} does not exist", slashed(&path)));
        }
    }
    assert_none(&faults);
}
