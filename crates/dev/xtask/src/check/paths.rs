//! Files that pages name, and those that belong to a fuzz target.

use std::path::Path;

use super::prose::code_spans;
use crate::source::SourceFile;

/// Files and folders that a page names between backticks and that are not there. A name may leave
/// out the folders before it, as `model/src/mark.rs` does. Pages for users name files of theirs:
/// in them only Rust sources are ours.
pub(super) fn missing(pages: &[SourceFile], files: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages {
        for (line, name) in code_spans(&page.text) {
            let is_ours = !page.name.starts_with("docs/")
                || Path::new(name).extension().is_some_and(|it| it == "rs");
            if is_ours && is_path(name) && !files.iter().any(|file| names(name, file)) {
                faults.push(format!("{}:{line}: {name} does not exist", page.name));
            }
        }
    }
    faults
}

/// Fuzz targets that the manifest lacks, or that begin without a seed.
pub(super) fn unready_targets(manifest: &str, files: &[String]) -> Vec<String> {
    let targets = files
        .iter()
        .filter_map(|file| file.strip_prefix("fuzz/targets/")?.strip_suffix(".rs"));
    let mut faults = Vec::new();
    for target in targets {
        if !manifest.contains(&format!("path = \"targets/{target}.rs\"")) {
            faults.push(format!("fuzz/Cargo.toml has no [[bin]] for {target}"));
        }
        let seeds = format!("fuzz/seeds/{target}/");
        if !files.iter().any(|file| file.starts_with(&seeds)) {
            faults.push(format!(
                "fuzz target {target} has no seed: see fuzz/write_seeds.rs"
            ));
        }
    }
    faults
}

/// Whether inline code is the name of a file, or of a folder of sources.
fn is_path(code: &str) -> bool {
    let is_name = code
        .chars()
        .all(|it| it.is_ascii_alphanumeric() || "_-./".contains(it));
    let is_file = [".rs", ".py", ".js", ".css", ".toml", ".md"]
        .iter()
        .any(|extension| code.ends_with(extension));
    let is_folder = ["src", "tests", "targets"]
        .iter()
        .any(|last| code.ends_with(&format!("/{last}")));
    is_name && (is_file || is_folder)
}

/// Whether a name means this file or a folder that it lies in.
fn names(name: &str, file: &str) -> bool {
    format!("/{file}/").contains(&format!("/{name}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_named_file_that_is_not_there_is_found() {
        let text = "`model/src/mark.rs`, `mark.rs`, `core/model/src`, `steps::Aligner`\n\
                    `model/src/marks.rs`, `ark.rs`, `a/1`\n```\n`none.rs`\n```\n";
        let page = |name: &str, text: &str| SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let docs = page("docs/a.md", "`train.py`, `old.rs`");
        assert_eq!(
            missing(
                &[page("page.md", text), docs],
                &files(&["crates/core/model/src/mark.rs"])
            ),
            [
                "page.md:2: model/src/marks.rs does not exist",
                "page.md:2: ark.rs does not exist",
                "docs/a.md:1: old.rs does not exist",
            ]
        );
    }

    #[test]
    fn a_fuzz_target_needs_its_row_and_a_seed() {
        let there = files(&[
            "fuzz/targets/ring.rs",
            "fuzz/targets/journal.rs",
            "fuzz/seeds/ring/ring",
        ]);
        let manifest = "[[bin]]\nname = \"ring\"\npath = \"targets/ring.rs\"\n";
        assert_eq!(
            unready_targets(manifest, &there),
            [
                "fuzz/Cargo.toml has no [[bin]] for journal",
                "fuzz target journal has no seed: see fuzz/write_seeds.rs",
            ]
        );
    }
}
