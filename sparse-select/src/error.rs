//! Errors of building and running a policy.

/// A selection could not be made from the given input.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The input has no query, but the policy scores blocks with it.
    #[error("policy {policy} needs a query and got none")]
    MissingQuery {
        /// Name of the policy.
        policy: &'static str,
    },
    /// The input has no cached keys, but the policy reads them.
    #[error("policy {policy} needs the cached keys and got none")]
    MissingKeys {
        /// Name of the policy.
        policy: &'static str,
    },
    /// A tensor's data does not fill its shape.
    #[error("{tensor} holds {actual} elements, its shape [{heads}, {len}, {dim}] needs {needed}")]
    Shape {
        /// Name of the tensor.
        tensor: &'static str,
        /// First dimension.
        heads: usize,
        /// Second dimension of the shape: tokens.
        len: usize,
        /// Third dimension of the shape: channels.
        dim: usize,
        /// Number of elements that the shape needs: the product of its dimensions.
        needed: usize,
        /// Number of elements given.
        actual: usize,
    },
    /// A tensor has tokens without channels.
    #[error("{tensor} has the shape [{heads}, {len}, 0]: its vectors need a channel")]
    NoChannels {
        /// Name of the tensor.
        tensor: &'static str,
        /// First dimension.
        heads: usize,
        /// Second dimension of the shape: tokens.
        len: usize,
    },
    /// A tensor has more heads than any model.
    #[error("{tensor} has {heads} heads, the limit is {max}")]
    TooManyHeads {
        /// Name of the tensor.
        tensor: &'static str,
        /// Number of heads of the tensor.
        heads: usize,
        /// Maximum heads.
        max: usize,
    },
    /// Query and key vectors differ in length.
    #[error("head_dim of q is {q}, of k {k}")]
    HeadDim {
        /// Number of channels of a query.
        q: usize,
        /// Number of channels of a key.
        k: usize,
    },
    /// The policy was set up for another model.
    #[error("{policy}: {key}={stated}, the model has {actual}")]
    Deployment {
        /// The policy.
        policy: &'static str,
        /// Name of the parameter.
        key: &'static str,
        /// The value that the policy states for the parameter.
        stated: u32,
        /// The value of the model.
        actual: u32,
    },
    /// The number of query heads is not a multiple of the number of KV heads.
    #[error("{heads} query heads cannot be shared out among {kv_heads} KV heads")]
    HeadGroups {
        /// Number of query heads.
        heads: usize,
        /// Number of KV heads.
        kv_heads: usize,
    },
    /// There are more queries than positions of the history. Queries sit at its last positions.
    #[error("{q_len} queries do not fit at the end of {kv_len} cached tokens")]
    QueryBeyondHistory {
        /// Number of queries.
        q_len: usize,
        /// Number of cached tokens, including the queries.
        kv_len: usize,
    },
    /// The policy serves prefill only; use full attention for decode steps.
    #[error("policy {policy} does not support decode, use full attention there")]
    DecodeUnsupported {
        /// Name of the policy.
        policy: &'static str,
    },
    /// There is neither one threshold for all heads nor one per head.
    #[error("{got} thresholds for {heads} heads, 1 or {heads} expected")]
    ThresholdCount {
        /// Number of thresholds given.
        got: usize,
        /// Number of heads scored.
        heads: usize,
    },
    /// `find_blocks_chunked` was given a number of blocks, but it selects by mass. The published signature has such
    /// an argument, but no published code gives it a meaning.
    #[error("num_to_choose = {count} is not implemented, select by threshold")]
    NumToChoose {
        /// The requested count.
        count: u32,
    },
    /// An input has the wrong number of values.
    #[error("{tensor} holds {actual} values, {needed} expected")]
    Count {
        /// Name of the tensor.
        tensor: &'static str,
        /// Number of values expected.
        needed: usize,
        /// Number of values given.
        actual: usize,
    },
    /// Two selections to be compared differ in shape.
    #[error("selections of shape {left:?} and {right:?} ([groups, query blocks, blocks]) cannot be compared")]
    Incomparable {
        /// Shape of the first selection: groups, query blocks, blocks.
        left: [usize; 3],
        /// Shape of the second selection.
        right: [usize; 3],
    },
    /// A layer was used before its cache was registered.
    #[error("layer {layer} is not among the {registered} registered KV caches")]
    UnknownLayer {
        /// Name of the layer.
        layer: String,
        /// Number of caches registered.
        registered: usize,
    },
    /// A hook was called on a method of the other role.
    #[error("{call} is a call for the {expected} role")]
    WrongRole {
        /// The hook.
        call: &'static str,
        /// The role that the hook belongs to.
        expected: &'static str,
    },
    /// A request's prefetched blocks did not arrive.
    #[error("prefetch of request {request} {outcome}")]
    Prefetch {
        /// The request.
        request: u64,
        /// "failed" or "timed out".
        outcome: &'static str,
    },
}

/// A spec, a preset, or a parameter of one is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No policy has this name.
    #[error("unknown policy {name:?}, valid names: {}", valid.join(" "))]
    UnknownName {
        /// The name given.
        name: String,
        /// Every name of the registry.
        valid: Vec<&'static str>,
    },
    /// The policy has no such parameter.
    #[error("policy {policy} has no key {key:?}, valid keys: {}", valid.join(" "))]
    UnknownKey {
        /// Name of the policy.
        policy: &'static str,
        /// The key given.
        key: String,
        /// Every key of the policy.
        valid: Vec<&'static str>,
    },
    /// A value does not have the type or range of its key.
    #[error("{policy}: {key} = {value:?} is not {expected}")]
    BadValue {
        /// Name of the policy.
        policy: &'static str,
        /// The key.
        key: &'static str,
        /// The value given.
        value: String,
        /// Values that would be valid.
        expected: &'static str,
    },
    /// A key belongs to a mode of the policy that is not chosen, so that it would have no effect.
    #[error("{policy}: {key} = {value:?} has no effect beside the other keys")]
    Unread {
        /// Name of the policy.
        policy: &'static str,
        /// The key.
        key: &'static str,
        /// The value given.
        value: String,
    },
    /// Two valid values contradict each other.
    #[error("{policy}: {rule}; they are {}", listed(given))]
    Contradiction {
        /// Name of the policy.
        policy: &'static str,
        /// The relation that must hold.
        rule: &'static str,
        /// The keys concerned, with their values.
        given: Vec<(&'static str, String)>,
    },
    /// A part of the spec is not of the form `key=value`.
    #[error("{policy}: expected key=value, found {part:?}")]
    NotKeyValue {
        /// Name of the policy as written.
        policy: String,
        /// The part.
        part: String,
    },
    /// A key occurs twice.
    #[error("{policy}: key {key:?} is given twice")]
    DuplicateKey {
        /// Name of the policy as written.
        policy: String,
        /// The key.
        key: String,
    },
    /// Two policies cannot be combined, one for prefill and the other one for decode.
    #[error("{prefill}+{decode}: {rule}")]
    Phases {
        /// Name of the policy of prefill.
        prefill: &'static str,
        /// Name of the policy of decode.
        decode: &'static str,
        /// The rule that is broken.
        rule: String,
    },
    /// A spec names more than two policies.
    #[error("{spec:?} names more than two policies: one of prefill and one of decode")]
    TooManyPolicies {
        /// The spec.
        spec: String,
    },
    /// A policy with this name is already registered.
    #[error("policy {name} is registered already")]
    DuplicateName {
        /// The name.
        name: &'static str,
    },
    /// A preset file is not RON.
    #[cfg(feature = "presets")]
    #[error("preset is not valid RON")]
    Ron(#[source] ron::error::SpannedError),
    /// A value in a preset is not a number, a string, a bool, or a list of these.
    #[error("{policy}: key {key:?} of a preset must be a number, text, bool, or a list of them")]
    PresetValue {
        /// Name of the policy as written.
        policy: String,
        /// The key.
        key: String,
    },
}

fn listed(given: &[(&'static str, String)]) -> String {
    given.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
}
