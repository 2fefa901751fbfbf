//! An incident as a card: who, where, since when, what it costs, what to look at next.

use model::{Evidence, Incident, Method, Pace, StageId, StageNames};

use crate::escape::{Text, with_code};
use crate::{standstill, words};

/// The card of an incident. `number` counts from one, `part_of_run` is when it strikes, `address` its
/// own page, where it has one.
pub(crate) fn card(
    incident: &Incident,
    number: usize,
    part_of_run: Option<(f64, f64)>,
    names: &StageNames,
    address: Option<&str>,
) -> String {
    let label = match address {
        Some(address) => {
            format!(r#"<a href="{address}">incident {}</a>"#, Text(&incident.id))
        }
        None => format!("incident {number}"),
    };
    let severity = incident.severity.name();
    let state = if incident.open { "open" } else { "over" };
    let (headline, more) = sentences(incident);
    let more = if more.is_empty() {
        String::new()
    } else {
        format!(r#"<p class="more">{}</p>"#, Text(more))
    };
    format!(
        r#"<article class="incident {severity}" id="incident-{number}">
<p class="tags"><span class="pill">{severity}</span><span>{kind}</span><span>{state}</span><span class="number">{label}</span></p>
<div class="head"><div><h2 class="{opening}">{headline}</h2>{more}</div>{figure}</div>
<dl class="facts">{facts}</dl>
<p class="advice"><b>Next</b><span class="sentence">{advice}</span></p>
{hidden}{standstill}{evidence}{contradictions}
</article>
"#,
        kind = incident.kind.name(),
        opening = opening(headline, incident),
        headline = Text(headline),
        figure = figure(incident),
        facts = facts(incident, part_of_run, names),
        advice = with_code(&incident.advice),
        hidden = next_in_line(incident),
        standstill = standstill::panels(incident),
        evidence = evidence(incident),
        contradictions = contradictions(incident),
    )
}

/// The first part of the sentence, and what is left of it when the card tells the rest in
/// its own way.
fn sentences(incident: &Incident) -> (&str, &str) {
    // `narrate` puts who and where before the first semicolon.
    let (headline, more) = incident
        .text
        .split_once("; ")
        .unwrap_or((&incident.text, ""));
    if incident.next_in_line.is_empty() {
        return (headline, more);
    }
    let more = more
        // The card has a table of these.
        .split_once("next in line: ")
        .map_or(more, |(more, _)| more);
    (headline, more.trim_end_matches("; "))
}

/// The class of a sentence: it opens with a capital unless its first word is a name.
fn opening(sentence: &str, incident: &Incident) -> &'static str {
    let word = sentence.split(' ').next().unwrap_or_default();
    let plain = word.chars().all(|letter| letter.is_ascii_alphabetic());
    let stage = incident.subject.stage.as_deref();
    if plain && stage != Some(word) {
        "sentence"
    } else {
        "name"
    }
}

/// The share of exposed time, large.
fn figure(incident: &Incident) -> String {
    if incident.cost_share <= 0.0 {
        return String::new();
    }
    let since = if incident.open {
        format!("since step {}", incident.first_step)
    } else {
        format!("from step {} on", incident.first_step)
    };
    let width = (incident.cost_share * 100.0).clamp(0.0, 100.0);
    format!(
        r#"<p class="figure"><strong>{}</strong><svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="6"/><rect class="fill" width="{width:.1}" height="6"/></svg><span>of exposed step time {since}</span></p>"#,
        words::percent(incident.cost_share)
    )
}

/// A name and what it is, which is HTML.
pub(crate) fn fact(name: &str, value: &str) -> String {
    format!("<div><dt>{name}</dt><dd>{value}</dd></div>")
}

fn small(text: &str) -> String {
    format!(" <small>{}</small>", Text(text))
}

fn facts(incident: &Incident, part_of_run: Option<(f64, f64)>, names: &StageNames) -> String {
    let subject = &incident.subject;
    let hosts = match subject.hosts.as_slice() {
        [] => String::new(),
        [host] => small(&format!("on host {host}")),
        hosts => small(&format!("on hosts {}", hosts.join(", "))),
    };
    let who = words::ranks(&subject.ranks).unwrap_or("no rank in particular".to_owned());
    let mut facts = fact("Who", &format!("{}{hosts}", Text(who)));
    facts += &fact("Where", &place(incident, names));
    let pace = words::pace(incident.pace);
    let (when, pace) = if incident.open {
        let pace = match incident.pace {
            // A hang, which stays in its step.
            Pace::Once { .. } => "still going on".to_owned(),
            _ => format!("still going on, {pace}"),
        };
        (format!("since step {}", incident.first_step), pace)
    } else {
        (words::steps(incident.first_step, incident.last_step), pace)
    };
    facts += &fact(
        "When",
        &format!("{when}{}{}", small(&pace), strip(part_of_run)),
    );
    let cost = if incident.cost_s > 0.0 {
        format!(
            "{} of exposed time, {} of GPUs that waited{}",
            words::duration(incident.cost_s),
            words::duration(incident.cost_gpu_s),
            saving(incident)
        )
    } else {
        "no exposed time is charged to it".to_owned()
    };
    facts += &fact("Victims", &victims(incident));
    facts + &fact("Cost", &cost)
}

fn victims(incident: &Incident) -> String {
    let victims = &incident.victims;
    let noun = if victims.len() == 1 { "rank" } else { "ranks" };
    match (victims.is_empty(), incident.subject.ranks.is_empty()) {
        (true, _) => "nobody waits for it now".to_owned(),
        (false, true) => format!("{noun} {victims}{}", small("all are slower")),
        (false, false) => format!("{noun} {victims}{}", small("waited")),
    }
}

fn saving(incident: &Incident) -> String {
    small(&format!(
        "fixing it alone saves {}",
        words::duration(incident.gain_alone_s)
    ))
}

fn place(incident: &Incident, names: &StageNames) -> String {
    let subject = &incident.subject;
    let parts = [
        ("collective", &subject.collective),
        ("flow", &subject.flow),
        ("block", &subject.block),
        ("function", &subject.function),
    ];
    let mut places: Vec<String> = Vec::new();
    if let Some(stage) = &subject.stage {
        let plain = plain_name(stage, names).map_or(String::new(), |plain| small(&plain));
        places.push(format!("<code>{}</code>{plain}", Text(stage)));
    }
    for (noun, name) in parts {
        if let Some(name) = name {
            places.push(format!("{noun} <code>{}</code>", Text(name)));
        }
    }
    if places.is_empty() {
        "no stage in particular".to_owned()
    } else {
        places.join("<br>")
    }
}

/// A built-in stage in plain words.
pub(crate) fn plain_name(stage: &str, names: &StageNames) -> Option<String> {
    let built_in = (0..).map(StageId).take_while(|id| !id.is_named());
    let id = built_in.into_iter().find(|id| names.name(*id) == stage)?;
    (id != StageId::FORWARD_EVENT).then(|| narrate::plain_name(id, names))
}

/// The run from left to right, the time of the incident marked.
fn strip(part_of_run: Option<(f64, f64)>) -> String {
    let Some((begin, end)) = part_of_run else {
        return String::new();
    };
    // A moment of a long run would be a hairline.
    let (x, width) = (begin * 100.0, ((end - begin) * 100.0).max(1.0));
    format!(
        r#"<svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="the part of the run it covers"><rect class="track" width="100" height="6"/><rect class="fill" x="{x:.1}" width="{width:.1}" height="6"/></svg>"#
    )
}

fn next_in_line(incident: &Incident) -> String {
    if incident.next_in_line.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for hidden in &incident.next_in_line {
        rows += &format!(
            "<tr><td>{}</td><td><code>{}</code></td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            words::ranks(&hidden.ranks).unwrap_or("changing ranks".to_owned()),
            Text(&hidden.stage),
            words::duration(hidden.lateness_s),
            words::duration(incident.gain_alone_s),
            words::duration(hidden.gain_alone_s),
            words::duration(hidden.gain_both_s),
        );
    }
    format!(
        r#"<div class="line"><h3>Next in line <small>hidden now, in the way once this incident is fixed</small></h3>
<div class="scroll"><table><thead><tr><th>who</th><th>stage</th><th class="n">late a step</th><th class="n">saved by fixing this incident alone</th><th class="n">the hidden one alone</th><th class="n">both</th></tr></thead><tbody>{rows}</tbody></table></div></div>
"#
    )
}

fn evidence(incident: &Incident) -> String {
    if incident.evidence.is_empty() {
        return String::new();
    }
    let mut methods: Vec<Method> = Vec::new();
    for method in incident.evidence.iter().map(|evidence| evidence.method) {
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    let mut groups = String::new();
    for method in methods {
        let pieces: String = incident
            .evidence
            .iter()
            .filter(|evidence| evidence.method == method)
            .map(|evidence| piece(evidence, incident))
            .collect();
        groups += &format!(
            r#"<h4>{} <small>{}</small></h4><ul class="evidence">{pieces}</ul>"#,
            method.name(),
            words::method(method),
        );
    }
    format!(r#"<div class="line"><h3>Evidence</h3>{groups}</div>"#)
}

fn piece(evidence: &Evidence, incident: &Incident) -> String {
    let mut values = String::new();
    for (name, value) in &evidence.values {
        let (name, value) = words::value(name, *value);
        values += &format!("<span>{} <b>{}</b></span>", Text(name), Text(value));
    }
    format!(
        r#"<li><p><span class="{}">{}</span></p><p class="values">{values}<span>label <code>{}</code></span></p></li>"#,
        opening(&evidence.text, incident),
        Text(&evidence.text),
        Text(&evidence.label),
    )
}

fn contradictions(incident: &Incident) -> String {
    if incident.contradictions.is_empty() {
        return String::new();
    }
    let mut items = String::new();
    for it in &incident.contradictions {
        items += &format!(r#"<li><p class="sentence">{}</p></li>"#, Text(&it.text));
    }
    format!(r#"<div class="line"><h3>Contradictions</h3><ul class="evidence">{items}</ul></div>"#)
}

#[cfg(test)]
mod tests {
    use model::NextInLine;

    use super::*;
    use crate::sample;

    fn incident() -> Incident {
        let incidents = sample::late_in_data(4, 120).verdict().incidents;
        incidents
            .into_iter()
            .next()
            .expect("the sample has an incident")
    }

    #[test]
    fn a_card_says_who_where_when_and_what_next() {
        let incident = incident();
        let card = card(&incident, 1, Some((0.5, 1.0)), &StageNames::default(), None);
        let headline = incident.text.split("; ").next().unwrap();
        assert!(card.contains(headline), "{card}");
        for words in ["rank 3", "data.next_wait", "data loading", "still going on"] {
            assert!(card.contains(words), "{words} is not in {card}");
        }
        assert!(card.contains(&Text(&incident.advice).to_string()), "{card}");
        assert!(
            card.contains(&Text(&incident.evidence[0].text).to_string()),
            "{card}"
        );
    }

    #[test]
    fn a_hang_is_still_going_on_and_was_not_once() {
        let hang = Incident {
            pace: Pace::Once { step: 0 },
            ..incident()
        };
        let when = facts(&hang, None, &StageNames::default());
        assert!(when.contains(" <small>still going on</small>"), "{when}");
    }

    #[test]
    fn faults_next_in_line_are_reported_once() {
        let mut incident = incident();
        incident.text = "rank 3 is late; also in optim; next in line: rank 1 in data".into();
        incident.next_in_line = vec![NextInLine {
            ranks: vec![1],
            stage: "data".into(),
            lateness_s: 0.02,
            gain_alone_s: 0.0,
            gain_both_s: 9.0,
        }];
        let card = card(&incident, 1, None, &StageNames::default(), None);
        assert!(
            card.contains(r#"<p class="more">also in optim</p>"#),
            "{card}"
        );
        assert!(!card.contains("next in line: "), "{card}");
        assert!(
            card.contains("<td>rank 1</td>") && card.contains("9.00 s"),
            "{card}"
        );
    }

    #[test]
    fn a_sentence_opens_with_a_capital_and_a_name_as_it_is() {
        let mut incident = incident();
        assert_eq!(opening("rank 3 is late", &incident), "sentence");
        assert_eq!(opening("data.next_wait leads", &incident), "name");
        incident.subject.stage = Some("tokenise".into());
        assert_eq!(opening("tokenise leads", &incident), "name");
    }

    #[test]
    fn a_stage_of_the_user_has_no_plain_name() {
        let mut names = StageNames::default();
        names.intern("tokenise");
        assert_eq!(
            plain_name("data.next_wait", &names),
            Some("data loading".into())
        );
        assert_eq!(plain_name("tokenise", &names), None);
    }
}
