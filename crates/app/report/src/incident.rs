//! An incident as a card: who, where, since when, what it costs, what to look at next.

use maud::{Markup, Render, html};
use model::{Evidence, Incident, Method, Pace, StageId, StageNames};

use crate::escape::{Text, with_code};
use crate::svg::{meter, part};
use crate::{standstill, words};

/// The card of an incident. `number` counts from one, `part_of_run` is when it strikes, `address` its
/// own page, where it has one.
pub(crate) fn card(
    incident: &Incident,
    number: usize,
    part_of_run: Option<(f64, f64)>,
    names: &StageNames,
    address: Option<&str>,
) -> Markup {
    let severity = incident.severity.name();
    let (headline, more) = sentences(incident);
    html! {
        article.incident.(severity) id={ "incident-" (number) } {
            p.tags {
                span.pill { (severity) }
                span { (incident.kind.name()) }
                span { @if incident.open { "open" } @else { "over" } }
                span.number {
                    @if let Some(address) = address {
                        a href=(address) { "incident " (Text(&incident.id)) }
                    } @else {
                        "incident " (number)
                    }
                }
            }
            div.head {
                div {
                    h2.(opening(headline, incident)) { (Text(headline)) }
                    @if !more.is_empty() { p.more { (Text(more)) } }
                }
                @if incident.cost_share > 0.0 { (figure(incident)) }
            }
            dl.facts { (facts(incident, part_of_run, names)) }
            p.advice { b { "Next" } span.sentence { (with_code(&incident.advice)) } }
            (next_in_line(incident))
            (standstill::panels(incident))
            (evidence(incident))
            (contradictions(incident))
        }
    }
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
fn figure(incident: &Incident) -> Markup {
    let width = (incident.cost_share * 100.0).clamp(0.0, 100.0);
    html! {
        p.figure {
            strong { (words::percent(incident.cost_share)) }
            (meter(None, &part("fill", 0.0, width)))
            span {
                "of exposed step time "
                @if incident.open {
                    "since step " (incident.first_step)
                } @else {
                    "from step " (incident.first_step) " on"
                }
            }
        }
    }
}

/// A name and what it is.
pub(crate) fn fact(name: &str, value: impl Render) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

fn small(text: &str) -> Markup {
    html! { " " small { (Text(text)) } }
}

fn facts(incident: &Incident, part_of_run: Option<(f64, f64)>, names: &StageNames) -> Markup {
    html! {
        (fact("Who", who(incident)))
        (fact("Where", place(incident, names)))
        (fact("When", when(incident, part_of_run)))
        (fact("Victims", victims(incident)))
        (fact("Cost", cost(incident)))
    }
}

fn who(incident: &Incident) -> Markup {
    let subject = &incident.subject;
    let who = words::ranks(&subject.ranks).unwrap_or("no rank in particular".to_owned());
    html! {
        (Text(who))
        @match subject.hosts.as_slice() {
            [] => {}
            [host] => (small(&format!("on host {host}"))),
            hosts => (small(&format!("on hosts {}", hosts.join(", ")))),
        }
    }
}

fn when(incident: &Incident, part_of_run: Option<(f64, f64)>) -> Markup {
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
    html! {
        (when) (small(&pace))
        // The run from left to right, the time of the incident marked.
        @if let Some((begin, end)) = part_of_run {
            // A moment of a long run would be a hairline.
            @let marked = part("fill", begin * 100.0, ((end - begin) * 100.0).max(1.0));
            (meter(Some("the part of the run it covers"), &marked))
        }
    }
}

fn cost(incident: &Incident) -> Markup {
    let saved = words::duration(incident.gain_alone_s);
    html! {
        @if incident.cost_s > 0.0 {
            (words::duration(incident.cost_s)) " of exposed time, "
            (words::duration(incident.cost_gpu_s)) " of GPUs that waited"
            (small(&format!("fixing it alone saves {saved}")))
        } @else {
            "no exposed time is charged to it"
        }
    }
}

fn victims(incident: &Incident) -> Markup {
    let victims = &incident.victims;
    let noun = if victims.len() == 1 { "rank" } else { "ranks" };
    // Without a culprit nobody is known to be waited for.
    let why = if incident.subject.ranks.is_empty() {
        "all are slower"
    } else {
        "waited"
    };
    html! {
        @if victims.is_empty() {
            "no rank waits for it now"
        } @else {
            (noun) " " (victims) (small(why))
        }
    }
}

fn place(incident: &Incident, names: &StageNames) -> Markup {
    let subject = &incident.subject;
    let parts = [
        ("collective", &subject.collective),
        ("flow", &subject.flow),
        ("block", &subject.block),
        ("function", &subject.function),
    ];
    let stage = subject.stage.as_ref().map(|stage| {
        let plain = plain_name(stage, names);
        html! {
            code { (Text(stage)) }
            @if let Some(plain) = plain { (small(&plain)) }
        }
    });
    // A finding of fused methods may have several places: all of them are shown.
    let others = parts.into_iter().filter_map(|(noun, name)| {
        let name = name.as_ref()?;
        Some(html! { (noun) " " code { (Text(name)) } })
    });
    let places: Vec<Markup> = stage.into_iter().chain(others).collect();
    html! {
        @if places.is_empty() { "no stage in particular" }
        @for (at, place) in places.iter().enumerate() {
            @if at > 0 { br; }
            (place)
        }
    }
}

/// A built-in stage in plain words.
pub(crate) fn plain_name(stage: &str, names: &StageNames) -> Option<String> {
    let built_in = (0..).map(StageId).take_while(|id| !id.is_named());
    let id = built_in.into_iter().find(|id| names.name(*id) == stage)?;
    // Times of the device's forward pass are evidence beside the stages, and no stage.
    (id != StageId::FORWARD_EVENT).then(|| narrate::plain_name(id, names))
}

fn next_in_line(incident: &Incident) -> Markup {
    if incident.next_in_line.is_empty() {
        return Markup::default();
    }
    html! {
        div.line {
            h3 {
                "Next in line "
                small { "hidden now, in the way once this incident is fixed" }
            }
            div.scroll {
                table {
                    thead {
                        tr {
                            th { "who" }
                            th { "stage" }
                            th.n { "late a step" }
                            th.n { "saved by fixing this incident alone" }
                            th.n { "the hidden one alone" }
                            th.n { "both" }
                        }
                    }
                    tbody {
                        @for hidden in &incident.next_in_line {
                            tr {
                                td {
                                    (words::ranks(&hidden.ranks)
                                        .unwrap_or("changing ranks".to_owned()))
                                }
                                td { code { (Text(&hidden.stage)) } }
                                td.n { (words::duration(hidden.lateness_s)) }
                                td.n { (words::duration(incident.gain_alone_s)) }
                                td.n { (words::duration(hidden.gain_alone_s)) }
                                td.n { (words::duration(hidden.gain_both_s)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn evidence(incident: &Incident) -> Markup {
    if incident.evidence.is_empty() {
        return Markup::default();
    }
    let mut methods: Vec<Method> = Vec::new();
    for method in incident.evidence.iter().map(|evidence| evidence.method) {
        // Not sorted: methods stand in the order of the evidence.
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    html! {
        div.line {
            h3 { "Evidence" }
            @for method in methods {
                h4 { (method.name()) " " small { (words::method(method)) } }
                ul.evidence {
                    @for evidence in incident.evidence.iter().filter(|it| it.method == method) {
                        (piece(evidence, incident))
                    }
                }
            }
        }
    }
}

fn piece(evidence: &Evidence, incident: &Incident) -> Markup {
    html! {
        li {
            p { span.(opening(&evidence.text, incident)) { (Text(&evidence.text)) } }
            p.values {
                @for (name, value) in &evidence.values {
                    @let (name, value) = words::value(name, *value);
                    span { (Text(name)) " " b { (Text(value)) } }
                }
                span { "label " code { (Text(&evidence.label)) } }
            }
        }
    }
}

fn contradictions(incident: &Incident) -> Markup {
    if incident.contradictions.is_empty() {
        return Markup::default();
    }
    html! {
        div.line {
            h3 { "Contradictions" }
            ul.evidence {
                @for it in &incident.contradictions {
                    li { p.sentence { (Text(&it.text)) } }
                }
            }
        }
    }
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
        let card = card(&incident, 1, Some((0.5, 1.0)), &StageNames::default(), None).0;
        let headline = incident.text.split("; ").next().unwrap();
        assert!(card.contains(headline), "{card}");
        for words in ["rank 3", "data.next_wait", "data loading", "still going on"] {
            assert!(card.contains(words), "{words} is not in {card}");
        }
        assert!(card.contains(&Text(&incident.advice).render().0), "{card}");
        assert!(
            card.contains(&Text(&incident.evidence[0].text).render().0),
            "{card}"
        );
    }

    #[test]
    fn a_hang_is_still_going_on_and_was_not_once() {
        let hang = Incident {
            pace: Pace::Once { step: 0 },
            ..incident()
        };
        let when = when(&hang, None).0;
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
        let card = card(&incident, 1, None, &StageNames::default(), None).0;
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
