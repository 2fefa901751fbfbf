//! The page put together.

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};
use model::{Incident, Severity, StageNames, Verdict};
use verdict::Series;

use crate::digest::csp_source;
use crate::escape::{Text, json, part_of_address};
use crate::incident::{card, fact};
use crate::palette::{Paint, paints};
use crate::picture::Picture;
use crate::{labels, tables, what_if, words};

pub(crate) const STYLE: &str = include_str!("page.css");
/// One function, so that nothing of it is global, of files that TypeScript checks as one program.
/// They hold no `return` of their own: without steps there is nothing to draw.
const SCRIPT: &str = concat!(
    "(() => {\n'use strict';\n",
    include_str!("page/input.js"),
    "if (!columns) return;\n\n",
    include_str!("page/drawing.js"),
    include_str!("page/axis.js"),
    include_str!("page/pointer.js"),
    include_str!("page/time.js"),
    include_str!("page/lag.js"),
    include_str!("page/start.js"),
    "})();\n",
);
/// Puts newer content of the same page in the place of what is shown.
const FOLLOW: &str = include_str!("follow.js");

/// Incidents shown at once; the costliest come first, and the rest is folded away.
const MAX_CARDS: usize = 8;

/// Renders a verdict as one self-contained HTML page.
///
/// The page loads nothing from anywhere and reads without its script; only the pictures
/// need it. `series` and `names` are those of the job the verdict is about.
///
/// # Properties
/// Nothing in the verdict, whatever its stages and job are called, becomes markup or code.
/// The same arguments give the same page, byte for byte.
pub fn html(verdict: &Verdict, series: &Series, names: &StageNames) -> String {
    page(verdict, series, names, Following::Not)
}

/// Renders the same page for a server that tells of changes: where it stands under
/// `/jobs/JOB`, it listens to `/api/v1/jobs/JOB/events` and shows what is new.
///
/// # Properties
/// As those of [`html()`]; the page asks nobody but its own server.
pub fn live_html(verdict: &Verdict, series: &Series, names: &StageNames) -> String {
    page(verdict, series, names, Following::Server)
}

/// Renders the page of one incident for a server, under `/jobs/JOB/incidents/ID`: all that is known
/// of it, evidence by method. `None` if the verdict has no such incident.
///
/// # Properties
/// As those of [`live_html`].
pub fn incident_html(verdict: &Verdict, id: &str) -> Option<String> {
    let incident = verdict
        .incidents
        .iter()
        .find(|incident| incident.id == id)?;
    // Those of built-in stages are enough: no other has plain words.
    let names = StageNames::default();
    let state = if incident.open {
        "still going on"
    } else {
        "over"
    };
    let job = part_of_address(&verdict.job.id);
    // Stages and windows are the job's, and have their place on its page.
    let alone = Verdict {
        stages: Vec::new(),
        windows: Vec::new(),
        incidents: vec![incident.clone()],
        what_if: None,
        profile: None,
        ..verdict.clone()
    };
    let part = part_of_windows(verdict, incident);
    let page = Page {
        following: Following::Server,
        links: html! {
            " " a href="../../.." { "all jobs" } " " a href={ "../../" (job) } { "job" }
        },
        state: incident.severity.name(),
        headline: html! { "Incident " (Text(id)) ", " (state) },
        incidents: html! { (card(incident, 1, part, &names, None)) (trace(&job, id)) },
        pictures: Markup::default(),
        tables: Markup::default(),
        document: &alone,
        // Without steps the script has nothing to draw and returns at once.
        picture: Picture::new(&alone, &[], &Series::default(), &names),
    };
    Some(page.render(verdict))
}

/// Where the trace of an incident is.
fn trace(job: &str, id: &str) -> Markup {
    let id = part_of_address(id);
    html! {
        p.caption.trace {
            "What ranks did in the steps around it: "
            a href={ "../../../api/v1/jobs/" (job) "/incidents/" (id) "/trace" } download {
                "trace"
            }
            ", "
            a href="https://ui.perfetto.dev" data-trace { "shown by ui.perfetto.dev" }
        }
    }
}

/// The part of the steps still listed that an incident covers.
fn part_of_windows(verdict: &Verdict, incident: &Incident) -> Option<(f64, f64)> {
    let first = verdict
        .windows
        .iter()
        .map(|window| window.first_step)
        .min()?;
    let end = verdict
        .windows
        .iter()
        .map(|window| window.first_step + window.steps)
        .max()?;
    // An incident may have begun before the windows that are still listed.
    let [begin, end] = [incident.first_step, incident.last_step.saturating_add(1)]
        .map(|step| (step.clamp(first, end) - first) as f64 / (end - first).max(1) as f64);
    Some((begin, end))
}

/// Whether a page follows the job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Following {
    Not,
    Server,
}

fn page(verdict: &Verdict, series: &Series, names: &StageNames, following: Following) -> String {
    let paints = paints(&verdict.stages, names);
    let picture = Picture::new(verdict, &paints, series, names);
    let (state, headline) = state(verdict);
    let page = Page {
        following,
        links: html! { @if following == Following::Server { " " a href=".." { "all jobs" } } },
        state,
        headline: headline.render(),
        incidents: incidents(verdict, &picture, names, following),
        pictures: html! {
            (pictures(verdict, &picture, &paints))
            @if let Some(what_if) = &verdict.what_if { (what_if::panels(what_if)) }
        },
        tables: evidence_tables(verdict, &paints, names),
        document: verdict,
        picture,
    };
    page.render(verdict)
}

/// What the pages of a job and of an incident differ in.
struct Page<'a> {
    following: Following,
    /// Links to other pages.
    links: Markup,
    /// A class for the colour of the headline.
    state: &'static str,
    headline: Markup,
    incidents: Markup,
    pictures: Markup,
    tables: Markup,
    document: &'a Verdict,
    picture: Picture,
}

impl Page<'_> {
    fn render(&self, verdict: &Verdict) -> String {
        let follows = self.following == Following::Server;
        let policy = if follows {
            // A file has no server to ask: its page may connect to nothing.
            policy(&[SCRIPT, FOLLOW]) + "; connect-src 'self'"
        } else {
            policy(&[SCRIPT])
        };
        let job = Text(&verdict.job.id);
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                (head(&policy, &job, STYLE))
                body {
                    header.top {
                        p.brand {
                            b { "laggard" } (self.links) " " span { (job) }
                            @if follows { " " em #live hidden { "live" } }
                        }
                        h1.(self.state) { (self.headline) }
                        dl.job { (facts(verdict)) }
                    }
                    main {
                        (self.incidents)
                        (notes(verdict))
                        (self.pictures)
                        noscript {
                            p.caption {
                                "The pictures need the script of this page; everything else works \
                                 without it."
                            }
                        }
                        (self.tables)
                    }
                    footer {
                        p {
                            "This page is complete in itself and holds the verdict as JSON, "
                            (Text(&verdict.schema)) "."
                        }
                    }
                    div.tip #tip role="status" hidden {}
                    // Data blocks are not run, so the policy needs no hash of them.
                    script type="application/json" id="verdict" { (json(self.document)) }
                    script type="application/json" id="series" { (json(&self.picture)) }
                    script #draw { (PreEscaped(SCRIPT)) }
                    @if follows { script { (PreEscaped(FOLLOW)) } }
                }
            }
        };
        page.into_string()
    }
}

/// What a page is called, what it may do and how it looks. `style` goes in as it is: it is one of
/// this crate.
pub(crate) fn head(policy: &str, title: impl Render, style: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            // In the page: one that is opened as a file has no server that sends headers.
            meta http-equiv="Content-Security-Policy" content=(policy);
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="generator" content="laggard";
            meta name="referrer" content="no-referrer";
            title { (title) " - laggard" }
            style { (PreEscaped(style)) }
        }
    }
}

fn policy(scripts: &[&str]) -> String {
    // By digest: of markup that came in with a name, a browser would run nothing.
    let scripts: Vec<String> = scripts.iter().map(|script| csp_source(script)).collect();
    format!(
        // `default-src` does not stand in for the last two. A `base` that came in with a name would
        // turn every link of the page.
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        csp_source(STYLE),
        scripts.join(" ")
    )
}

/// The state of the job: a class for its colour, and a sentence.
fn state(verdict: &Verdict) -> (&'static str, String) {
    let incidents = &verdict.incidents;
    if let Some(conclusion) = verdict.conclusion() {
        let class = if conclusion.is_good() {
            "healthy"
        } else {
            "unknown"
        };
        let (heading, reason) = narrate::conclusion(conclusion);
        return (class, format!("{heading}: {reason}"));
    }
    let worst = incidents.iter().map(|incident| incident.severity).max();
    let worst = worst.unwrap_or(Severity::Info);
    let open = incidents.iter().filter(|incident| incident.open).count();
    let number = words::count(incidents.len() as u64, "incident");
    let holds = match (worst, incidents.len()) {
        (Severity::Info, 1) => " is worth knowing of",
        (Severity::Info, _) => " are worth knowing of",
        (_, 1) => " holds the job back",
        (_, _) => " hold the job back",
    };
    let text = match open {
        0 => format!("{number}, over by the end"),
        all if all == incidents.len() => format!("{number}{holds}"),
        some => format!("{number}, {some} still open"),
    };
    (worst.name(), text)
}

fn facts(verdict: &Verdict) -> Markup {
    let job = &verdict.job;
    let steps = html! { (job.steps) " " small { (job.analysed_steps) " analysed" } };
    html! {
        (fact("Ranks", job.ranks))
        (fact("Steps", steps))
        (fact("Exposed time", words::duration(job.exposed_s)))
        @if job.analysed_steps > 0 {
            (fact("Mean step", words::duration(job.exposed_s / job.analysed_steps as f64)))
        }
        (fact("Steps cut at", Text(&job.cut)))
        (fact("Source", job.source.name()))
        @if job.lost_records > 0 { (fact("Records lost", job.lost_records)) }
    }
}

fn incidents(
    verdict: &Verdict,
    picture: &Picture,
    names: &StageNames,
    following: Following,
) -> Markup {
    let job = part_of_address(&verdict.job.id);
    let mut cards = verdict.incidents.iter().enumerate().map(|(at, incident)| {
        let address = format!("{job}/incidents/{}", part_of_address(&incident.id));
        let address = (following == Following::Server).then_some(address.as_str());
        card(incident, at + 1, picture.part_of_run(at), names, address)
    });
    let further = verdict.incidents.len().saturating_sub(MAX_CARDS);
    html! {
        // `by_ref` leaves the further cards to the loop below.
        @for card in cards.by_ref().take(MAX_CARDS) { (card) }
        @if further > 0 {
            details.further {
                summary { (words::count(further as u64, "further incident")) }
                @for card in cards { (card) }
            }
        }
    }
}

fn notes(verdict: &Verdict) -> Markup {
    html! {
        @if !verdict.notes.is_empty() {
            aside.notes {
                h2 { "What was not observed" }
                ul { @for note in &verdict.notes { li { (Text(note)) } } }
            }
        }
    }
}

/// Places the script draws into.
fn pictures(verdict: &Verdict, picture: &Picture, paints: &[Paint]) -> Markup {
    let shown = picture.ranks().len();
    html! {
        @if !picture.is_empty() {
            section.panel #time {
                header {
                    h2 { "Exposed time of a step" }
                    p.modes hidden {
                        label {
                            input type="radio" name="mode" value="seconds" checked;
                            span { "seconds" }
                        }
                        label {
                            input type="radio" name="mode" value="share";
                            span { "share" }
                        }
                    }
                }
                p.caption {
                    "What a step cost the job; each colour is the part charged to a stage."
                }
                (plot("Exposed time of a step by stage, over the run"))
                ul.legend { (tables::legend(verdict, paints)) }
            }
        }
        // A single rank is late behind nobody.
        @if !picture.is_empty() && shown > 1 { (lag_picture(verdict.job.ranks, shown)) }
    }
}

fn plot(label: &str) -> Markup {
    html! { div.plot tabindex="0" role="img" aria-label=(label) {} }
}

fn lag_picture(ranks: usize, shown: usize) -> Markup {
    html! {
        section.panel #lag {
            header {
                h2 { "Which ranks are late, and when" }
                p.choice hidden {
                    label { "at the end of " select name="stage" {} }
                    " "
                    label hidden { "show " select name="order" {} }
                }
            }
            p.caption {
                "How much later than the median rank each rank reaches the end of the stage; \
                 lateness it brings along from earlier stages of the step counts."
                @if ranks > shown { " Of " (ranks) " ranks, the first " (shown) " are drawn." }
            }
            (plot("Lag of each rank over the run"))
            p.scale hidden {
                span {}
                canvas height="1" width="256" {}
                span {}
                span.absent hidden { "hatched: nothing delivered" }
            }
        }
    }
}

fn evidence_tables(verdict: &Verdict, paints: &[Paint], names: &StageNames) -> Markup {
    // Call logs have incidents and no stages.
    if verdict.stages.is_empty() {
        return Markup::default();
    }
    let (summary, windows) = tables::windows(verdict, paints);
    html! {
        section.panel #stages {
            header { h2 { "Stages" } }
            div.scroll {
                table {
                    thead {
                        tr {
                            th { "stage" }
                            th.n { "exposed" }
                            th.n { "share" }
                            th {}
                            th.n { "gain" }
                            th { "last to arrive" }
                        }
                    }
                    tbody { (tables::stage_rows(verdict, paints, names)) }
                }
            }
            p.caption {
                "Exposed: time of the job charged to the stage. Gain: the share of exposed time \
                 that would vanish with the stage at its baseline and every wait left in place. \
                 Last to arrive: ranks that reached the end of the stage last in most steps."
                @if verdict.job.stages_on_devices {
                    " Hosts run ahead of their devices: stages are those of sampled steps, on the \
                     devices' clocks."
                }
            }
        }
        section.panel #windows {
            details open {
                summary { h2 { "Windows" } " " small { (summary) } }
                div.scroll.tall {
                    table {
                        thead {
                            tr {
                                th { "steps" }
                                th.n { "mean step" }
                                th { "shares" }
                                th { "candidates" }
                                th { "labels" }
                                th { "weakened because" }
                            }
                        }
                        tbody { (windows) }
                    }
                }
            }
        }
        section.panel #labels {
            header { h2 { "What the labels mean" } }
            dl.meanings { (labels::explained(verdict)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Source;

    use super::*;
    use crate::sample;

    fn page(job: &verdict::Job) -> String {
        html(&job.verdict(), job.series(), job.names())
    }

    fn block<'a>(page: &'a str, id: &str) -> &'a str {
        let begin = format!(r#"<script type="application/json" id="{id}">"#);
        let (_, rest) = page.split_once(&begin).unwrap();
        rest.split_once("</script>").unwrap().0
    }

    #[test]
    fn an_incident_can_be_read_without_the_script() {
        let job = sample::late_in_data(4, 120);
        let page = page(&job);
        let verdict = job.verdict();
        let headline = verdict.incidents[0].text.split("; ").next().unwrap();
        let visible = page.split("<script").next().unwrap();
        assert!(visible.contains(headline), "{visible}");
        assert!(visible.contains("1 incident holds the job back"));
    }

    #[test]
    fn many_incidents_are_folded_and_none_is_left_out() {
        let job = sample::late_in_data(4, 120);
        let mut verdict = job.verdict();
        verdict.incidents = vec![verdict.incidents[0].clone(); 11];
        let page = html(&verdict, job.series(), job.names());
        assert_eq!(page.matches("<article").count(), 11);
        assert!(page.contains("<summary>3 further incidents</summary>"));
    }

    #[test]
    fn a_healthy_job_is_called_so_in_one_line_and_has_no_card() {
        let page = page(&sample::healthy());
        assert!(page.contains("Healthy: no rank and no stage stands out"));
        assert!(!page.contains("<article"));
    }

    #[test]
    fn a_job_of_which_nothing_was_seen_still_has_a_page() {
        let job = verdict::Job::new("empty", Source::Run, verdict::Settings::default());
        let page = page(&job);
        assert!(page.contains("No verdict: too little was recorded"));
        assert!(!page.contains(r#"class="plot""#));
    }

    #[test]
    fn the_verdict_reads_back_from_the_page() {
        let job = sample::late_in_data(4, 120);
        let read: Verdict = serde_json::from_str(block(&page(&job), "verdict")).unwrap();
        assert_eq!(read, job.verdict());
    }

    #[test]
    fn names_from_user_code_stay_names() {
        let name =
            r#"</script><script>alert(1)</script><img src=x onerror=alert(1)> {{script}} "'`"#;
        let job = sample::hostile(name);
        let page = page(&job);
        assert_eq!(
            page.matches("<script").count(),
            3,
            "the page's own and two data blocks"
        );
        assert!(!page.contains("<img"));
        assert_eq!(page.matches(SCRIPT).count(), 1);
        let read: Verdict = serde_json::from_str(block(&page, "verdict")).unwrap();
        assert_eq!(read.job.id, name);
        assert_eq!(
            read.stages
                .iter()
                .filter(|stage| stage.name == name)
                .count(),
            1
        );
    }

    #[test]
    fn only_the_page_of_a_server_follows_it() {
        let job = sample::late_in_data(4, 120);
        let (verdict, series, names) = (job.verdict(), job.series(), job.names());
        let live = live_html(&verdict, series, names);
        assert!(live.contains(FOLLOW) && live.contains(&csp_source(FOLLOW)));
        assert!(live.contains("connect-src 'self'"));
        let page = page(&job);
        assert!(!page.contains("EventSource") && !page.contains("connect-src"));
    }

    #[test]
    fn an_incident_has_a_page_of_its_own_and_the_job_leads_there() {
        let name = "a/b <i>";
        let job = sample::hostile(name);
        let verdict = job.verdict();
        let live = live_html(&verdict, job.series(), job.names());
        assert!(live.contains(r#"<a href="a%2Fb%20%3Ci%3E/incidents/i1">incident i1</a>"#));
        let page = incident_html(&verdict, "i1").unwrap();
        assert!(
            page.contains(r#"<a href="../../a%2Fb%20%3Ci%3E">job</a>"#),
            "{page}"
        );
        assert!(page.contains("<h4>frontier <small>"), "{page}");
        assert!(page.contains(&Text(&verdict.incidents[0].advice).render().0));
        assert!(!page.contains("<i>"), "{page}");
        assert_eq!(incident_html(&verdict, "i2"), None);
    }

    #[test]
    fn a_page_admits_its_own_script() {
        let page = page(&sample::late_in_data(4, 120));
        assert!(page.contains(&csp_source(SCRIPT)));
    }

    #[test]
    fn the_page_asks_for_nothing_from_elsewhere() {
        let page = page(&sample::late_in_data(4, 120));
        let visible = page.split("<script").next().unwrap();
        for asset in [visible, SCRIPT, FOLLOW] {
            let without_names = asset.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !without_names.contains("//"),
                "an address or a comment that looks like one"
            );
            assert!(!without_names.contains("@import") && !without_names.contains("url("));
        }
    }

    #[test]
    fn the_shell_is_light() {
        let job = verdict::Job::new("empty", Source::Run, verdict::Settings::default());
        assert!(page(&job).len() < 45_000);
    }
}
