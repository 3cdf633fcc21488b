//! Reads `--ids-file`: a JSON list of token ids, or a list of lists of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Returns one list of token ids per sequence: at least one list, none of them empty.
///
/// # Errors
///
/// Every error names the file, and a bad entry by its position, counted from 0.
pub fn read(path: &Path) -> Result<Vec<Vec<u32>>> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    parse(&text).with_context(|| format!("{}: not a list of token ids", path.display()))
}

fn parse(text: &str) -> Result<Vec<Vec<u32>>> {
    let Value::Array(items) = serde_json::from_str(text)? else { bail!("the file holds no JSON list") };
    match items.first() {
        None => bail!("the list is empty"),
        Some(Value::Array(_)) => items
            .iter()
            .enumerate()
            .map(|(s, item)| sequence(item).with_context(|| format!("sequence {s}")))
            .collect(),
        Some(_) => Ok(vec![ids(&items)?]),
    }
}

fn sequence(item: &Value) -> Result<Vec<u32>> {
    let Value::Array(items) = item else { bail!("{item} is not a list, though sequence 0 is one") };
    if items.is_empty() {
        bail!("the list is empty");
    }
    ids(items)
}

fn ids(items: &[Value]) -> Result<Vec<u32>> {
    let id = |(position, item): (usize, &Value)| {
        item.as_u64().and_then(|id| u32::try_from(id).ok()).with_context(|| {
            format!("position {position}: {item} is not a token id, a whole number from 0 to {}", u32::MAX)
        })
    };
    items.iter().enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn refusal(text: &str) -> String {
        format!("{:#}", parse(text).expect_err(text))
    }

    #[test]
    fn one_list_is_one_sequence() {
        assert_eq!(parse("[0, 7, 4294967295]").unwrap(), [vec![0, 7, u32::MAX]]);
    }

    #[test]
    fn a_list_of_lists_is_one_sequence_each() {
        assert_eq!(parse("[[1, 2], [3]]").unwrap(), [vec![1, 2], vec![3]]);
    }

    #[test]
    fn a_bad_entry_is_named_by_its_position() {
        let refused = [
            "[1, -3]",
            "[1, 2.5]",
            "[\"a\"]",
            "[4294967296]",
            "[[1], [2, null]]",
            "[[1], 2]",
            "[1, [2]]",
            "[]",
            "[[]]",
            "{}",
            "[1,",
        ];
        assert_snapshot!(refused.map(refusal).join("\n"), @r#"
        position 1: -3 is not a token id, a whole number from 0 to 4294967295
        position 1: 2.5 is not a token id, a whole number from 0 to 4294967295
        position 0: "a" is not a token id, a whole number from 0 to 4294967295
        position 0: 4294967296 is not a token id, a whole number from 0 to 4294967295
        sequence 1: position 1: null is not a token id, a whole number from 0 to 4294967295
        sequence 1: 2 is not a list, though sequence 0 is one
        position 1: [2] is not a token id, a whole number from 0 to 4294967295
        the list is empty
        sequence 0: the list is empty
        the file holds no JSON list
        EOF while parsing a value at line 1 column 3
        "#);
    }

    #[test]
    fn messages_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.json");
        assert!(read(&path).unwrap_err().to_string().contains("ids.json: cannot be read"));
        std::fs::write(&path, "[1, true]").unwrap();
        let message = format!("{:#}", read(&path).unwrap_err());
        assert!(message.contains("ids.json: not a list of token ids: position 1: true"), "{message}");
    }
}
