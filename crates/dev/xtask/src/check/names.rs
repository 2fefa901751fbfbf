//! Names of types.

use std::collections::BTreeMap;

use crate::source::SourceFile;

/// A type that a file defines.
#[derive(Clone, Copy)]
pub(crate) struct TypeName<'a> {
    pub(crate) name: &'a str,
    /// The file.
    pub(crate) file: &'a str,
    pub(crate) is_public: bool,
}

/// The types that files define outside of tests.
pub(crate) fn types(sources: &[SourceFile]) -> Vec<TypeName<'_>> {
    sources
        .iter()
        .flat_map(|source| source.product().lines().map(move |line| (source, line)))
        .filter_map(|(source, line)| {
            let (is_public, name) = type_name(line)?;
            Some(TypeName {
                name,
                file: &source.name,
                is_public,
            })
        })
        .collect()
}

/// Names that several of these types have, with the files that define them.
pub(crate) fn shared<'a>(types: &[TypeName<'a>]) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in types {
        files.entry(it.name).or_default().push(it.file);
    }
    files.retain(|_, of| of.len() > 1);
    files
}

/// Names that several public types have: readers, and a search, take one for the other.
pub(crate) fn shared_public(types: &[TypeName<'_>]) -> Vec<String> {
    let public: Vec<TypeName<'_>> = types.iter().filter(|it| it.is_public).copied().collect();
    shared(&public)
        .into_iter()
        .map(|(name, files)| format!("public types are called {name} in {}", files.join(", ")))
        .collect()
}

/// The name of the type that a line begins to define, and whether all crates can use it.
fn type_name(line: &str) -> Option<(bool, &str)> {
    // What is indented further belongs to a function or a trait.
    let indent = line.len() - line.trim_start().len();
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words
        .iter()
        // At most two words stand before the keyword: `pub(crate) unsafe trait`.
        .take(3)
        .position(|word| ["struct", "enum", "union", "trait", "type"].contains(word))?;
    if words[at] == "type" && indent > 0 {
        return None;
    }
    if !words[..at]
        .iter()
        .all(|word| word.starts_with("pub") || *word == "unsafe")
    {
        return None;
    }
    let name = words
        .get(at + 1)?
        .split(|it: char| !it.is_alphanumeric())
        .next()?;
    // A macro has `$name` here, which leaves an empty name.
    let is_type = name.starts_with(|it: char| it.is_ascii_uppercase());
    is_type.then_some((words[0] == "pub", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> SourceFile {
        SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn two_public_types_of_one_name_are_a_fault() {
        let sources = [
            file(
                "a.rs",
                "pub struct Trace;\npub struct Series;\npub use parquet::Row;",
            ),
            file(
                "b.rs",
                "pub enum Trace {\n}\npub(crate) struct Series;\npub struct Row;",
            ),
            file(
                "c.rs",
                "use b::Trace;\n#[cfg(test)]\nmod tests {\npub struct Trace;\n}",
            ),
        ];
        assert_eq!(
            shared_public(&types(&sources)),
            ["public types are called Trace in a.rs, b.rs"]
        );
    }

    #[test]
    fn a_name_of_two_types_is_found() {
        let sources = [
            file(
                "a.rs",
                "pub struct Window<T> {\nenum Only;\n    type Item = Window;",
            ),
            file(
                "b.rs",
                "pub(crate) enum Window {\n}\n#[cfg(test)]\nmod tests {\nstruct Only;\n}",
            ),
        ];
        let types = types(&sources);
        let reported: Vec<bool> = types
            .iter()
            .filter(|it| it.name == "Window")
            .map(|it| it.is_public)
            .collect();
        assert_eq!(reported, [true, false]);
        assert_eq!(
            shared(&types),
            BTreeMap::from([("Window", vec!["a.rs", "b.rs"])])
        );
    }
}
