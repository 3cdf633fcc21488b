//! The macro of the table of roles.

use super::{CompressorPart, HyperPart};
use crate::DecoderConfig;

/// Names of a role, without the prefix of its layer. `{}` stands for the number of an expert.
#[derive(Clone, Copy, Default)]
pub(super) struct Names {
    /// The layer that the tensor belongs to; `None` if it belongs to none.
    pub(super) layer: Option<u32>,
    /// Names in safetensors, the commonest first.
    pub(super) hf: &'static [&'static str],
    /// Names in GGUF files.
    pub(super) gguf: &'static [&'static str],
    /// Name in published DeepSeek V4 checkpoints, which `transformers` saves without the first part.
    pub(super) published: &'static [&'static str],
    /// Name in flash-linear-attention, for tensors that its NSA models share with Llama.
    pub(super) nsa: &'static [&'static str],
}

/// Values that distinguish the roles of one row.
pub(super) trait Each: Sized {
    fn each(config: &DecoderConfig) -> Vec<Self>;
}

impl Each for CompressorPart {
    fn each(_: &DecoderConfig) -> Vec<Self> {
        vec![Self::Kv, Self::Gate, Self::Bias, Self::Norm]
    }
}

impl Each for HyperPart {
    fn each(_: &DecoderConfig) -> Vec<Self> {
        vec![Self::Mix, Self::Base, Self::Scale]
    }
}

/// Roles of single experts are distinguished by the number of the expert.
impl Each for u32 {
    fn each(config: &DecoderConfig) -> Vec<Self> {
        (0..config.moe.as_ref().map_or(0, |moe| moe.num_experts)).collect()
    }
}

macro_rules! every {
    ($config:ident, $role:ident) => {
        vec![Role::$role]
    };
    ($config:ident, $role:ident, $of:ty) => {
        <$of>::each($config).into_iter().map(Role::$role).collect::<Vec<_>>()
    };
}

macro_rules! every_of_layer {
    ($config:ident, $layer:ident, $role:ident) => {
        vec![Role::$role($layer)]
    };
    ($config:ident, $layer:ident, $role:ident, $of:ty) => {
        <$of>::each($config).into_iter().map(|of| Role::$role($layer, of)).collect::<Vec<_>>()
    };
}

/// Defines the table. A row without `read` is another way to store tensors of other rows.
macro_rules! roles {
    ($c:ident, $layer:ident;
    model {$(
        $(#[$mdoc:meta])* $model:ident $(($mof:ident: $mtype:ty))? {
            $(hf: $mhf:expr,)? $(gguf: $mgguf:expr,)? $(published: $mpublished:expr,)? $(nsa: $mnsa:expr,)?
            shape: $mshape:expr, $(read: $mread:expr,)?
        }
    )*}
    layer {$(
        $(#[$doc:meta])* $role:ident $(($of:ident: $type:ty))? {
            $(hf: $hf:expr,)? $(gguf: $gguf:expr,)? $(published: $published:expr,)? $(nsa: $nsa:expr,)?
            shape: $shape:expr, $(read: $read:expr,)? $(routed: $routed:expr,)?
        }
    )*}) => {
        /// Role of a tensor, independent of the file that holds it. The first number of a role, if it has any, is its layer,
        /// from 0.
        ///
        /// Matrices are `[out_features, in_features]`, so `y = W x`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Role {
            $($(#[$mdoc])* $model $(($mtype))?,)*
            $($(#[$doc])* $role(u32 $(, $type)?),)*
        }

        #[allow(unused_variables, clippy::needless_update, reason = "few rows need all that a row can have")]
        impl Role {
            pub(super) fn all_names(self) -> Names {
                match self {
                    $(Self::$model $(($mof))? => Names {
                        $(hf: $mhf,)? $(gguf: $mgguf,)? $(published: $mpublished,)? $(nsa: $mnsa,)?
                        ..Names::default()
                    },)*
                    $(Self::$role($layer $(, $of)?) => Names {
                        layer: Some($layer),
                        $(hf: $hf,)? $(gguf: $gguf,)? $(published: $published,)? $(nsa: $nsa,)?
                        ..Names::default()
                    },)*
                }
            }

            /// Extents of the tensor, in a configuration that has it.
            pub(crate) fn shape(self, $c: &DecoderConfig) -> Vec<u32> {
                match self {
                    $(Self::$model $(($mof))? => $mshape.to_vec(),)*
                    $(Self::$role($layer $(, $of)?) => $shape.to_vec(),)*
                }
            }

            /// Whether a decoder with the given configuration reads the tensor.
            fn is_read(self, $c: &DecoderConfig) -> bool {
                match self {
                    $(Self::$model $(($mof))? => false $(|| $mread)?,)*
                    $(Self::$role($layer $(, $of)?) => false $(|| $read)?,)*
                }
            }

            /// Whether the tensor is a matrix of routed experts.
            #[must_use]
            pub fn is_routed(self) -> bool {
                match self {
                    $(Self::$model $(($mof))? => false,)*
                    $(Self::$role($layer $(, $of)?) => false $(|| $routed)?,)*
                }
            }

            /// All tensors that a decoder with the given configuration reads.
            pub(crate) fn all(config: &DecoderConfig) -> Vec<Self> {
                let mut roles = Vec::new();
                $(roles.extend(every!(config, $model $(, $mtype)?));)*
                for layer in 0..config.num_layers {
                    $(roles.extend(every_of_layer!(config, layer, $role $(, $type)?));)*
                }
                roles.retain(|role| role.is_read(config));
                roles
            }
        }
    };
}
