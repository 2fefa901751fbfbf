//! Markdown without its code.

/// The lines of a page with their numbers, from 1 on. Fenced code is left out, and inline code is
/// replaced by the character `0`.
pub(super) fn prose(page: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (line, number) in page.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number, without_code(line)));
        }
    }
    lines
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
    }
}
