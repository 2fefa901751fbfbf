//! Links of the documentation that lead nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::prose::prose;
use crate::source::SourceFile;

/// Checks the links between pages, with their anchors. Pages under `docs` become a site of their
/// own: they link to nothing outside, and `docs/SUMMARY.md` lists each.
pub(super) fn dead_links(root: &Path, pages: &[SourceFile]) -> Vec<String> {
    let anchors: BTreeMap<&str, BTreeSet<String>> = pages
        .iter()
        .map(|page| (page.name.as_str(), anchors(&page.text)))
        .collect();
    let mut faults = Vec::new();
    let mut listed = BTreeSet::new();
    for page in pages {
        for (line, target) in links(&page.text) {
            let place = format!("{}:{line}", page.name);
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = if path.is_empty() {
                page.name.clone()
            } else {
                resolved(&page.name, path)
            };
            if page.name == "docs/SUMMARY.md" {
                listed.insert(to.clone());
            }
            if page.name.starts_with("docs/") && !to.starts_with("docs/") {
                faults.push(format!("{place}: {target} lies outside docs"));
            } else if !root.join(&to).exists() {
                faults.push(format!("{place}: {target} does not exist"));
            } else if !anchor.is_empty()
                && anchors
                    .get(to.as_str())
                    // Headings are known of pages only; anchors of other files are not checked.
                    .is_some_and(|of| !of.contains(anchor))
            {
                faults.push(format!("{place}: {to} has no heading #{anchor}"));
            }
        }
    }
    listed.insert("docs/SUMMARY.md".to_owned());
    for page in pages {
        if page.name.starts_with("docs/") && !listed.contains(&page.name) {
            faults.push(format!("docs/SUMMARY.md does not list {}", page.name));
        }
    }
    faults
}

/// Relative links of a page, with the numbers of their lines.
fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        let targets = line.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split(')').next());
        // The check works without a network, so it takes links to other sites as they are.
        for target in targets.filter(|target| !target.contains("://")) {
            found.push((number, target.to_owned()));
        }
    }
    found
}

/// A link's path from the root of the repository.
fn resolved(page: &str, path: &str) -> String {
    let mut to = PathBuf::from(page);
    to.pop();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                to.pop();
            }
            Component::Normal(name) => to.push(name),
            _ => {}
        }
    }
    to.display().to_string()
}

/// The anchors of a page's headings, as forges and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in page.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) else {
            continue;
        };
        let slug: String = heading
            .trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(|it| it.is_alphanumeric() || " -_".contains(*it))
            .map(|it| if it == ' ' { '-' } else { it })
            .collect();
        let repeats = (1..).map(|number| format!("{slug}-{number}"));
        let anchor = std::iter::once(slug.clone())
            // The second heading of a name gets `-1`, as on a forge.
            .chain(repeats)
            .find(|anchor| !found.contains(anchor));
        found.extend(anchor);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str, text: &str) -> SourceFile {
        SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let pages = [
            page("docs/SUMMARY.md", "[a](a.md) [b](sub/b.md)"),
            page(
                "docs/a.md",
                "# A `b`, c\n## Twice\n## Twice\n[x](sub/b.md#here)",
            ),
            page(
                "docs/sub/b.md",
                "[x](../a.md#a-b-c) [y](../a.md#twice-1) [z](#no)",
            ),
            page("docs/c.md", "`[code](nowhere.md)` [out](../README.md)"),
        ];
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("docs/sub")).unwrap();
        for page in &pages {
            std::fs::write(root.path().join(&page.name), &page.text).unwrap();
        }
        assert_eq!(
            dead_links(root.path(), &pages),
            [
                "docs/a.md:4: docs/sub/b.md has no heading #here",
                "docs/sub/b.md:1: docs/sub/b.md has no heading #no",
                "docs/c.md:1: ../README.md lies outside docs",
                "docs/SUMMARY.md does not list docs/c.md",
            ]
        );
    }
}
