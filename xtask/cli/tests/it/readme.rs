//! The table of the README is held to the flags that there are.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use pagoda_cli::cli::Cli;

/// Rows of the table: the names in code marks of each cell.
fn rows() -> Vec<[Vec<&'static str>; 3]> {
    let (_, table) =
        include_str!("../../README.md").split_once("| `pagoda` | llama.cpp | vLLM |\n").expect("the table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let names = |cell: &'static str| cell.split('`').skip(1).step_by(2).collect::<Vec<_>>();
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(names).collect();
        cells.try_into().unwrap_or_else(|_| panic!("three cells: {row}"))
    })
    .collect()
}

#[test]
fn every_flag_of_what_runs_a_model_has_its_row() {
    let command = Cli::command();
    let subcommands = ["run", "chat", "serve"].map(|name| command.find_subcommand(name).unwrap());
    let args: Vec<_> = subcommands.iter().flat_map(|command| command.get_arguments()).collect();
    let flags: BTreeSet<String> =
        args.iter().filter_map(|arg| arg.get_long()).map(|long| format!("--{long}")).collect();
    let listed: BTreeSet<String> = rows().iter().map(|row| row[0][0].to_owned()).collect();
    assert_eq!(listed, flags);
    // Names of others that are taken too are in the row of the flag, as is the short one.
    for row in rows() {
        let long = row[0][0].trim_start_matches('-');
        for arg in args.iter().filter(|arg| arg.get_long() == Some(long)) {
            for alias in arg.get_all_aliases().unwrap_or_default() {
                let told = row[1..].iter().flatten().any(|name| name.trim_start_matches('-') == alias);
                assert!(told, "--{long} is also taken as --{alias}");
            }
            let short = arg.get_short().map(|short| format!("-{short}"));
            assert!(short.is_none_or(|short| row[0].contains(&short.as_str())), "--{long} has a short name");
        }
    }
}
