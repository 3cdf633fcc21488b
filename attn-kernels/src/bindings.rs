//! Declarations of parameters and bindings, each once. Dispatches, comparisons with the WGSL and lists in the documentation all
//! use them.

/// Declares the uniform parameter block of a kernel: a plain-data `#[repr(C)]` struct of 32-bit fields that
/// implements [`Params`](crate::Params). The WGSL has a struct with the same name and fields.
///
/// ```
/// attn_kernels::params! {
///     /// Uniform parameters.
///     #[derive(Default)]
///     pub struct ScaleParams {
///         /// Elements.
///         pub len: u32,
///         /// Factor.
///         pub factor: f32,
///     }
/// }
/// assert_eq!(<ScaleParams as attn_kernels::Params>::FIELDS[1].offset, 4);
/// ```
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::Params for $name {
            const FIELDS: &'static [$crate::Field] = &[$($crate::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
            }),*];
        }
    };
}

/// Declares the storage bindings 1, 2, ... of a kernel: a struct of typed buffers, and its constant `BINDINGS`. `=
/// None` marks bindings that only some variants have. `index` in place of `write` marks results that later kernels
/// use as indices, though the kernel computes them from numbers of any value: tests give it the worst.
///
/// ```
/// # attn_kernels::params! { /// Parameters.
/// # pub struct ScaleParams { /// Elements.
/// # pub len: u32 } }
/// attn_kernels::bindings! {
///     /// Buffers of `scale`.
///     pub struct Scale(ScaleParams) {
///         /// Elements, `[len]`.
///         write x: f32,
///         /// A factor for each, `[len]`.
///         read factors: f32 = None,
///     }
/// }
/// assert!(Scale::BINDINGS[1].optional);
/// ```
///
/// Buffers have types. This compiles:
///
/// ```
/// # use attn_kernels::gpu::Buf;
/// # use attn_kernels::kernel::cache_write::CacheWriteBuffers;
/// # use attn_kernels::rows::KvWord;
/// fn named(kv: &Buf<f32>, slots: &Buf<i32>, k: &Buf<KvWord>, v: &Buf<KvWord>) -> CacheWriteBuffers {
///     CacheWriteBuffers { kv: kv.bind(), slots: slots.bind(), k_cache: k.bind(), v_cache: v.bind() }
/// }
/// ```
///
/// One buffer in place of another does not:
///
/// ```compile_fail,E0308
/// # use attn_kernels::gpu::Buf;
/// # use attn_kernels::kernel::cache_write::CacheWriteBuffers;
/// # use attn_kernels::rows::KvWord;
/// fn swapped(kv: &Buf<f32>, slots: &Buf<i32>, k: &Buf<KvWord>, v: &Buf<KvWord>) -> CacheWriteBuffers {
///     CacheWriteBuffers { kv: slots.bind(), slots: kv.bind(), k_cache: k.bind(), v_cache: v.bind() }
/// }
/// ```
#[cfg(feature = "gpu")]
#[macro_export]
macro_rules! bindings {
    ($(#[$meta:meta])* pub struct $name:ident($params:ty) {
        $($(#[$bind_meta:meta])* $access:ident $bind:ident: $element:ty $(= $none:ident)?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$bind_meta])* pub $bind: $crate::bindings!(@type $element $(, $none)?),)*
        }

        impl $name {
            /// Bindings 1, 2, ... in order.
            pub const BINDINGS: &'static [$crate::Binding] = &[$($crate::binding!($access $bind $($none)?)),*];
        }

        impl $crate::gpu::Bindings for $name {
            type Params = $params;

            fn bound(self) -> $crate::gpu::BoundList {
                $crate::gpu::BoundList::from_iter(
                    [$((stringify!($bind), $crate::bindings!(@bound self.$bind $(, $none)?))),*]
                        .into_iter()
                        .filter_map(|(name, bound)| Some((name, bound?))),
                )
            }
        }
    };
    (@type $element:ty) => { $crate::gpu::Bind<$element> };
    (@type $element:ty, None) => { Option<$crate::gpu::Bind<$element>> };
    (@bound $bind:expr) => { Some($bind.bound()) };
    (@bound $bind:expr, None) => { $bind.map(|bind| bind.bound()) };
}

/// Declares the storage bindings of a kernel; without the feature `gpu`, only their names and accesses.
#[cfg(not(feature = "gpu"))]
#[macro_export]
macro_rules! bindings {
    ($(#[$meta:meta])* pub struct $name:ident($params:ty) {
        $($(#[$bind_meta:meta])* $access:ident $bind:ident: $element:ty $(= $none:ident)?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        const _: Option<($params, $($element),*)> = None;

        impl $name {
            /// Bindings 1, 2, ... in order.
            pub const BINDINGS: &'static [$crate::Binding] = &[$($crate::binding!($access $bind $($none)?)),*];
        }
    };
}

/// Describes one binding of [`bindings!`](crate::bindings).
#[doc(hidden)]
#[macro_export]
macro_rules! binding {
    (read $bind:ident $($none:ident)?) => { $crate::binding!(Read, $bind, false, false $($none)?) };
    (write $bind:ident $($none:ident)?) => { $crate::binding!(Write, $bind, false, false $($none)?) };
    (index $bind:ident $($none:ident)?) => { $crate::binding!(Write, $bind, true, false $($none)?) };
    ($access:ident, $bind:ident, $indices:literal, false None) => {
        $crate::binding!($access, $bind, $indices, true)
    };
    ($access:ident, $bind:ident, $indices:literal, $optional:literal) => {
        $crate::Binding {
            name: stringify!($bind),
            access: $crate::Access::$access,
            optional: $optional,
            indices: $indices,
        }
    };
}
