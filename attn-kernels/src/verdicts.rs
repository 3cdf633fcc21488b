//! Results of a self-test on a device. Choices of kernels skip variants that the driver computes incorrectly.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::kernel::KvDtype;
use crate::source::SlotContent;
use crate::{Kernel, KernelRole, Level, NamedVariant, Variant};

/// Variants that a driver computes incorrectly, and correct variants of the same kernels. Comparing the two shows
/// which modules are at fault.
#[derive(Clone, Copy, Default, Debug)]
pub struct Verdicts(Option<&'static [Verdict]>);

#[derive(Debug)]
struct Verdict {
    named: NamedVariant,
    right: bool,
    /// State of the report: [`UNMET`], then [`PASSED_OVER`], then [`TOLD`].
    passed_over: AtomicU8,
}

const UNMET: u8 = 0;
/// State after a choice has skipped the variant.
const PASSED_OVER: u8 = 1;
const TOLD: u8 = 2;

/// The reason why a variant must not run: the self-test found this variant or a similar one wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// Name of the variant that the self-test found wrong.
    pub variant: &'static str,
    /// Name of what cannot run without the variant, such as `selection by top_k`.
    pub mode: String,
}

impl Verdicts {
    /// Verdicts that find no variant wrong.
    pub const NONE: Self = Self(None);

    /// Whether no variant is known to be wrong.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_none()
    }

    /// Creates verdicts from tested variants and whether each computed correctly. The verdicts on kernels with a
    /// wrong variant stay in memory until the process ends, because device profiles, which are values, refer to them.
    #[must_use]
    pub fn new(tested: impl IntoIterator<Item = (NamedVariant, bool)>) -> Self {
        let tested: Vec<_> = tested.into_iter().collect();
        let wrong: Vec<&str> =
            tested.iter().filter(|(_, right)| !right).map(|(of, _)| kernel_of(of)).collect();
        let matters = |(of, _): &&(NamedVariant, bool)| wrong.contains(&kernel_of(of));
        let verdict = |(named, right): &(NamedVariant, bool)| Verdict {
            named: named.clone(),
            right: *right,
            passed_over: AtomicU8::new(UNMET),
        };
        let kept: Vec<Verdict> = tested.iter().filter(matters).map(verdict).collect();
        Self((!kept.is_empty()).then(|| &*kept.leak()))
    }

    /// Returns the reason why `variant` must not run; `None` if it may run. The reason is a wrong variant with the
    /// same modules, whatever its sizes. If no variant with the same modules was tested, it is a wrong variant that
    /// shares a module with `variant` which no correct variant has.
    #[must_use]
    pub fn against(self, variant: &Variant) -> Option<Wrong> {
        self.wrong(variant)
            .map(|(verdict, module)| Wrong { variant: &verdict.named.name, mode: mode(variant, module) })
    }

    /// Whether a choice of kernels may take `variant`. If not, the wrong variant counts as [passed
    /// over](Self::passed_over).
    pub(crate) fn allow(self, variant: &Variant) -> bool {
        self.wrong(variant).inspect(|(verdict, _)| verdict.pass_over()).is_none()
    }

    /// Whether a choice of kernels may take `kernel` at `level` for caches of `dtype`: no variant of the kernel is
    /// wrong, except variants for codes of another type.
    pub(crate) fn allow_all(self, kernel: &Kernel, level: Level, dtype: KvDtype) -> bool {
        let concerns = |verdict: &&Verdict| {
            !verdict.right
                && verdict.is_of(kernel, level)
                && verdict.named.variant.cache.is_none_or(|(_, of)| of == dtype || !of.is_code())
        };
        self.all().iter().find(concerns).inspect(|verdict| verdict.pass_over()).is_none()
    }

    /// Returns the wrong variants that choices of kernels have passed over, each only once.
    #[must_use]
    pub fn passed_over(self) -> Vec<&'static NamedVariant> {
        let told = self.all().iter().filter(|verdict| verdict.moves(PASSED_OVER, TOLD));
        told.map(|verdict| &verdict.named).collect()
    }

    fn all(self) -> &'static [Verdict] {
        self.0.unwrap_or_default()
    }

    fn wrong(self, variant: &Variant) -> Option<(&'static Verdict, Option<Module>)> {
        let tested = || self.all().iter().filter(|verdict| verdict.is_of(variant.kernel, variant.level));
        let modules = modules(variant);
        let same = |verdict: &&Verdict| self::modules(&verdict.named.variant) == modules;
        let has = |verdict: &Verdict, module| self::modules(&verdict.named.variant).contains(module);
        // Of the modules of a wrong variant those are to blame that no right one has.
        let blamed = |wrong: &Verdict| {
            let shared = modules.iter().filter(|module| has(wrong, module));
            let mut blamed = shared.filter(|module| !tested().any(|other| other.right && has(other, module)));
            blamed.next().copied()
        };
        if tested().any(|verdict| same(&verdict)) {
            let wrong = tested().filter(same).find(|verdict| !verdict.right)?;
            return Some((wrong, blamed(wrong)));
        }
        tested().filter(|verdict| !verdict.right).find_map(|wrong| Some((wrong, Some(blamed(wrong)?))))
    }
}

/// Two verdicts are equal if they are the same list.
impl PartialEq for Verdicts {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.all(), other.all())
    }
}

impl Verdict {
    fn is_of(&self, kernel: &Kernel, level: Level) -> bool {
        kernel_of(&self.named) == kernel.name && self.named.level() == level
    }

    fn pass_over(&self) {
        self.moves(UNMET, PASSED_OVER);
    }

    /// Changes the state from `from` to `to`. Returns false, and changes nothing, if the state was not `from`.
    fn moves(&self, from: u8, to: u8) -> bool {
        self.passed_over.compare_exchange(from, to, Relaxed, Relaxed).is_ok()
    }
}

/// Name of a slot, and of the shared module in it.
type Module = (&'static str, &'static str);

fn kernel_of(named: &NamedVariant) -> &'static str {
    named.variant.kernel.name
}

fn modules(variant: &Variant) -> Vec<Module> {
    let module = |(slot, choice): &(&'static str, SlotContent)| match choice {
        SlotContent::Module(module) => Some((*slot, *module)),
        SlotContent::Size(_) => None,
    };
    let mut modules: Vec<Module> = variant.choices.iter().filter_map(module).collect();
    modules.sort_unstable();
    modules
}

/// Returns the mode or kernel that cannot run without a variant, if `module` is the cause.
fn mode(variant: &Variant, module: Option<Module>) -> String {
    let kernel = variant.kernel.name;
    if let Some(label) = module.and_then(|(slot, _)| variant.label(slot)) {
        return label;
    }
    match module {
        _ if variant.kernel.role == KernelRole::Selection => format!("selection by {kernel}"),
        Some((slot, module)) => format!("{kernel} with {slot} {module}"),
        None => match variant.cache {
            Some((_, dtype)) => format!("{kernel} over KV in {}", dtype.name()),
            None => kernel.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::attention::Attention;
    use crate::kernel::index_logits::IndexKeys;
    use crate::kernel::index_logits_coop::IndexKernel;
    use crate::kernel::mla_decode::LatentShape;
    use crate::kernel::mla_decode_coop::MlaKernel;
    use crate::kernel::paged_decode::{self, Lanes};
    use crate::kernel::{KvLayout, KvShape, lse_merge, paged_prefill};
    use crate::profile::DeviceProfile;
    use kvblock::Reach;

    /// Verdicts on every variant of this crate. Those in `wrong`, by name and level, are wrong.
    fn verdicts(wrong: &[(&str, Level)]) -> Verdicts {
        let all = crate::variants();
        let is = |named: &NamedVariant| wrong.contains(&(named.name.as_str(), named.level()));
        assert_eq!(all.iter().filter(|named| is(named)).count(), wrong.len(), "{wrong:?}");
        Verdicts::new(all.into_iter().map(|named| (named.clone(), !is(&named))))
    }

    fn shape(dtype: KvDtype) -> KvShape {
        KvShape { num_kv_heads: 2, head_dim: 64, block_size: 32, dtype, layout: KvLayout::Native }
    }

    fn decode(dtype: KvDtype, mask: Reach) -> Variant {
        let attention = Attention { mask, ..Attention::default() };
        paged_decode::variant(&shape(dtype), 4, Lanes::Workgroup, &attention)
    }

    #[test]
    fn other_sizes_and_options_of_a_wrong_type_are_wrong() {
        let verdicts = verdicts(&[("paged_decode-fp8", Level::Baseline)]);
        for mask in [Reach::Full, Reach::Window(8)] {
            let wrong = verdicts.against(&decode(KvDtype::Fp8, mask)).unwrap();
            assert_eq!(
                wrong,
                Wrong { variant: "paged_decode-fp8", mode: "paged_decode over KV in fp8".into() }
            );
            for dtype in [KvDtype::F16, KvDtype::F32, KvDtype::Int8] {
                assert_eq!(verdicts.against(&decode(dtype, mask)), None, "{dtype:?}");
            }
        }
    }

    #[test]
    fn a_wrong_option_is_wrong_with_every_type() {
        let verdicts = verdicts(&[("paged_prefill-window-f16", Level::Baseline)]);
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            let of = |mask| {
                let attention = Attention { mask, ..Attention::default() };
                paged_prefill::variant(&shape(dtype), 4, paged_prefill::KeyLoads::Uniform, &attention)
            };
            assert_eq!(verdicts.against(&of(Reach::Full)), None);
            let wrong = verdicts.against(&of(Reach::Window(8))).unwrap();
            assert_eq!(wrong.mode, "paged_prefill with mask mask_window");
        }
    }

    #[test]
    fn other_kernels_and_levels_are_none_of_its_business() {
        let verdicts = verdicts(&[("top_k-subgroup-list", Level::Subgroup)]);
        let of = |level| crate::kernel::top_k::variant(crate::kernel::top_k::Output::List, level);
        assert_eq!(verdicts.against(&of(Level::Subgroup)).unwrap().mode, "selection by top_k");
        assert_eq!(verdicts.against(&of(Level::Baseline)), None);
        assert_eq!(verdicts.against(&lse_merge::variant(64)), None);
        let profile = DeviceProfile::H200.verdicts(verdicts);
        assert_eq!(profile.best(of), of(Level::Baseline));
        assert_eq!(DeviceProfile::H200.best(of).level, Level::Subgroup);
    }

    /// Tests the order of the forms: matrices, then subgroups, then the baseline. Faults of codes of one type do not concern
    /// another type.
    #[test]
    fn decode_takes_the_next_form() {
        let coop = [("paged_decode_coop-f16", Level::Coop)];
        let both = [coop[0], ("paged_decode_subgroup-32-f16", Level::Subgroup)];
        let lanes = |wrong: &[(&str, Level)], dtype| {
            Lanes::of(&DeviceProfile::H200.verdicts(verdicts(wrong)), &shape(dtype), 16, 1 << 20)
        };
        assert_eq!(lanes(&[], KvDtype::F16), Lanes::Matrices);
        assert_eq!(lanes(&coop, KvDtype::F16), Lanes::Workgroup, "two groups of heads");
        assert_eq!(lanes(&coop, KvDtype::Int8), Lanes::Workgroup);
        assert_eq!(lanes(&[("paged_decode_coop-fp8", Level::Coop)], KvDtype::Int8), Lanes::Matrices);
        let few = |wrong: &[(&str, Level)]| {
            Lanes::of(&DeviceProfile::H200.verdicts(verdicts(wrong)), &shape(KvDtype::F16), 4, 1)
        };
        assert_eq!([few(&coop), few(&both)], [Lanes::Subgroup(32), Lanes::Workgroup]);
    }

    #[test]
    fn kernels_by_matrices_have_others_in_their_place() {
        let wrong = verdicts(&[("mla_decode_coop-f16", Level::Coop), ("index_logits_coop-fp8", Level::Coop)]);
        let profile = DeviceProfile::H200.verdicts(wrong);
        let latents = LatentShape { latent: 512, rope: 64, block_size: 64, dtype: KvDtype::F16, plain: 0 };
        let keys = IndexKeys::Fp8 { head_dim: 128, page: 64 };
        for (profile, level) in [(DeviceProfile::H200, Level::Coop), (profile, Level::Baseline)] {
            assert_eq!(MlaKernel::new(&latents, 128, &profile).level(), level);
            assert_eq!(IndexKernel::new(keys, &profile).level(), level);
        }
        let told = || wrong.passed_over().iter().map(|named| &*named.name).collect::<Vec<_>>();
        assert_eq!(told(), ["index_logits_coop-fp8", "mla_decode_coop-f16"]);
        assert_eq!(told(), [""; 0]);
    }
}
