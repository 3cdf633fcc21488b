//! Counts of the operations of a variant that cost most on a device.

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{AddressSpace, Block, Expression, Function, Handle, Module, Statement};
use serde::Serialize;

/// Numbers of operations in the text of a variant, each counted once, even in a loop or in a function that is called
/// twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Operations {
    /// Number of loads from storage buffers.
    pub loads: u32,
    /// Number of stores to storage buffers.
    pub stores: u32,
    /// Number of loads from workgroup memory.
    pub workgroup_loads: u32,
    /// Number of stores to workgroup memory.
    pub workgroup_stores: u32,
    /// Number of atomic operations on storage buffers or workgroup memory.
    pub atomics: u32,
    /// Number of barriers of control or memory; a uniform load from workgroup memory has two.
    pub barriers: u32,
    /// Number of votes, shuffles and reductions of subgroups.
    pub subgroup: u32,
    /// Number of loads, stores and products of cooperative matrices.
    pub matrix: u32,
}

impl Operations {
    /// Counts the operations of all functions of a valid module.
    pub(super) fn count(module: &Module, info: &ModuleInfo) -> Self {
        let mut counts = Self::default();
        for (handle, function) in module.functions.iter() {
            counts.function(module, function, &info[handle]);
        }
        for (index, entry) in module.entry_points.iter().enumerate() {
            counts.function(module, &entry.function, info.get_entry_point(index));
        }
        counts
    }

    fn function(&mut self, module: &Module, function: &Function, info: &FunctionInfo) {
        let space = |pointer: Handle<Expression>| info[pointer].ty.inner_with(&module.types).pointer_space();
        for (_, expression) in function.expressions.iter() {
            match expression {
                Expression::Load { pointer } => match space(*pointer) {
                    Some(AddressSpace::Storage { .. }) => self.loads += 1,
                    Some(AddressSpace::WorkGroup) => self.workgroup_loads += 1,
                    _ => {}
                },
                Expression::CooperativeLoad { .. } | Expression::CooperativeMultiplyAdd { .. } => {
                    self.matrix += 1;
                }
                _ => {}
            }
        }
        self.block(&function.body, &space);
    }

    fn block(&mut self, block: &Block, space: &impl Fn(Handle<Expression>) -> Option<AddressSpace>) {
        for statement in block {
            match statement {
                Statement::Store { pointer, .. } => match space(*pointer) {
                    Some(AddressSpace::Storage { .. }) => self.stores += 1,
                    Some(AddressSpace::WorkGroup) => self.workgroup_stores += 1,
                    _ => {}
                },
                Statement::WorkGroupUniformLoad { .. } => {
                    self.workgroup_loads += 1;
                    self.barriers += 2;
                }
                Statement::Atomic { .. } => self.atomics += 1,
                Statement::ControlBarrier(_) | Statement::MemoryBarrier(_) => self.barriers += 1,
                Statement::SubgroupBallot { .. }
                | Statement::SubgroupGather { .. }
                | Statement::SubgroupCollectiveOperation { .. } => self.subgroup += 1,
                Statement::CooperativeStore { .. } => self.matrix += 1,
                Statement::Block(inner) => self.block(inner, space),
                Statement::If { accept, reject, .. } => {
                    self.block(accept, space);
                    self.block(reject, space);
                }
                Statement::Switch { cases, .. } => {
                    cases.iter().for_each(|case| self.block(&case.body, space));
                }
                Statement::Loop { body, continuing, .. } => {
                    self.block(body, space);
                    self.block(continuing, space);
                }
                _ => {}
            }
        }
    }
}
