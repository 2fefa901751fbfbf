//! Markdown, prose and code apart.

/// The lines of a page with their numbers, from 1 on. Fenced code is left out, and inline code is
/// replaced by the character `0`.
pub(super) fn prose(page: &str) -> Vec<(usize, String)> {
    unfenced(page)
        .map(|(number, line)| (number, without_code(line)))
        .collect()
}

/// The inline code of a page, each with the number of its line.
pub(super) fn code_spans(page: &str) -> impl Iterator<Item = (usize, &str)> {
    unfenced(page).flat_map(|(number, line)| {
        line.split('`')
            .skip(1)
            .step_by(2)
            .map(move |code| (number, code))
    })
}

/// The lines of a page outside of fenced code, with their numbers.
fn unfenced(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// A line with its inline code replaced. Code that goes on in the next line is not recognised.
fn without_code(line: &str) -> String {
    let mut parts = line.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let (Some(_code), Some(after)) = (parts.next(), parts.next()) {
        text.push('0');
        text.push_str(after);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_no_prose() {
        let page = "One `told` word.\n```text\ntold\n```\nTwo ``x`` end.";
        let lines = prose(page);
        assert_eq!(lines[0], (1, "One 0 word.".to_owned()));
        assert_eq!(lines[1].0, 5);
        assert_eq!(lines.len(), 2);
        let code: Vec<_> = code_spans("One `told` word, `x`\n```\n`y`\n```\n").collect();
        assert_eq!(code, [(1, "told"), (1, "x")]);
    }
}
