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

    /// Its text without modules of tests at its end.
    pub(crate) fn product(&self) -> &str {
        let mut product = self.text.as_str();
        while let Some(before) = before_tests(product) {
            product = before;
        }
        product
    }
}

/// What stands before the module of tests at the end of a text, if there is one. A function or a
/// file that is for tests only cuts nothing off where code of the product follows.
fn before_tests(text: &str) -> Option<&str> {
    // An indented attribute belongs to an item inside a module.
    let (before, tests) = text.rsplit_once("\n#[cfg(test)]\n")?;
    let (head, rest) = tests.split_once('\n').unwrap_or((tests, ""));
    let is_module = head.split(' ').any(|word| word == "mod");
    // Behind a module with a body nothing stands: clippy refuses items after tests.
    let is_last = head.ends_with('{') || rest.trim().is_empty();
    (is_module && is_last).then_some(before)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_at_the_end_of_a_file_are_not_of_the_product() {
        let product = |text: &str| {
            let file = SourceFile {
                name: "crates/core/x/src/x.rs".to_owned(),
                text: text.to_owned(),
            };
            file.product().to_owned()
        };
        let code = "struct First;\n#[cfg(test)]\nfn helper() {\n}\n#[cfg(test)]\nmod testkit;\n\n\
                    struct Last;\n";
        assert_eq!(product(code), code);
        for tests in [
            "mod tests;\n",
            "pub(super) mod tests {\n    struct Third;\n}\n",
            "mod campaign;\n\n#[cfg(test)]\nmod tests {\n}\n",
        ] {
            assert_eq!(product(&format!("{code}\n#[cfg(test)]\n{tests}")), code);
        }
    }
}
