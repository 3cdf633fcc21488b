//! Tables of the pages repeat what code knows; here they are held to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use xtask::tree;

fn page(path: &str) -> String {
    fs::read_to_string(tree::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The part of a page below a heading, up to the next heading of its level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let level = heading.split(' ').next().expect("headings have a mark");
    rest.split(&format!("\n{level} ")).next().expect("a split has a first part")
}

/// Cells of the rows of the tables in `text`, headers and rules left out.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    let is_rule = |line: &str| line.chars().all(|c| "|-: ".contains(c));
    let header = |at: usize| is_rule(lines[at]) || lines.get(at + 1).is_some_and(|next| is_rule(next));
    let body = (0..lines.len()).filter(|at| !header(*at)).map(|at| lines[at]);
    body.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Names in code marks.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn the_policies() {
    let page = page("sparse-select/README.md");
    let listed: BTreeSet<_> = rows(&page).iter().flat_map(|row| names(row[0])).map(String::from).collect();
    for entry in sparse_select::Registry::builtin().entries() {
        assert!(listed.contains(entry.name), "sparse-select/README.md lacks {}", entry.name);
    }
}

#[test]
fn the_formats_of_weights() {
    let page = page("models/checkpoint/README.md");
    let rows = rows(&page);
    let formats = rows.iter().find(|row| row[0].contains("`Dtype`")).expect("a row of Dtype")[1];
    let listed: BTreeSet<_> = formats.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let lacking: Vec<_> =
        models::Dtype::ALL.iter().map(|d| d.name()).filter(|name| !listed.contains(name)).collect();
    assert!(lacking.is_empty(), "models/checkpoint/README.md lacks the formats {lacking:?}");
}

#[test]
fn the_families() {
    let page_text = page("models/checkpoint/README.md");
    let rows = rows(section(&page_text, "## Families"));
    let readme = page("README.md");
    let row_of_models = readme.lines().find(|line| line.contains("](models) |")).expect("a row of models");
    let named = |cell: Option<&str>| cell.map_or(String::new(), |name| format!("`{name}`"));
    for family in models::Family::ALL {
        let [config, gguf] = [family.model_type(), family.architecture()].map(named);
        let row = rows.iter().find(|row| row[1] == config && row[2] == gguf);
        let row = row.unwrap_or_else(|| {
            panic!("models/checkpoint/README.md lacks a row of {family:?}: {config} | {gguf}")
        });
        // "Qwen3" is told as "Qwen" where all crates are listed.
        let name =
            row[0].split(|c: char| c.is_ascii_digit()).next().expect("a split has a first part").trim();
        assert!(row_of_models.contains(name), "README.md does not name {name} beside models");
    }
    assert_eq!(rows.len(), models::Family::ALL.len(), "models/checkpoint/README.md has rows of no family");
}

/// The place where a policy selects follows from what the policy offers.
#[test]
fn where_policies_select() {
    use sparse_select::policy::Ranking;
    let registry = sparse_select::Registry::builtin();
    let page = page("docs/sparse-attention.md");
    let rows = rows(section(&page, "## Where blocks are selected"));
    let row = |words: &str| {
        rows.iter().position(|row| row[2].starts_with(words)).unwrap_or_else(|| panic!("no {words}"))
    };
    for entry in registry.entries().iter().filter(|entry| entry.name != "full") {
        let policy = registry.build(&entry.name.parse().unwrap()).unwrap();
        let wanted = match (policy.ranking(), policy.antidiagonals()) {
            (Some(Ranking::Digests(_)), _) => row("digests of pages"),
            (Some(Ranking::Hashes(_)), _) => row("binary hashes"),
            (Some(Ranking::Compressed(_)), _) => row("digests of pages, which"),
            (None, Some(_)) => row("queries and cached keys, one"),
            (None, None) if policy.energies().is_some() => row("queries, and the mean"),
            (None, None) if policy.skips().is_some() => row("nothing that attention"),
            (None, None) if !policy.support().query => row("lengths"),
            (None, None) => rows.len() - 1,
        };
        let listed = rows
            .iter()
            .position(|row| names(row[0]).next().is_some() && names(row[0]).any(|name| name == entry.name));
        assert_eq!(listed.unwrap_or(rows.len() - 1), wanted, "docs/sparse-attention.md: {}", entry.name);
    }
}

#[test]
fn the_sources_name_files() {
    let page = page("docs/sources.md");
    let rows = rows(&page);
    let places: Vec<&str> = rows.iter().flat_map(|row| names(row[1])).collect();
    assert!(places.len() > 60, "{} files", places.len());
    let lacking: Vec<_> = places.iter().filter(|place| !tree::root().join(place).is_file()).collect();
    assert!(lacking.is_empty(), "docs/sources.md names {lacking:?}");
}

#[test]
fn the_sources_name_tests() {
    let page = page("docs/sources.md");
    let shown: Vec<&str> = rows(&page).iter().map(|row| *row.get(3).expect("rows have four cells")).collect();
    let tests: Vec<_> =
        shown.iter().flat_map(|cell| names(cell)).filter_map(|name| name.split_once("::")).collect();
    assert!(tests.len() > 60, "{} tests", tests.len());
    let exists = |(file, test): &(&str, &str)| {
        std::fs::read_to_string(tree::root().join(file))
            .is_ok_and(|text| text.contains(&format!("fn {test}(")))
    };
    let lacking: Vec<_> = tests.iter().filter(|test| !exists(test)).collect();
    assert!(lacking.is_empty(), "docs/sources.md names {lacking:?}");
}

#[test]
fn the_keys_of_tier_specs() {
    let page = page("docs/kv-tiers.md");
    for row in &rows(&page)[..7] {
        let key = names(row[0]).next().expect("rows begin with a key");
        let told =
            format!("{key}=?").parse::<prefetch::spec::TierSpec>().err().map(|error| error.to_string());
        assert!(
            !told.as_deref().is_some_and(|told| told.contains("unknown tier key")),
            "docs/kv-tiers.md: {key}: {told:?}"
        );
    }
    let told = "no-such-key=?".parse::<prefetch::spec::TierSpec>().unwrap_err().to_string();
    let (_, known) = told.split_once("keys are ").expect("the error lists the keys");
    for key in known.split(", ") {
        assert!(page.contains(&format!("| `{key}` |")), "docs/kv-tiers.md lacks {key}");
    }
}

/// The keys of a table of a manifest.
fn keys_of(manifest: &str, table: &str) -> Vec<String> {
    let manifest: toml::Table = page(manifest).parse().unwrap();
    let table = table.split('.').try_fold(&manifest, |at, key| at.get(key)?.as_table());
    table.map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn the_crates_and_their_features() {
    let workspace: toml::Table = page("Cargo.toml").parse().unwrap();
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let readme = page("README.md");
    for folder in members.iter().map(|member| member.as_str().unwrap()) {
        assert!(readme.contains(&format!("]({folder}) |")), "README.md lacks a row of {folder}");
        if folder == "xtask" {
            continue;
        }
        let own = page(&format!("{folder}/README.md"));
        for feature in keys_of(&format!("{folder}/Cargo.toml"), "features") {
            let told = feature == "default" || own.contains(&format!("`{feature}`"));
            assert!(told, "{folder}/README.md does not say what the feature {feature} is");
        }
    }
}

/// The names of this workspace in the table next to vLLM's exist: the library's root names them, or a file of it defines them.
#[test]
fn the_names_of_the_crates() {
    let page_text = page("docs/crates.md");
    let folders = BTreeMap::from([
        ("kvblock", "kvblock/src"),
        ("KvCache", "kvblock/src"),
        ("scheduler", "scheduler/src"),
        ("prefetch", "prefetch/src"),
        ("models", "models/src"),
        ("pagoda", "xtask/pagoda/src"),
        ("EngineOptions", "xtask/pagoda/src"),
    ]);
    let mut named = 0;
    for row in rows(section(&page_text, "## From vLLM's names to these")) {
        for (first, rest) in names(row[1]).filter_map(|name| name.split_once("::")) {
            let folder = folders.get(first).unwrap_or_else(|| panic!("docs/crates.md: {first} is no crate"));
            let item = rest.rsplit("::").next().expect("a split has a first part");
            let exported = page(&format!("{folder}/lib.rs"))
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == item);
            let defined = || {
                let forms = ["struct ", "trait ", "fn ", ""].map(|kind| format!("pub {kind}{item}"));
                let files = tree::files(&tree::root().join(folder));
                let text = |file| page(&format!("{folder}/{}", std::path::Path::display(file)));
                files.iter().any(|file| forms.iter().any(|form| text(file).contains(form)))
            };
            assert!(exported || defined(), "docs/crates.md: {first}::{rest} does not exist");
            named += 1;
        }
    }
    assert!(named > 20, "{named} names");
}

#[test]
fn the_modules_of_prefetch() {
    let page_text = page("prefetch/README.md");
    let listed: BTreeSet<_> =
        rows(&page_text).iter().flat_map(|row| names(row[0])).map(String::from).collect();
    let library = page("prefetch/src/lib.rs");
    for module in library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')) {
        assert!(listed.contains(module), "prefetch/README.md lacks {module}");
    }
}

#[test]
fn the_modules_of_these_tests() {
    let page = page("docs/testing.md");
    let rows = rows(section(&page, "## The tree"));
    let listed: BTreeSet<_> = rows.iter().flat_map(|row| names(row[0])).collect();
    let here = include_str!("main.rs").lines();
    let modules: BTreeSet<_> = here.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    assert_eq!(listed, modules, "docs/testing.md, modules of `xtask/tests/it`");
}

#[test]
fn the_routes() {
    let serving = page("docs/serving.md");
    let rows = rows(section(&serving, "## Routes"));
    let listed: BTreeSet<_> = rows
        .iter()
        .flat_map(|row| names(row[0]))
        .map(|route| route.trim_start_matches("GET ").trim_start_matches("POST ").to_string())
        .collect();
    let table = page("xtask/serve/src/routes.rs");
    let calls = table.lines().filter_map(|line| {
        let line = line.trim_start();
        let call = line.strip_prefix("get(").or(line.strip_prefix("post(")).unwrap_or(line);
        call.strip_prefix('"').filter(|path| path.starts_with('/'))?.split('"').next()
    });
    let routes: BTreeSet<_> = calls.map(|route| route.replace("{*name}", "NAME")).collect();
    let lacking: Vec<_> = routes.difference(&listed).collect();
    assert!(lacking.is_empty(), "docs/serving.md lacks {lacking:?}");
    // The files of the page are not listed one by one.
    let page = page("xtask/serve/src/page.rs");
    let gone: Vec<_> =
        listed.difference(&routes).filter(|route| !page.contains(&format!("(\"{route}\""))).collect();
    assert!(gone.is_empty(), "docs/serving.md has {gone:?}, which the router lacks");
}

/// Names tell the kernels of the level `coop`, and the kernel that has the baseline variant, as docs/kernels.md says.
#[test]
fn the_levels_of_kernels() {
    use attn_kernels::Level;
    let variants: Vec<_> = attn_kernels::variants().into_iter().chain(models::kernel::variants()).collect();
    let baseline = variants.iter().filter(|named| named.level() == Level::Baseline);
    let baseline: BTreeSet<_> = baseline.map(|named| named.variant.kernel.name).collect();
    for named in &variants {
        let kernel = named.variant.kernel.name;
        assert_eq!(kernel.ends_with("_coop"), named.level() == Level::Coop, "{}", named.name);
        let ends = ["_coop", "_broadcast", "_subgroup"];
        let stem = ends.iter().find_map(|end| kernel.strip_suffix(end)).unwrap_or(kernel);
        assert!(baseline.contains(stem), "{} has no baseline variant", named.name);
    }
}

/// Words of a line as a shell makes them; `None` from what is not a plain command.
fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (c, quote) {
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(q)) if c == q => quote = None,
            (' ', None) => words.extend(word.take()),
            ('>' | '|' | '#' | '&' | ';', None) if word.is_none() => break,
            ('$' | '[' | '`' | '…', None) => return None,
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Parses the words of a command.
type Parse<'a> = &'a dyn Fn(Vec<String>) -> Result<(), clap::Error>;

/// Every command that a page shows is one that its program takes.
#[test]
fn the_commands() {
    let registry = pagoda::Registry::builtin();
    let read: [(&str, Parse<'_>); 2] = [
        ("cargo xtask ", &|words| xtask::cli::Cli::try_parse_with(&registry, words).map(drop)),
        ("pagoda ", &|words| pagoda_cli::cli::Cli::try_parse_with(&registry, words).map(drop)),
    ];
    let pages =
        tree::files(tree::root()).into_iter().filter(|path| path.extension().is_some_and(|e| e == "md"));
    let mut counts = [0; 2];
    for path in pages {
        let text = fs::read_to_string(tree::root().join(&path)).unwrap().replace("\\\n", "");
        for ((program, read), count) in read.iter().zip(&mut counts) {
            let shown = text.lines().filter_map(|line| line.trim_start().strip_prefix(program));
            let spans = text.split('`').skip(1).step_by(2).filter(|span| !span.contains('\n'));
            let spans = spans.filter_map(|span| span.strip_prefix(program));
            for command in shown.chain(spans) {
                let Some(words) = words(command.split('`').next().unwrap()) else { continue };
                // A preset is read while the line is.
                let is_preset = |word: &str| word.ends_with(".ron") && word.starts_with("sparse-select");
                let words =
                    words.into_iter().map(|word| if is_preset(&word) { "quest".into() } else { word });
                if let Err(error) = read(std::iter::once(program.trim().into()).chain(words).collect()) {
                    let help = matches!(error.kind(), clap::error::ErrorKind::DisplayHelp);
                    let part = command.split(' ').count() < 2
                        && error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
                    assert!(help || part, "{}: {program}{command}: {error}", path.display());
                }
                *count += 1;
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 30), "{counts:?} commands were found");
}

/// Unsafe blocks of a text, without those in comments; functions that are unsafe have them inside.
fn unsafe_blocks(text: &str) -> usize {
    let code = text.lines().filter_map(|line| line.split("//").next());
    code.filter(|code| code.contains("unsafe {") || code.contains("unsafe impl")).count()
}

#[test]
fn unsafe_code_and_its_tests() {
    let page = page("SECURITY.md");
    let mut listed = BTreeSet::new();
    for row in rows(section(&page, "## Unsafe code")) {
        let path = names(row[0]).next().expect("the first cell names a file");
        let text = fs::read_to_string(tree::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(row[1], unsafe_blocks(&text).to_string(), "SECURITY.md: blocks of {path}");
        let dead = names(row[3]).find(|test| !tree::root().join(test).is_file());
        assert_eq!(dead, None, "SECURITY.md: a test of {path}");
        listed.insert(path);
    }
    let sources =
        tree::files(tree::root()).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let text = |path: &std::path::Path| fs::read_to_string(tree::root().join(path)).unwrap();
    // This file spells what it looks for.
    let has = |path: &std::path::PathBuf| !path.ends_with(file!()) && unsafe_blocks(&text(path)) > 0;
    let unlisted: Vec<_> =
        sources.filter(has).filter(|path| !listed.contains(&*path.to_string_lossy())).collect();
    assert!(unlisted.is_empty(), "SECURITY.md lacks {unlisted:?}");
}
