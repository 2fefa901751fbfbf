//! The screen as a picture.

use collector::{JobState, ListedJob};
use model::{Incident, Severity, StageSummary};
use narrate::who;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::screen::Screen;
use crate::render::{percent, seconds, word};

/// Characters of a stage's bar.
const BAR: usize = 24;

pub(crate) fn draw(frame: &mut Frame, screen: &Screen) {
    let rows = [
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(head_line(screen)), head);
    match screen.opened() {
        Some(job) => draw_job(frame, body, screen, job),
        None => draw_jobs(frame, body, screen),
    }
    let keys = if screen.opened().is_some() {
        "up, down  scroll    Esc  all jobs    q  quit"
    } else {
        "up, down  choose    Enter  open    q  quit"
    };
    // The picture stays as it was: this line alone shows that the collector does not answer.
    let foot_line = match &screen.error {
        Some(error) => Line::from(error.as_str()).red(),
        None => Line::from(keys).dim(),
    };
    frame.render_widget(Paragraph::new(foot_line), foot);
}

fn head_line(screen: &Screen) -> Line<'_> {
    let mut spans = vec!["laggard ".bold(), Span::from(screen.url.as_str()).dim()];
    for state in JobState::ALL {
        let count = screen.jobs.iter().filter(|job| job.state == state).count();
        if count > 0 {
            spans.push(Span::styled(
                format!("  {count} {}", state.word()),
                paint(state),
            ));
        }
    }
    Line::from(spans)
}

fn draw_jobs(frame: &mut Frame, area: Rect, screen: &Screen) {
    let widths = [
        Constraint::Length(8),
        Constraint::Fill(2),
        Constraint::Length(6),
        Constraint::Length(5),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Fill(3),
    ];
    let names = [
        "state",
        "job",
        "ranks",
        "hosts",
        "steps",
        "exposed",
        "first incident",
    ];
    let rows = screen.jobs.iter().map(job_row);
    let table = Table::new(rows, widths)
        .header(Row::new(names).dim())
        .row_highlight_style(Style::new().reversed());
    // Not kept from picture to picture: rows change places, and a job is chosen by its name.
    let mut state = TableState::new().with_selected(screen.chosen());
    frame.render_stateful_widget(table, area, &mut state);
    if screen.jobs.is_empty() {
        let text = "no job has reported anything yet: laggard run --collector URL -- COMMAND";
        let [_, middle] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(area);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), middle);
    }
}

fn job_row(job: &ListedJob) -> Row<'_> {
    Row::new([
        Cell::from(job.state.word()).style(paint(job.state)),
        // Names come over the network. ratatui drops their control characters.
        Cell::from(job.id.as_str()),
        Cell::from(job.ranks.to_string()),
        Cell::from(job.hosts.to_string()),
        Cell::from(job.steps.to_string()),
        Cell::from(seconds(job.exposed_s)),
        Cell::from(job.headline.as_deref().unwrap_or("")),
    ])
}

fn draw_job(frame: &mut Frame, area: Rect, screen: &Screen, job: &str) {
    let mut lines = Vec::new();
    match screen.summary() {
        Some(summary) => lines.extend(summary_lines(summary)),
        None => {
            lines.push(Line::from(format!("{job}: the collector has no such job")).red());
        }
    }
    if let Some(verdict) = &screen.verdict {
        lines.push(Line::default());
        let names = verdict
            .stages
            .iter()
            .map(|stage| stage.name.chars().count());
        let width = names.max().unwrap_or(0);
        lines.extend(verdict.stages.iter().map(|stage| stage_line(stage, width)));
        lines.extend(verdict.incidents.iter().flat_map(incident_lines));
        lines.push(Line::default());
        lines.extend(
            verdict
                .notes
                .iter()
                .map(|note| Line::from(format!("note: {note}")).dim()),
        );
    }
    let text = Paragraph::new(lines)
        // Trimmed, the lines below an incident would lose their indentation.
        .wrap(Wrap { trim: false })
        .scroll((screen.scrolled, 0));
    frame.render_widget(text, area);
}

fn summary_lines(job: &ListedJob) -> Vec<Line<'_>> {
    let state = Span::styled(job.state.word(), paint(job.state));
    let text = format!(
        "  {} ranks, hosts: {}, {} steps, {} exposed",
        job.ranks,
        job.hosts,
        job.steps,
        seconds(job.exposed_s)
    );
    let mut lines = vec![Line::from(vec![
        job.id.as_str().bold(),
        "  ".into(),
        state,
        text.into(),
    ])];
    if !job.silent_hosts.is_empty() {
        let hosts = job.silent_hosts.join(", ");
        lines.push(Line::from(format!("silent: {hosts}")).yellow());
    }
    if job.lost_records > 0 {
        lines.push(Line::from(format!("{} records were lost", job.lost_records)).yellow());
    }
    lines
}

fn stage_line(stage: &StageSummary, width: usize) -> Line<'_> {
    let filled = (stage.share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let leads = match stage.lead_ranks.as_slice() {
        [] => String::new(),
        ranks => format!("  last: {}", who(ranks)),
    };
    Line::from(vec![
        format!("{:width$}  ", stage.name).into(),
        "█".repeat(filled).cyan(),
        "░".repeat(BAR - filled).dim(),
        format!(
            "{:>6} {:>9}{leads}",
            percent(stage.share),
            seconds(stage.advance_s)
        )
        .into(),
    ])
}

fn incident_lines(incident: &Incident) -> Vec<Line<'_>> {
    let colour = match incident.severity {
        Severity::Critical => Color::Red,
        Severity::Warning => Color::Yellow,
        Severity::Info => Color::Cyan,
    };
    let over = if incident.open { "  " } else { " (over)  " };
    let head = Span::styled(word(incident.severity), Style::new().fg(colour).bold());
    let mut lines = vec![
        Line::default(),
        Line::from(vec![head, over.into(), incident.text.as_str().into()]),
    ];
    for evidence in &incident.evidence {
        lines.push(Line::from(format!("  why   {}", evidence.text)));
    }
    for contradiction in &incident.contradictions {
        lines.push(Line::from(format!("  but   {}", contradiction.text)));
    }
    lines.push(Line::from(format!("  next  {}", incident.advice)));
    lines
}

fn paint(state: JobState) -> Style {
    let colour = match state {
        JobState::Hung => Color::Red,
        JobState::Slow | JobState::Silent => Color::Yellow,
        JobState::Healthy => Color::Green,
        JobState::Unclear => Color::Cyan,
        JobState::Starting | JobState::Ended => return Style::new().dim(),
    };
    Style::new().fg(colour)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;
    use crate::top::screen::TopUpdate;

    fn job(id: &str, state: JobState, headline: Option<&str>) -> ListedJob {
        ListedJob {
            id: id.to_owned(),
            state,
            headline: headline.map(str::to_owned),
            severity: None,
            ranks: 4,
            hosts: 2,
            silent_hosts: Vec::new(),
            steps: 640,
            exposed_s: 54.8,
            incidents: 1,
            open_incidents: 1,
            lost_records: 0,
            last_seen_s: 0,
            version: 1,
        }
    }

    const LATE: &str = "rank 2 is late in data.next_wait: 50.0 ms a step";

    fn seen() -> TopUpdate {
        let verdict = json!({
            "schema": model::SCHEMA,
            "job": {"id": "pretrain-7", "ranks": 4, "steps": 640, "analysed_steps": 600,
                "source": "run", "cut": "backward end", "exposed_s": 54.8, "lost_records": 0},
            "stages": [
                {"name": "data.next_wait", "advance_s": 33.4, "share": 0.61, "gain": 0.0,
                    "lead_ranks": [2]},
                {"name": "model.backward_cpu_wall", "advance_s": 21.4, "share": 0.39, "gain": 0.0,
                    "lead_ranks": []}],
            "windows": [],
            "incidents": [{"id": "i1", "kind": "slow", "severity": "critical", "open": true,
                "subject": {"ranks": [2], "hosts": [], "stage": null, "collective": null,
                    "flow": null, "block": null, "function": null},
                "pace": {"kind": "steady"}, "first_step": 5, "last_step": 640, "cost_s": 32.0,
                "cost_share": 0.58, "gain_alone_s": 32.0, "next_in_line": [], "text": LATE,
                "evidence": [{"method": "frontier", "label": "likely_sync_wait",
                    "text": "own work exceeded the other ranks' by 50.0 ms", "values": {}}],
                "advice": "look at rank 2's data loader"}],
            "notes": ["rank 3 ended in step 80"],
        });
        TopUpdate {
            jobs: vec![
                job("finetune-12", JobState::Ended, None),
                job("evaluate\u{1b}[31m", JobState::Healthy, None),
                job("pretrain-7", JobState::Slow, Some(LATE)),
            ],
            verdict: Some(serde_json::from_value(verdict).unwrap()),
            error: None,
        }
    }

    fn drawn(screen: &Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(90, 16)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("http://127.0.0.1:8765", None);
        screen.show(seen());
        screen
    }

    #[test]
    fn jobs_that_need_somebody_come_first() {
        insta::assert_snapshot!(drawn(&screen()), @r#"
        "laggard http://127.0.0.1:8765  1 slow  1 healthy  1 ended                                 "
        "state    job                 ranks  hosts steps    exposed   first incident               "
        "slow     pretrain-7          4      2     640      54.80 s   rank 2 is late in data.next_w"
        "healthy  evaluate[31m        4      2     640      54.80 s                                "
        "ended    finetune-12         4      2     640      54.80 s                                "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "up, down  choose    Enter  open    q  quit                                                "
        "#);
    }

    #[test]
    fn an_open_job_shows_where_its_time_goes() {
        let mut screen = screen();
        screen.open();
        assert_eq!(screen.opened(), Some("pretrain-7"));
        screen.show(seen());
        insta::assert_snapshot!(drawn(&screen), @r#"
        "laggard http://127.0.0.1:8765  1 slow  1 healthy  1 ended                                 "
        "pretrain-7  slow  4 ranks, hosts: 2, 640 steps, 54.80 s exposed                           "
        "                                                                                          "
        "data.next_wait           ███████████████░░░░░░░░░  61 %   33.40 s  last: rank 2           "
        "model.backward_cpu_wall  █████████░░░░░░░░░░░░░░░  39 %   21.40 s                         "
        "                                                                                          "
        "CRITICAL  rank 2 is late in data.next_wait: 50.0 ms a step                                "
        "  why   own work exceeded the other ranks' by 50.0 ms                                     "
        "  next  look at rank 2's data loader                                                      "
        "                                                                                          "
        "note: rank 3 ended in step 80                                                             "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "                                                                                          "
        "up, down  scroll    Esc  all jobs    q  quit                                              "
        "#);
        let full = drawn(&screen);
        screen.down();
        assert_ne!(drawn(&screen), full, "it scrolls");
        screen.close();
        assert!(drawn(&screen).contains("finetune-12"));
    }

    #[test]
    fn what_was_chosen_stays_chosen_when_jobs_change_places() {
        let mut screen = screen();
        screen.down();
        let chosen = screen.jobs[screen.chosen()].id.clone();
        let mut jobs = seen().jobs;
        jobs[1].state = JobState::Hung;
        screen.show(TopUpdate {
            jobs,
            ..TopUpdate::default()
        });
        assert_eq!(screen.jobs[screen.chosen()].id, chosen);
        assert_eq!(screen.chosen(), 0);
        for _ in 0..9 {
            screen.down();
        }
        assert_eq!(screen.chosen(), 2);
    }

    #[test]
    fn a_collector_that_went_away_leaves_the_last_picture_and_says_so() {
        let mut screen = screen();
        screen.show(TopUpdate::failed(&anyhow::anyhow!(
            "the collector does not answer"
        )));
        let picture = drawn(&screen);
        assert!(picture.contains("pretrain-7"));
        assert!(picture.contains("the collector does not answer"));
    }
}
