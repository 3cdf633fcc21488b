//! Settings that every policy accepts for layers and lengths: which are dense, and how much each layer keeps.

use kvblock::{BlockSize, Phase};

use crate::{
    Entry, Input, Key, Params, Policy, SelectError, Selection, Spec, SpecError,
    policy::{Deployment, Energies, MinTokens, Ranking, SelectBy, Support, num_blocks},
    spec::key,
    xattn::Antidiagonals,
};

/// Keys that every policy accepts in addition to its own. A policy's own key takes precedence over a common key of the same
/// name.
pub const KEYS: &[Key] = &[
    key("dense_layers", "0", "number of first layers that attend to everything"),
    key(
        MIN_TOKENS,
        "auto",
        "histories of fewer tokens stay dense; auto: an engine on a GPU finds out by times; measured: on any device",
    ),
    key(
        "layer_ratios",
        "",
        "sparse_ratio of each layer, separated by :; 1 is dense; further layers take sparse_ratio",
    ),
    key(
        QUERY,
        "current",
        "queries that decode selects by; previous: those of the token before, in all layers at once as a step begins",
    ),
];

/// Name of the key for the length of the shortest history in which blocks are selected.
const MIN_TOKENS: &str = "min_tokens";

/// Name of the key for the queries that select blocks in decode.
const QUERY: &str = "query";

/// Name of the key that `layer_ratios` sets layer by layer.
const RATIO: &str = "sparse_ratio";

/// A policy that keeps everything in some layers and below some length.
#[derive(Debug)]
struct Layered {
    policy: Box<dyn Policy>,
    /// The policies of the first layers, by `layer_ratios`; `None` for a layer with ratio 1, which keeps everything.
    by_layer: Vec<Option<Box<dyn Policy>>>,
    dense_layers: u32,
    min_tokens: MinTokens,
    select_by: SelectBy,
}

/// Builds the policy of `entry` with its own keys and those of [`KEYS`].
pub(crate) fn build(entry: &Entry, spec: &Spec) -> Result<Box<dyn Policy>, SpecError> {
    let own = |name: &str| entry.keys.iter().any(|key| key.name == name);
    let takes = |key: &&Key| !own(key.name) && (key.name != "layer_ratios" || own(RATIO));
    let keys: Vec<Key> = entry.keys.iter().chain(KEYS.iter().filter(takes)).copied().collect();
    let all = Params::new(entry.name, &keys, &spec.params)?;
    let policy = (entry.build)(&all)?;
    let given = |name: &str| !own(name) && spec.params.iter().any(|(key, _)| key == name);
    if !KEYS.iter().any(|key| given(key.name)) {
        return all.check_read().map(|()| policy);
    }
    let mut changed = spec.params.iter().filter(|(key, _)| given(key)).filter_map(|(name, value)| {
        KEYS.iter().find(|key| key.name == name && key.default != value).map(|key| (key.name, value))
    });
    // A policy that keeps everything does so in any layer and at any length.
    if let Some((key, value)) = changed.next().filter(|_| policy.keeps_all(None, usize::MAX - 1)) {
        return Err(SpecError::Unread { policy: entry.name, key, value: value.clone() });
    }
    let ratios = if given("layer_ratios") {
        all.list("layer_ratios", "shares above 0 and at most 1, separated by :", |&x: &f64| {
            x > 0.0 && x <= 1.0
        })?
    } else {
        Vec::new()
    };
    let of_layer = |ratio: f64| {
        if ratio >= 1.0 {
            return Ok(None);
        }
        let mut params = spec.params.clone();
        params.retain(|(key, _)| key != RATIO);
        params.push((RATIO.to_owned(), ratio.to_string()));
        (entry.build)(&Params::new(entry.name, &keys, &params)?).map(Some)
    };
    let layered = Layered {
        select_by: if own(QUERY) { SelectBy::Current } else { select_by(&all, &*policy)? },
        policy,
        by_layer: ratios.into_iter().map(of_layer).collect::<Result<_, SpecError>>()?,
        dense_layers: if own("dense_layers") { 0 } else { all.count("dense_layers")? },
        min_tokens: if own(MIN_TOKENS) { MinTokens::Auto } else { min_tokens(&all)? },
    };
    all.check_read()?;
    Ok(Box::new(layered))
}

/// Length of the shortest history in which blocks are selected.
fn min_tokens(params: &Params<'_>) -> Result<MinTokens, SpecError> {
    match params.text(MIN_TOKENS) {
        "auto" => Ok(MinTokens::Auto),
        "measured" => Ok(MinTokens::Measured),
        text => {
            let tokens = text.parse().map_err(|_| params.bad(MIN_TOKENS, "a count, auto or measured"))?;
            Ok(MinTokens::Tokens(tokens))
        }
    }
}

/// Queries that select the blocks of decode rows.
fn select_by(params: &Params<'_>, policy: &dyn Policy) -> Result<SelectBy, SpecError> {
    match params.text(QUERY) {
        "current" => Ok(SelectBy::Current),
        "previous" if !policy.acts_on(Phase::Decode) || !policy.support().query => {
            Err(params.bad(QUERY, "current: no query decides what this policy selects in decode"))
        }
        "previous" if policy.mass().is_some() => {
            Err(params.bad(QUERY, "current, as only a query itself bounds the mass that it keeps"))
        }
        "previous" => Ok(SelectBy::Previous),
        _ => Err(params.bad(QUERY, "current or previous")),
    }
}

impl Layered {
    /// The policy of a layer at a length; `None` if everything is kept.
    fn of(&self, layer: Option<u32>, kv_len: usize) -> Option<&dyn Policy> {
        if kv_len < self.min_tokens.given() {
            return None;
        }
        let Some(layer) = layer else { return Some(&*self.policy) };
        if layer < self.dense_layers {
            return None;
        }
        match self.by_layer.get(layer as usize) {
            Some(policy) => policy.as_deref(),
            None => Some(&*self.policy),
        }
    }
}

impl Policy for Layered {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn support(&self) -> Support {
        let support = self.policy.support();
        Support { dense_below_tokens: support.dense_below_tokens.max(self.min_tokens.given()), ..support }
    }

    fn block_size(&self) -> BlockSize {
        self.policy.block_size()
    }

    fn keeps_all(&self, layer: Option<u32>, kv_len: usize) -> bool {
        self.of(layer, kv_len).is_none_or(|policy| policy.keeps_all(layer, kv_len))
    }

    fn whole_below(&self) -> usize {
        let of_layers = self.by_layer.iter().flatten().map(|policy| policy.whole_below());
        of_layers.fold(self.policy.whole_below(), usize::min).max(self.min_tokens.given())
    }

    fn min_tokens(&self) -> MinTokens {
        self.min_tokens
    }

    fn min_requests(&self) -> u32 {
        self.policy.min_requests()
    }

    fn retrieval_stride(&self) -> u32 {
        self.policy.retrieval_stride()
    }

    fn ranking(&self) -> Option<Ranking> {
        self.policy.ranking()
    }

    fn reuses(&self, layer: u32) -> bool {
        self.policy.reuses(layer)
    }

    fn budget(&self, layer: Option<u32>, kv_len: usize) -> u32 {
        match self.of(layer, kv_len) {
            Some(policy) => policy.budget(layer, kv_len),
            None => num_blocks(kv_len, self.block_size()),
        }
    }

    fn deployment(&self) -> Deployment {
        self.policy.deployment()
    }

    fn keeps_all_in_decode(&self) -> bool {
        self.policy.keeps_all_in_decode()
    }

    fn select_by(&self) -> SelectBy {
        self.select_by
    }

    /// Returns false if earlier queries select the blocks, because bounds hold only for the queries that they were
    /// computed from.
    fn certifies(&self) -> bool {
        self.select_by == SelectBy::Current && self.policy.certifies()
    }

    fn mass(&self) -> Option<f64> {
        self.policy.mass()
    }

    fn antidiagonals(&self) -> Option<Antidiagonals> {
        self.policy.antidiagonals()
    }

    fn energies(&self) -> Option<Energies> {
        self.policy.energies()
    }

    fn skips(&self) -> Option<u32> {
        self.policy.skips()
    }

    fn head_density(&self, input: &Input<'_>) -> Result<Option<f64>, SelectError> {
        self.of(input.layer, input.kv_len).map_or(Ok(None), |policy| policy.head_density(input))
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if let Some(policy) = self.of(input.layer, input.kv_len) {
            return policy.select_into(input, out);
        }
        out.keep_all(input.num_blocks(self.block_size()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(spec: &str, layer: u32, kv_len: usize) -> String {
        let mut out = Selection::new();
        let policy = crate::build(spec).unwrap();
        policy.select_into(&Input { layer: Some(layer), ..Input::positions(kv_len) }, &mut out).unwrap();
        out.to_string()
    }

    #[test]
    fn layers_and_lengths_that_stay_dense() {
        let spec = "streaming:sink=1,recent=1,block_size=4,dense_layers=2,min_tokens=24";
        assert_eq!(selected(spec, 1, 32), "########");
        assert_eq!(selected(spec, 2, 32), "#......#");
        assert_eq!(selected(spec, 2, 23), "######");
    }

    #[test]
    fn lengths_that_an_engine_may_find_out_are_not_those_that_are_given() {
        let of = |spec| crate::build(spec).unwrap().min_tokens();
        assert_eq!(
            [of("quest"), of("quest:dense_layers=1"), of("quest:min_tokens=auto")],
            [MinTokens::Auto; 3]
        );
        assert_eq!(of("quest:min_tokens=measured"), MinTokens::Measured);
        assert_eq!(of("quest:min_tokens=0"), MinTokens::Tokens(0));
        assert_eq!(selected("streaming:sink=1,recent=1,block_size=4,min_tokens=measured", 0, 16), "#..#");
    }

    #[test]
    fn decode_selects_by_the_queries_that_are_named() {
        let of = |spec| crate::build(spec).map(|policy| (policy.select_by(), policy.certifies()));
        assert_eq!(of("quest").unwrap(), (SelectBy::Current, true));
        assert_eq!(of("quest:query=previous").unwrap(), (SelectBy::Previous, false));
        assert_eq!(
            of("streaming:block_size=16+quest:query=previous,block_size=16").unwrap().0,
            SelectBy::Previous
        );
        let refused = [
            "quest:query=next",
            "streaming:query=previous",
            "xattn:query=previous",
            "quest:mass=0.9,query=previous",
        ]
        .map(|spec| of(spec).unwrap_err().to_string())
        .join("\n");
        insta::assert_snapshot!(refused, @r#"
        quest: query = "next" is not current or previous
        streaming: query = "previous" is not current: no query decides what this policy selects in decode
        xattn: query = "previous" is not current: no query decides what this policy selects in decode
        quest: query = "previous" is not current, as only a query itself bounds the mass that it keeps
        "#);
    }

    #[test]
    fn layers_keep_their_own_share() {
        let spec = "gsa:block_size=4,min_blocks=1,sparse_ratio=0.75,layer_ratios=1:0.5";
        let kept: Vec<String> = (0..3).map(|layer| selected(spec, layer, 32)).collect();
        assert_eq!(kept, ["########", "#....###", "#..#####"]);
    }

    #[test]
    fn keys_that_a_policy_lacks_are_refused() {
        let message = |spec| crate::build(spec).unwrap_err().to_string();
        assert!(message("streaming:layer_ratios=0.5").contains("layer_ratios"));
        insta::assert_snapshot!(message("gsa:min_tokens=-1"), @r#"gsa: min_tokens = "-1" is not a count, auto or measured"#);
        insta::assert_snapshot!(message("gsa:layer_ratios=0.5:2"), @r#"gsa: layer_ratios = "0.5:2" is not shares above 0 and at most 1, separated by :"#);
        // kvcomp has shares of layers of its own, in tokens.
        crate::build("kvcomp:layer_ratios=1:0.5").unwrap();
    }
}
