//! The list of a server's jobs.

use crate::digest::csp_source;
use crate::page::{STYLE, fill};

const SHELL: &str = include_str!("overview.html");
const OWN_STYLE: &str = include_str!("overview.css");
const SCRIPT: &str = include_str!("overview.js");

/// The page at a server's root: it asks `api/v1/jobs` for the jobs, again and again, and
/// links to `jobs/JOB`.
///
/// # Properties
/// Names of jobs become text, never markup; the page asks nobody but its own server.
pub fn overview() -> String {
    let style = STYLE.to_owned() + OWN_STYLE;
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; \
         base-uri 'none'; form-action 'none'",
        csp_source(&style),
        csp_source(SCRIPT)
    );
    fill(SHELL, |place| match place {
        "policy" => policy.clone(),
        "style" => style.clone(),
        "script" => SCRIPT.to_owned(),
        _ => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_built_of_text_and_asks_its_own_server_only() {
        let page = overview();
        assert!(!page.contains("{{"), "every place is filled");
        assert!(!page.contains("innerHTML") && !page.contains("//"));
        assert!(page.contains(&csp_source(SCRIPT)));
    }
}
