//! Turns built-ins of subgroups in a struct into parameters of the entry point: naga's HLSL writer (30.0) gives them
//! values only as parameters, and Direct3D's compiler refuses the struct.

/// A WGSL struct whose members are built-ins.
struct BuiltIns<'a> {
    name: &'a str,
    /// Members of the struct, `(attribute, member, type)`.
    members: Vec<(&'a str, &'a str, &'a str)>,
    /// Text of the declaration, from `struct` to the brace.
    text: &'a str,
}

impl<'a> BuiltIns<'a> {
    /// Returns the first struct of `text` that has a subgroup built-in and only built-ins as members.
    fn find(text: &'a str) -> Option<Self> {
        text.match_indices("struct ").find_map(|(at, keyword)| {
            let text = &text[at..=at + text[at..].find('}')?];
            let (name, members) = text[keyword.len()..text.len() - 1].split_once('{')?;
            let member = |line: &'a str| {
                let (attribute, member) = line.trim().split_once(' ')?;
                let (member, kind) = member.split_once(": ")?;
                attribute.starts_with("@builtin(").then_some((attribute, member, kind))
            };
            let members: Vec<_> = members.trim().split_terminator(',').map(member).collect::<Option<_>>()?;
            let of_subgroups = members.iter().any(|(attribute, ..)| attribute.contains("subgroup"));
            of_subgroups.then(|| Self { name: name.trim(), members, text })
        })
    }

    /// Returns the struct without attributes.
    fn plain(&self) -> String {
        let members = self.members.iter().map(|(_, member, kind)| format!("    {member}: {kind},\n"));
        format!("struct {} {{\n{}}}", self.name, members.collect::<String>())
    }

    /// Returns `head`, the text of an entry point up to its brace, with a parameter for each member in place of the
    /// struct, and with a line that builds the struct from these parameters. `None` if the entry point does not take
    /// the struct.
    fn spread(&self, head: &str) -> Option<String> {
        let kind = format!(": {}", self.name);
        let end = head.find(&format!("{kind},")).or_else(|| head.find(&format!("{kind})")))?;
        let begin = head[..end].rfind([' ', '(']).map_or(0, |at| at + 1);
        let parameter = &head[begin..end];
        let of = |(attribute, member, kind): &(&str, &str, &str)| {
            format!("{attribute} {parameter}_{member}: {kind}")
        };
        let parameters: Vec<String> = self.members.iter().map(of).collect();
        let values: Vec<String> =
            self.members.iter().map(|(_, member, _)| format!("{parameter}_{member}")).collect();
        Some(format!(
            "{}{}{}\n    let {parameter} = {}({});",
            &head[..begin],
            parameters.join(", "),
            &head[end + kind.len()..],
            self.name,
            values.join(", ")
        ))
    }
}

/// Replaces a struct with subgroup built-ins by one parameter for each built-in, in all entry points of `text`.
pub(super) fn parameters_of_their_own(text: String) -> String {
    let Some(built_ins) = BuiltIns::find(&text) else { return text };
    let mut out = text.replacen(built_ins.text, &built_ins.plain(), 1);
    let mut from = 0;
    while let Some(at) = out[from..].find("@compute").map(|at| from + at) {
        let Some(end) = out[at..].find('{').map(|end| at + end + 1) else { break };
        from = end;
        if let Some(head) = built_ins.spread(&out[at..end]) {
            from = at + head.len();
            out.replace_range(at..end, &head);
        }
    }
    out
}
