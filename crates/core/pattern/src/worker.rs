use std::collections::{BTreeMap, BTreeSet};

use model::{Dictionary, FunctionId, Pattern, WorkerPatterns};

/// Bytes a worker's file may have as JSON: the paper's 30 KB.
const MAX_BYTES: usize = 30_000;
/// At most what a pattern takes as JSON, and a function without its name.
const PATTERN_BYTES: usize = 130;
const FUNCTION_BYTES: usize = 100;

/// Keeps the functions that cost a worker most, as many as 30 KB of JSON hold.
pub fn costliest(
    worker: u32,
    patterns: &BTreeMap<FunctionId, Pattern>,
    dictionary: &Dictionary,
) -> WorkerPatterns {
    let mut costliest: Vec<(FunctionId, Pattern)> = patterns
        .iter()
        .map(|(id, pattern)| (*id, *pattern))
        .collect();
    // Of equals by id: one worker gives the same file each time.
    costliest.sort_by(|(a, one), (b, other)| other.beta.total_cmp(&one.beta).then(a.cmp(b)));
    let mut written = BTreeSet::new();
    let mut bytes = FUNCTION_BYTES;
    let mut patterns = BTreeMap::new();
    for (id, pattern) in costliest {
        bytes += PATTERN_BYTES;
        // A function brings its callers along, each of which is written once.
        for (id, function) in dictionary.stack_with_ids(id) {
            if written.insert(id) {
                // No less than what JSON makes of the name: it escapes fewer letters.
                bytes += FUNCTION_BYTES + function.name.escape_default().count();
            }
        }
        if bytes > MAX_BYTES {
            break;
        }
        patterns.insert(id, pattern);
    }
    let functions = dictionary.only(patterns.keys().copied());
    WorkerPatterns {
        worker,
        patterns,
        functions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::FunctionClass;

    #[test]
    fn the_costliest_functions_travel_with_their_callers() {
        let mut dictionary = Dictionary::default();
        let caller = dictionary.intern(FunctionClass::Python, "train", None);
        let patterns = (0..500u16).map(|at| {
            let name = format!("f{at}");
            let id = dictionary.intern(FunctionClass::Python, &name, Some(caller));
            (
                id,
                Pattern {
                    beta: f32::from(at) * 1e-3,
                    ..Pattern::default()
                },
            )
        });
        let patterns = patterns.collect();
        let kept = costliest(3, &patterns, &dictionary);
        assert!(
            (100..140).contains(&kept.patterns.len()),
            "{}",
            kept.patterns.len()
        );
        assert!(kept.patterns.values().all(|pattern| pattern.beta >= 0.35));
        let first = *kept.patterns.keys().next().unwrap();
        assert_eq!(kept.functions.stack(first).count(), 2);
    }
}
