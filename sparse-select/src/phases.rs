//! A pair of policies: one for prefill, another for decode.
//!
//! Policies that rank blocks for one query leave prefill dense, and those that mask chunks leave decode dense. Of a context
//! that is too long to be read as a whole even once, both phases have to select.

use std::sync::Arc;

use kvblock::{BlockSize, Phase};

use crate::{
    Input, Policy, SelectError, Selection, SpecError,
    policy::{Deployment, Energies, MinTokens, Ranking, SelectBy, Support},
    xattn::Antidiagonals,
};

/// A policy for prefill and another one for decode, `PREFILL+DECODE` in a spec. In its phase, each selects as it does alone.
/// A layer is dense in both phases if one of the policies is dense in it.
#[derive(Debug)]
pub struct Phases {
    prefill: Arc<dyn Policy>,
    decode: Arc<dyn Policy>,
}

impl Phases {
    /// Joins two policies.
    ///
    /// # Errors
    /// [`SpecError::Phases`] if one does not act on its phase, or their blocks differ.
    pub fn new(prefill: Arc<dyn Policy>, decode: Arc<dyn Policy>) -> Result<Self, SpecError> {
        let refuse = |rule: &str| {
            let (prefill, decode) = (prefill.name(), decode.name());
            Err(SpecError::Phases { prefill, decode, rule: rule.to_owned() })
        };
        if !prefill.acts_on(Phase::Prefill) {
            return refuse("the first selects nothing in prefill");
        }
        if prefill.skips().is_some() {
            return refuse("the first selects no blocks, but leaves keys out as it attends");
        }
        if !decode.acts_on(Phase::Decode) {
            return refuse("the second selects nothing in decode");
        }
        let sizes = [prefill.block_size().get(), decode.block_size().get()];
        if sizes[0] != sizes[1] {
            let [a, b] = sizes;
            return refuse(&format!("they select blocks of {a} and of {b} tokens, which must be alike"));
        }
        Ok(Self { prefill, decode })
    }

    fn of(&self, phase: Phase) -> &dyn Policy {
        match phase {
            Phase::Prefill => &*self.prefill,
            Phase::Decode => &*self.decode,
        }
    }
}

impl Policy for Phases {
    fn name(&self) -> &'static str {
        "prefill+decode"
    }

    /// Returns the needs of both policies, each in its own phase.
    fn support(&self) -> Support {
        let (prefill, decode) = (self.prefill.support(), self.decode.support());
        Support {
            prefill: true,
            decode: true,
            query: prefill.query || decode.query,
            after_history: prefill.after_history,
            each_query: false,
            dense_below_tokens: prefill.dense_below_tokens.min(decode.dense_below_tokens),
        }
    }

    fn block_size(&self) -> BlockSize {
        self.decode.block_size()
    }

    fn keeps_all(&self, layer: Option<u32>, kv_len: usize) -> bool {
        let [prefill, decode] = [&self.prefill, &self.decode].map(|policy| policy.keeps_all(layer, kv_len));
        if layer.is_some() { prefill || decode } else { prefill && decode }
    }

    fn whole_below(&self) -> usize {
        self.prefill.whole_below().min(self.decode.whole_below())
    }

    fn min_tokens(&self) -> MinTokens {
        self.decode.min_tokens()
    }

    fn min_requests(&self) -> u32 {
        self.decode.min_requests()
    }

    fn retrieval_stride(&self) -> u32 {
        self.decode.retrieval_stride()
    }

    fn select_by(&self) -> SelectBy {
        self.decode.select_by()
    }

    fn phases(&self) -> Option<[Arc<dyn Policy>; 2]> {
        Some([Arc::clone(&self.prefill), Arc::clone(&self.decode)])
    }

    fn certifies(&self) -> bool {
        self.decode.certifies()
    }

    fn ranking(&self) -> Option<Ranking> {
        self.decode.ranking()
    }

    fn reuses(&self, layer: u32) -> bool {
        self.decode.reuses(layer)
    }

    fn budget(&self, layer: Option<u32>, kv_len: usize) -> u32 {
        self.decode.budget(layer, kv_len)
    }

    fn mass(&self) -> Option<f64> {
        self.decode.mass()
    }

    fn antidiagonals(&self) -> Option<Antidiagonals> {
        self.prefill.antidiagonals()
    }

    fn energies(&self) -> Option<Energies> {
        self.prefill.energies()
    }

    /// Returns the deployment of the decode policy, because blocks are loaded ahead of need only for decode.
    fn deployment(&self) -> Deployment {
        self.decode.deployment()
    }

    fn head_density(&self, input: &Input<'_>) -> Result<Option<f64>, SelectError> {
        self.of(input.stage.phase()).head_density(input)
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        self.of(input.stage.phase()).select_into(input, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Stage, build};

    #[test]
    fn each_phase_has_its_own_policy() {
        let both =
            build("streaming:sink=1,recent=2,block_size=16+gsa-ucm:block_size=16,seg_prefill_threshold=0")
                .unwrap();
        let streaming = build("streaming:sink=1,recent=2,block_size=16").unwrap();
        let prefill = Input { stage: Stage::Prefill { chunk_idx: 10 }, ..Input::positions(160) };
        let (mut selected, mut alone) = (Selection::new(), Selection::new());
        both.select_into(&prefill, &mut selected).unwrap();
        streaming.select_into(&prefill, &mut alone).unwrap();
        assert_eq!(selected.to_string(), alone.to_string());
        assert!(matches!(
            both.select_into(&Input::positions(9600), &mut selected),
            Err(SelectError::MissingQuery { policy: "gsa-ucm" })
        ));
        assert_eq!(both.budget(None, 100_000), build("gsa-ucm:block_size=16").unwrap().budget(None, 100_000));
    }

    #[test]
    fn a_layer_that_one_keeps_whole_is_whole() {
        let both = build("streaming:recent=1,block_size=16,min_tokens=64+quest:dense_layers=2,page_budget=2")
            .unwrap();
        assert_eq!([0, 1, 2].map(|layer| both.keeps_all(Some(layer), 9999)), [true, true, false]);
        assert!(!both.keeps_all(None, 60), "quest selects among few tokens too");
    }

    #[test]
    fn phases_without_a_selection_are_refused() {
        let refused = |spec: &str| build(spec).unwrap_err().to_string();
        insta::assert_snapshot!(refused("quest+quest"), @"quest+quest: the first selects nothing in prefill");
        insta::assert_snapshot!(refused("streaming+flashprefill"), @"streaming+flashprefill: the second selects nothing in decode");
        insta::assert_snapshot!(refused("flashprefill:block_size=128+quest:block_size=16"), @"flashprefill+quest: they select blocks of 128 and of 16 tokens, which must be alike");
        insta::assert_snapshot!(refused("streaming+nothing").split(',').next().unwrap(), @r#"unknown policy "nothing""#);
        insta::assert_snapshot!(refused("streaming+quest+quest"), @r#""streaming+quest+quest" names more than two policies: one of prefill and one of decode"#);
    }
}
