//! Laws that code cites and no page states.

use std::collections::BTreeSet;

use crate::source::SourceFile;

/// Ids of laws, such as `SF-P1`, that stand in code without a row in a table of `docs/math`.
pub(super) fn unstated(sources: &[SourceFile], pages: &[SourceFile]) -> Vec<String> {
    let stated: BTreeSet<&str> = pages
        .iter()
        .filter(|page| page.name.starts_with("docs/math/"))
        .flat_map(|page| page.text.lines())
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next())
        .collect();
    let mut faults = Vec::new();
    for source in sources {
        let cited: BTreeSet<&str> = laws(&source.text).collect();
        for id in cited.into_iter().filter(|id| !stated.contains(id)) {
            faults.push(format!("{} cites {id}, which docs/math lacks", source.name));
        }
    }
    faults
}

/// Ids of laws in a text: two capitals, `-P` and a number.
fn laws(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| !it.is_ascii_alphanumeric() && it != '-')
        .filter(|word| {
            word.split_once("-P").is_some_and(|(method, number)| {
                method.len() == 2
                    && method.chars().all(|it| it.is_ascii_uppercase())
                    && !number.is_empty()
                    && number.chars().all(|it| it.is_ascii_digit())
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_without_a_statement_is_found() {
        let file = |name: &str, text: &str| SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let code = file(
            "a.rs",
            "/// By AB-P1 and (AB-P12), not AB-PX, AB-A3 or ABC-P1.",
        );
        let page = file(
            "docs/math/a.md",
            "| AB-P1 | it holds | `test` |\nAB-P12 is cited",
        );
        assert_eq!(
            unstated(&[code], &[page]),
            ["a.rs cites AB-P12, which docs/math lacks"]
        );
    }
}
