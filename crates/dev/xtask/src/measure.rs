//! Figures of how the code is written, beside those of well-kept projects of the field.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::check::names;
use crate::source::{self, SourceFile};

/// Prints the figures as a table. Rust sources count without tests and benches.
pub(crate) fn measure(root: &Path) -> Result<ExitCode> {
    let sources = source::product(root)?;
    let types = names::types(&sources);
    let twice: BTreeSet<&str> = names::shared(&types).into_keys().collect();
    let of_several = types.iter().filter(|it| twice.contains(it.name)).count();
    let lines = count(&sources, |_| true);
    let code = count(&sources, is_code);
    let examples: usize = sources.iter().map(|source| examples(&source.text)).sum();
    let reruns: usize = source::files(root, &["python/tests/*.py", "pyproject.toml"])?
        .iter()
        .map(|source| source.text.matches("flaky(").count())
        .sum();
    println!("| measured | here | target |");
    println!("|---|---|---|");
    for (name, here, target) in [
        (
            "types that share their name with another, percent",
            format!(
                "{:.0} of {}",
                per(100.0, of_several, types.len()),
                types.len()
            ),
            "5",
        ),
        (
            "comments per 100 lines of code",
            format!("{:.1}", per(100.0, count(&sources, is_comment), code)),
            "4",
        ),
        ("examples that tests run", examples.to_string(), "25"),
        (
            "named closures per 1,000 lines",
            format!("{:.1}", per(1000.0, count(&sources, is_closure), lines)),
            "1",
        ),
        ("log statements", count(&sources, is_log).to_string(), ""),
        ("tests that may be run again", reruns.to_string(), "0"),
    ] {
        println!("| {name} | {here} | {target} |");
    }
    Ok(ExitCode::SUCCESS)
}

/// How many lines of the product are what is asked for.
fn count(sources: &[SourceFile], is_it: fn(&str) -> bool) -> usize {
    sources
        .iter()
        .flat_map(|source| source.product().lines())
        .filter(|line| is_it(line))
        .count()
}

fn per(unit: f64, part: usize, of: usize) -> f64 {
    unit * part as f64 / of.max(1) as f64
}

fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

/// A comment that is no documentation.
fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") && !["///", "//!"].iter().any(|it| line.starts_with(it))
}

/// `let name = |…|`.
fn is_closure(line: &str) -> bool {
    line.trim_start().strip_prefix("let ").is_some_and(|rest| {
        let value = rest.split_once(" = ").map_or("", |(_, value)| value);
        value.trim_start_matches("move ").starts_with('|')
    })
}

fn is_log(line: &str) -> bool {
    ["trace!(", "debug!(", "info!(", "warn!(", "error!("]
        .iter()
        .any(|name| {
            line.match_indices(name).any(|(at, _)| {
                // The name of another macro may end like one of these.
                let before = line[..at].chars().next_back();
                before.is_none_or(|it| !it.is_alphanumeric() && it != '_')
            })
        })
}

/// Examples in the documentation of a file that `cargo test --doc` runs.
fn examples(source: &str) -> usize {
    let mut open = false;
    let mut found = 0;
    for line in source.lines().map(str::trim_start) {
        let doc = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        let Some(fence) = doc.and_then(|doc| doc.trim_start().strip_prefix("```")) else {
            continue;
        };
        open = !open;
        // For rustdoc a fence without a language holds Rust.
        found += usize::from(open && ["", "rust"].contains(&fence.trim()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_they_look_like() {
        assert!(is_closure("    let told = |it: u8| it;"));
        assert!(is_closure("let mut told = move |it| it;"));
        assert!(!is_closure("let told = a || b;"));
        assert!(is_comment("  // why") && !is_comment("  /// what") && !is_code("  // why"));
        assert!(is_log("warn!(rank)") && is_log("tracing::info!(x)") && !is_log("my_warn!(x)"));
        assert_eq!(
            examples("/// ```\n/// a\n/// ```\n/// ```text\n/// b\n/// ```\n"),
            1
        );
    }
}
