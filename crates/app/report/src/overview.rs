//! The list of a server's jobs.

use maud::{DOCTYPE, PreEscaped, html};

use crate::digest::csp_source;
use crate::page::{STYLE, head};

const OWN_STYLE: &str = include_str!("overview.css");
const SCRIPT: &str = include_str!("overview.js");

/// The page at a server's root: it asks `api/v1/jobs` for the jobs, again and again, and
/// links to `jobs/JOB`.
///
/// # Properties
/// Names of jobs become text, never markup; the page asks nobody but its own server.
pub fn overview() -> String {
    // One element and one hash: two style elements would need two.
    let style = STYLE.to_owned() + OWN_STYLE;
    let policy = format!(
        // `default-src` does not stand in for the last two, so each is named.
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; \
         base-uri 'none'; form-action 'none'",
        csp_source(&style),
        csp_source(SCRIPT)
    );
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head(&policy, "jobs", &style))
            body {
                header.top {
                    p.brand { b { "laggard" } " " em #live hidden {} }
                    h1 #headline { "Jobs" }
                    p.sieve {
                        label {
                            "find "
                            input #find type="search" autocomplete="off" spellcheck="false";
                        }
                        " " span #states {}
                    }
                }
                main {
                    noscript {
                        p {
                            "This page needs its script; "
                            a href="api/v1/jobs" { "the list as JSON" } " does without."
                        }
                    }
                    ul.jobs #jobs {}
                    p.caption #none hidden {}
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_built_of_text_and_asks_its_own_server_only() {
        let page = overview();
        assert!(!page.contains("innerHTML") && !page.contains("//"));
        assert!(page.contains(&csp_source(SCRIPT)));
    }
}
