mod laws;
mod links;
pub(crate) mod names;
mod notes;
mod paths;
mod prose;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use diagnosis::{FusionRule, RULES};
use serde_json::Value;

use crate::source::{self, output};

/// Lines of a source file, tests included.
const MAX_LINES: usize = 800;
/// Lines of ARCHITECTURE.md: one page.
const MAX_PAGE_LINES: usize = 120;
/// Pages beside `docs` that are held to its English.
const PAGES: [&str; 3] = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"];
/// The floors, lowest first; a room stands on the floors below it, or on its own.
const FLOORS: [&str; 5] = ["core", "capture", "host", "app", "dev"];

/// Checks the structure; prints each fault and fails if there is one.
pub(crate) fn check(root: &Path) -> Result<ExitCode> {
    let crates = crates(root)?;
    let mut faults = arrows(&crates)?;
    faults.extend(code_map(root, &crates)?);
    faults.extend(long_files(root)?);
    faults.extend(documentation(root)?);
    faults.extend(fusion_table(root)?);
    faults.extend(named_paths(root)?);
    for fault in &faults {
        eprintln!("xtask: {fault}");
    }
    println!("xtask: {} crates, {} faults", crates.len(), faults.len());
    Ok(ExitCode::from(u8::from(!faults.is_empty())))
}

struct Crate {
    floor: usize,
    /// `core/model`.
    place: String,
    /// Crates of this workspace that its product needs.
    needs: Vec<String>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn crates(root: &Path) -> Result<BTreeMap<String, Crate>> {
    let metadata = output(
        root,
        "cargo",
        &["metadata", "--no-deps", "--format-version=1"],
    )?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let mut crates = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let manifest = text(&package["manifest_path"]);
        let place = manifest.rsplit("crates/").next().unwrap_or_default();
        let place = place.trim_end_matches("/Cargo.toml").to_owned();
        let (floor, folder) = place.split_once('/').context("a crate without a floor")?;
        let name = text(&package["name"]);
        // A tool of the repository is nobody's dependency, and needs no name of its own.
        let stem = name
            .strip_prefix("laggard-")
            .unwrap_or("xtask")
            .replace('-', "_");
        ensure!(
            folder == stem,
            "crate {name} lives in a folder called {folder}"
        );
        let floor = FLOORS.iter().position(|known| *known == floor);
        let floor = floor.with_context(|| format!("{place} is on no floor"))?;
        let needs = list(&package["dependencies"])
            .iter()
            // Tests may use a floor above: those of `capture/nccl` take their cluster from
            // `dev/sim`.
            .filter(|it| it["path"].is_string() && it["kind"].as_str() != Some("dev"))
            .map(|dependency| text(&dependency["name"]).to_owned())
            .collect();
        crates.insert(
            name.to_owned(),
            Crate {
                floor,
                place,
                needs,
            },
        );
    }
    Ok(crates)
}

/// Dependencies that point up. Rooms of one floor may use each other; cargo refuses cycles.
fn arrows(crates: &BTreeMap<String, Crate>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for room in crates.values() {
        for needed in &room.needs {
            let below = crates.get(needed).context("a path outside the workspace")?;
            if below.floor > room.floor {
                faults.push(format!("{} stands on {}", room.place, below.place));
            }
        }
    }
    Ok(faults)
}

/// Crates that ARCHITECTURE.md does not name in its code map, and names of none.
fn code_map(root: &Path, crates: &BTreeMap<String, Crate>) -> Result<Vec<String>> {
    let path = root.join("ARCHITECTURE.md");
    let page = fs::read_to_string(&path).context("failed to read ARCHITECTURE.md")?;
    let mut faults = Vec::new();
    if page.lines().count() > MAX_PAGE_LINES {
        faults.push(format!(
            "ARCHITECTURE.md is longer than {MAX_PAGE_LINES} lines"
        ));
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let named: Vec<&str> = rows
        .filter_map(|row| row.split('`').next())
        .filter(|name| {
            FLOORS
                .iter()
                .any(|floor| name.starts_with(&format!("{floor}/")))
        })
        .collect();
    for room in crates
        .values()
        .filter(|room| !named.contains(&room.place.as_str()))
    {
        faults.push(format!("ARCHITECTURE.md does not name {}", room.place));
    }
    for name in named {
        if !crates.values().any(|room| room.place == name) {
            faults.push(format!("ARCHITECTURE.md names {name}, which is not there"));
        }
    }
    Ok(faults)
}

/// Rows of docs/math/fusion.md that are not the rules of fusion, in their order.
fn fusion_table(root: &Path) -> Result<Vec<String>> {
    const PAGE: &str = "docs/math/fusion.md";
    let page = fs::read_to_string(root.join(PAGE)).context("failed to read fusion.md")?;
    let (_, section) = page
        .split_once("\n## Rules\n")
        .context("no rules in fusion.md")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    // The first row is the head; the line below it begins with `|-` and is no row.
    let written: Vec<&str> = rows.skip(1).collect();
    let rules = RULES.iter().map(|rule| {
        let FusionRule {
            name,
            when,
            keeps,
            source,
            ..
        } = rule;
        format!("| {name} | {when} | {keeps} | {source} |")
    });
    let rules: Vec<String> = rules.collect();
    let mut faults: Vec<String> = rules
        .iter()
        .filter(|row| !written.contains(&row.as_str()))
        .map(|row| format!("{PAGE} lacks the rule {row}"))
        .collect();
    // A missing rule makes the lists differ, too. It is reported once, by itself.
    if faults.is_empty() && written != rules {
        faults.push(format!(
            "{PAGE} has other rules than fusion, or another order"
        ));
    }
    Ok(faults)
}

fn long_files(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for source in source::files(root, &["*.rs", "*.py"])? {
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            faults.push(format!(
                "{} has {lines} lines, more than {MAX_LINES}",
                source.name
            ));
        }
    }
    Ok(faults)
}

/// Files that pages name and that are not there, and fuzz targets in parts.
fn named_paths(root: &Path) -> Result<Vec<String>> {
    const OURS: [&str; 4] = [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "testdata/README.md",
        "docs/*.md",
    ];
    // With `--others`, a page may name a file before it is added.
    let listing = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = output(root, "git", &listing)?;
    let files: Vec<String> = listed.lines().map(str::to_owned).collect();
    let pages = source::files(root, &OURS)?;
    let mut faults = paths::missing(&pages, &files);
    let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml"))
        .context("failed to read fuzz/Cargo.toml")?;
    faults.extend(paths::unready_targets(&manifest, &files));
    Ok(faults)
}

/// Faults of pages, help, citations and names.
fn documentation(root: &Path) -> Result<Vec<String>> {
    let mut pages = source::files(root, &["*.md"])?;
    // Links have to lead somewhere in every page, the words below only in some.
    let mut faults = links::dead_links(root, &pages);
    // What was once written of a version stays as it is.
    pages.retain(|page| page.name.starts_with("docs/") || PAGES.contains(&page.name.as_str()));
    faults.extend(words::in_pages(&pages));
    faults.extend(words::in_help(&source::files(
        root,
        &["crates/app/cli/src/*.rs"],
    )?));
    let mut code = source::files(root, &["crates/*.rs", "python/*.py"])?;
    // The tests of these checks cite what is nowhere stated.
    code.retain(|source| !source.name.starts_with("crates/dev/xtask/"));
    faults.extend(laws::unstated(&code, &pages));

    let mut product = source::product(root)?;
    faults.extend(names::shared_public(&names::types(&product)));
    let worders = ["crates/core/", "crates/dev/"];
    product.retain(|source| !worders.iter().any(|it| source.name.starts_with(it)));
    faults.extend(notes::worded(&product));
    let messages = source::files(root, &["crates/core/narrate/src/*.rs"])?;
    faults.extend(words::in_messages(&messages));
    Ok(faults)
}
