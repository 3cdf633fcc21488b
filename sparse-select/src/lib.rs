//! sparse-select
