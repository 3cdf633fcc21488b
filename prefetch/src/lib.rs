//! prefetch
