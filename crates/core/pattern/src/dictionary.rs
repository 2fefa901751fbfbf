use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::FunctionClass;

/// A function, on every worker the same: a hash of its class, its name and its callers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FunctionId(pub u64);

/// What stands behind a [`FunctionId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// What kind of work it does.
    pub class: FunctionClass,
    /// Its name.
    pub name: String,
    /// Its caller, if its call stack was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<FunctionId>,
}

/// Functions by id. Workers' dictionaries merge by union.
///
/// # Invariants
/// A function's caller is in the dictionary; callers never form a circle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dictionary {
    functions: BTreeMap<FunctionId, Function>,
}

impl Dictionary {
    /// Gives a function its id, and keeps what stands behind it.
    pub fn intern(
        &mut self,
        class: FunctionClass,
        name: &str,
        caller: Option<FunctionId>,
    ) -> FunctionId {
        let id = id_of(class, name, caller);
        self.functions.entry(id).or_insert_with(|| Function {
            class,
            name: name.to_owned(),
            caller,
        });
        id
    }

    /// What stands behind an id.
    pub fn get(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(&id)
    }

    /// The function and its callers, innermost first.
    pub fn stack(&self, id: FunctionId) -> impl Iterator<Item = &Function> {
        self.stack_with_ids(id).map(|(_, function)| function)
    }

    pub(crate) fn stack_with_ids(
        &self,
        id: FunctionId,
    ) -> impl Iterator<Item = (FunctionId, &Function)> {
        let of = |id: FunctionId| Some((id, self.functions.get(&id)?));
        std::iter::successors(of(id), move |(_, function)| of(function.caller?))
    }

    /// Adds what another worker knows.
    pub fn merge(&mut self, other: &Self) {
        for (id, function) in &other.functions {
            self.functions.entry(*id).or_insert_with(|| function.clone());
        }
    }

    /// Only these functions and their callers.
    #[must_use]
    pub fn only(&self, ids: impl IntoIterator<Item = FunctionId>) -> Self {
        let mut functions = BTreeMap::new();
        for id in ids {
            let mut next = Some(id);
            while let Some(id) = next.filter(|id| !functions.contains_key(id)) {
                let Some(function) = self.functions.get(&id) else { break };
                functions.insert(id, function.clone());
                next = function.caller;
            }
        }
        Self { functions }
    }
}

/// FNV-1a over class, caller and name: stable over workers and versions, no secret needed.
fn id_of(class: FunctionClass, name: &str, caller: Option<FunctionId>) -> FunctionId {
    let caller = caller.map_or(0, |caller| caller.0);
    let bytes = [class as u8].into_iter().chain(caller.to_le_bytes()).chain(name.bytes());
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    FunctionId(bytes.fold(0xcbf2_9ce4_8422_2325, mix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_stack_has_the_same_id_on_every_worker() {
        let (mut one, mut other) = (Dictionary::default(), Dictionary::default());
        let python = FunctionClass::Python;
        let read = |dictionary: &mut Dictionary| {
            let caller = dictionary.intern(python, "read_shard", None);
            dictionary.intern(python, "recv_into", Some(caller))
        };
        other.intern(python, "something first", None);
        let id = read(&mut one);
        assert_eq!(read(&mut other), id);
        assert_ne!(one.intern(python, "recv_into", None), id);
        let stack: Vec<_> = other.stack(id).map(|f| f.name.as_str()).collect();
        assert_eq!(stack, ["recv_into", "read_shard"]);
        one.merge(&other);
        assert_eq!(one.only([id]).stack(id).count(), 2);
    }
}
