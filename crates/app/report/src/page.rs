//! The page put together.

use model::{Conclusion, Incident, Severity, StageNames, Verdict};
use verdict::Series;

use crate::digest::csp_source;
use crate::escape::{Text, json, part_of_address};
use crate::incident::{card, fact};
use crate::palette::{Paint, paints};
use crate::picture::Picture;
use crate::{labels, tables, what_if, words};

const SHELL: &str = include_str!("page.html");
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
/// As those of [`html`]; the page asks nobody but its own server.
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
    let picture = Picture::new(&alone, &[], &Series::default(), &names);
    let part = part_of_windows(verdict, incident);
    Some(fill(SHELL, |place| match place {
        "policy" => policy(&[SCRIPT, FOLLOW]) + "; connect-src 'self'",
        "brand" => format!(
            r#"<b>laggard</b> <a href="../../..">all jobs</a> <a href="../../{job}">job</a>"#
        ),
        "live" => " <em id=\"live\" hidden>live</em>".to_owned(),
        "follow" => format!("<script>{FOLLOW}</script>\n"),
        "style" => STYLE.to_owned(),
        "script" => SCRIPT.to_owned(),
        "job" => Text(&verdict.job.id).to_string(),
        "state" => incident.severity.name().to_owned(),
        "headline" => format!("Incident {}, {state}", Text(id)),
        "facts" => facts(verdict),
        "incidents" => card(incident, 1, part, &names, None) + &trace(&job, id),
        "notes" => notes(verdict),
        "schema" => Text(&verdict.schema).to_string(),
        "verdict" => json(&alone),
        "series" => json(&picture),
        _ => String::new(),
    }))
}

/// Where the trace of an incident is.
fn trace(job: &str, id: &str) -> String {
    let id = part_of_address(id);
    format!(
        r#"<p class="caption trace">What ranks did in the steps around it: <a href="../../../api/v1/jobs/{job}/incidents/{id}/trace" download>trace</a>, <a href="https://ui.perfetto.dev" data-trace>shown by ui.perfetto.dev</a></p>
"#
    )
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
    let follows = following == Following::Server;
    let paints = paints(&verdict.stages, names);
    let picture = Picture::new(verdict, &paints, series, names);
    fill(SHELL, |place| match place {
        "policy" if follows => {
            let scripts = [SCRIPT, FOLLOW];
            policy(&scripts) + "; connect-src 'self'"
        }
        "policy" => policy(&[SCRIPT]),
        "brand" if follows => "<b>laggard</b> <a href=\"..\">all jobs</a>".to_owned(),
        "brand" => "<b>laggard</b>".to_owned(),
        "live" if follows => " <em id=\"live\" hidden>live</em>".to_owned(),
        "follow" if follows => format!("<script>{FOLLOW}</script>\n"),
        "style" => STYLE.to_owned(),
        "script" => SCRIPT.to_owned(),
        "job" => Text(&verdict.job.id).to_string(),
        "state" => state(verdict).0.to_owned(),
        "headline" => state(verdict).1,
        "facts" => facts(verdict),
        "incidents" => incidents(verdict, &picture, names, following),
        "notes" => notes(verdict),
        "pictures" => pictures(verdict, &picture, &paints),
        "what_if" => verdict
            .what_if
            .as_ref()
            .map_or(String::new(), what_if::panels),
        "tables" => evidence_tables(verdict, &paints, names),
        "schema" => Text(&verdict.schema).to_string(),
        "verdict" => json(verdict),
        "series" => json(&picture),
        // What only a page that follows has, or a place nobody fills; a test keeps the shell free
        // of those.
        _ => String::new(),
    })
}

/// Puts content into the `{{places}}` of a template. Content is not searched for places.
pub(crate) fn fill(template: &str, content: impl Fn(&str) -> String) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, (place, after))) = rest
        .split_once("{{")
        .and_then(|(before, after)| Some((before, after.split_once("}}")?)))
    {
        page += before;
        page += &content(place);
        rest = after;
    }
    page + rest
}

fn policy(scripts: &[&str]) -> String {
    // By digest: of markup that came in with a name, a browser would run nothing.
    let scripts: Vec<String> = scripts.iter().map(|script| csp_source(script)).collect();
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        csp_source(STYLE),
        scripts.join(" ")
    )
}

/// The state of the job: a class for its colour, and a sentence.
fn state(verdict: &Verdict) -> (&'static str, String) {
    let incidents = &verdict.incidents;
    if let Some(conclusion) = verdict.conclusion() {
        let class = match conclusion {
            Conclusion::NothingStuck | Conclusion::NothingTimed | Conclusion::Healthy => "healthy",
            Conclusion::TooLittleSeen
            | Conclusion::Ambiguous
            | Conclusion::DevicesUnseen
            | Conclusion::Uncompared => "unknown",
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

fn facts(verdict: &Verdict) -> String {
    let job = &verdict.job;
    let steps = format!(
        "{} <small>{} analysed</small>",
        job.steps, job.analysed_steps
    );
    let mut text = fact("Ranks", &job.ranks.to_string());
    text += &fact("Steps", &steps);
    text += &fact("Exposed time", &words::duration(job.exposed_s));
    if job.analysed_steps > 0 {
        let mean_s = job.exposed_s / job.analysed_steps as f64;
        text += &fact("Mean step", &words::duration(mean_s));
    }
    text += &fact("Steps cut at", &Text(&job.cut).to_string());
    text += &fact("Source", job.source.name());
    if job.lost_records > 0 {
        text += &fact("Records lost", &job.lost_records.to_string());
    }
    text
}

fn incidents(
    verdict: &Verdict,
    picture: &Picture,
    names: &StageNames,
    following: Following,
) -> String {
    let job = part_of_address(&verdict.job.id);
    let mut cards = Vec::with_capacity(verdict.incidents.len());
    for (at, incident) in verdict.incidents.iter().enumerate() {
        let address = format!("{job}/incidents/{}", part_of_address(&incident.id));
        let address = (following == Following::Server).then_some(address.as_str());
        cards.push(card(
            incident,
            at + 1,
            picture.part_of_run(at),
            names,
            address,
        ));
    }
    let (first, further) = cards.split_at(cards.len().min(MAX_CARDS));
    if further.is_empty() {
        return first.concat();
    }
    format!(
        r#"{}<details class="further"><summary>{}</summary>{}</details>"#,
        first.concat(),
        words::count(further.len() as u64, "further incident"),
        further.concat()
    )
}

fn notes(verdict: &Verdict) -> String {
    if verdict.notes.is_empty() {
        return String::new();
    }
    let mut items = String::new();
    for note in &verdict.notes {
        items += &format!("<li>{}</li>", Text(note));
    }
    format!(r#"<aside class="notes"><h2>What could not be seen</h2><ul>{items}</ul></aside>"#)
}

/// Places the script draws into.
fn pictures(verdict: &Verdict, picture: &Picture, paints: &[Paint]) -> String {
    if picture.is_empty() {
        return String::new();
    }
    let legend = tables::legend(verdict, paints);
    let time = format!(
        r#"<section class="panel" id="time">
<header><h2>Exposed time of a step</h2><p class="modes" hidden><label><input type="radio" name="mode" value="seconds" checked><span>seconds</span></label><label><input type="radio" name="mode" value="share"><span>share</span></label></p></header>
<p class="caption">What a step cost the job; each colour is the part charged to a stage.</p>
<div class="plot" tabindex="0" role="img" aria-label="Exposed time of a step by stage, over the run"></div>
<ul class="legend">{legend}</ul>
</section>
"#
    );
    // A single rank is late behind nobody.
    if picture.ranks().len() < 2 {
        return time;
    }
    let shown = picture.ranks().len();
    let remark = if verdict.job.ranks > shown {
        format!(
            " Of {} ranks, the first {shown} are drawn.",
            verdict.job.ranks
        )
    } else {
        String::new()
    };
    time + &format!(
        r#"<section class="panel" id="lag">
<header><h2>Who is late, and when</h2><p class="choice" hidden><label>at the end of <select name="stage"></select></label> <label hidden>show <select name="order"></select></label></p></header>
<p class="caption">How much later than the median rank each rank reaches the end of the stage; lateness it brings along from earlier stages of the step counts.{remark}</p>
<div class="plot" tabindex="0" role="img" aria-label="Lag of each rank over the run"></div>
<p class="scale" hidden><span></span><canvas height="1" width="256"></canvas><span></span><span class="absent" hidden>hatched: nothing delivered</span></p>
</section>
"#
    )
}

fn evidence_tables(verdict: &Verdict, paints: &[Paint], names: &StageNames) -> String {
    if verdict.stages.is_empty() {
        return String::new();
    }
    let stages = tables::stage_rows(verdict, paints, names);
    let (summary, windows) = tables::windows(verdict, paints);
    let meanings = labels::explained(verdict);
    format!(
        r#"<section class="panel" id="stages"><header><h2>Stages</h2></header>
<div class="scroll"><table><thead><tr><th>stage</th><th class="n">exposed</th><th class="n">share</th><th></th><th class="n">gain</th><th>last to arrive</th></tr></thead><tbody>{stages}</tbody></table></div>
<p class="caption">Exposed: time of the job charged to the stage. Gain: the share of exposed time that would vanish with the stage at its baseline and every wait left in place. Last to arrive: ranks that reached the end of the stage last in most steps.</p></section>
<section class="panel" id="windows"><details open><summary><h2>Windows</h2> <small>{summary}</small></summary>
<div class="scroll tall"><table><thead><tr><th>steps</th><th class="n">mean step</th><th>shares</th><th>candidates</th><th>labels</th><th>weakened because</th></tr></thead><tbody>{windows}</tbody></table></div></details></section>
<section class="panel" id="labels"><header><h2>What the labels mean</h2></header><dl class="meanings">{meanings}</dl></section>
"#
    )
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
        assert!(page.contains(&Text(&verdict.incidents[0].advice).to_string()));
        assert!(!page.contains("<i>") && !page.contains("{{"), "{page}");
        assert_eq!(incident_html(&verdict, "i2"), None);
    }

    #[test]
    fn every_place_of_the_shell_is_filled() {
        let places = SHELL
            .split("{{")
            .skip(1)
            .map(|rest| rest.split_once("}}").unwrap().0);
        let job = sample::late_in_data(4, 120);
        let page = page(&job);
        for place in places {
            assert!(!page.contains(&format!("{{{{{place}}}}}")), "{place}");
        }
        assert!(page.contains(&csp_source(SCRIPT)));
    }

    #[test]
    fn the_page_asks_for_nothing_from_elsewhere() {
        for asset in [SHELL, STYLE, SCRIPT, FOLLOW] {
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
        assert!(SHELL.len() + STYLE.len() + SCRIPT.len() < 44_000);
    }
}
