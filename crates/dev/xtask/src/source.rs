//! The repository's files as text.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A file under version control, or one that could be.
pub(crate) struct SourceFile {
    /// Its path from the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

impl SourceFile {
    /// Whether it is compiled for tests or benches only.
    pub(crate) fn is_test(&self) -> bool {
        ["/tests/", "/benches/"]
            .iter()
            .any(|part| self.name.contains(part))
            || self.name.ends_with("/tests.rs")
    }

    /// Its text without the module of tests at its end.
    pub(crate) fn product(&self) -> &str {
        self.text
            // An indented attribute belongs to an item inside a module and cuts nothing off.
            .split("\n#[cfg(test)]\n")
            .next()
            .unwrap_or_default()
    }
}

/// The files that match patterns of `git ls-files`.
pub(crate) fn files(root: &Path, patterns: &[&str]) -> Result<Vec<SourceFile>> {
    let listing = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = output(root, "git", &[&listing[..], patterns].concat())?;
    let mut names: Vec<&str> = listed.lines().collect();
    names.sort_unstable();
    // During a merge, git lists a file in conflict once for each side.
    names.dedup();
    let mut files = Vec::new();
    for name in names {
        // A file that was deleted is still listed until the deletion is committed.
        if let Ok(text) = fs::read_to_string(root.join(name)) {
            files.push(SourceFile {
                name: name.to_owned(),
                text,
            });
        }
    }
    Ok(files)
}

/// The Rust sources of the product, without tests and benches.
pub(crate) fn product(root: &Path) -> Result<Vec<SourceFile>> {
    let mut sources = files(root, &["crates/*.rs"])?;
    sources.retain(|source| !source.is_test());
    Ok(sources)
}

/// What a command of this machine prints.
pub(crate) fn output(root: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .output()
        .with_context(|| format!("failed to run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {} failed",
        arguments.join(" ")
    );
    Ok(String::from_utf8(output.stdout)?)
}
