use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use collector::ListedJob;
use formats::{Limits, parse_verdict};
use model::Verdict;
use protocol::url_segment;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde::Deserialize;

use crate::server::{CollectorClient, ServerArgs};
use screen::{Screen, TopUpdate};

mod draw;
mod screen;

/// How often the collector is asked; it tells anew every half second at most.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a key is waited for before what came from the collector is looked at.
const TICK: Duration = Duration::from_millis(100);

/// Watch the jobs of a collector in the terminal
///
/// Shows all jobs, those that need attention first. Enter opens one: where the time of its steps
/// goes, and its incidents. The screen updates as the collector does.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys:
  up, down  choose or scroll    Enter  open a job    Esc  back    q  quit

Examples:
  laggard top
  laggard top pretrain-7 --collector http://10.0.0.1:8765")]
pub(crate) struct TopArgs {
    /// Job to open first
    job: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn top(args: &TopArgs) -> Result<ExitCode> {
    if !(stdin().is_terminal() && stdout().is_terminal()) {
        bail!("top needs a terminal; use `laggard report` or the API for files and programs");
    }
    let server = args.server.server()?;
    let mut screen = Screen::new(args.server.url(), args.job.clone());
    // A mistyped address is an error before the screen is taken.
    screen.show(ask(&server, screen.opened(), None)?);
    let (wanted, wishes) = channel();
    let (sender, seen) = channel();
    let begin = screen.opened().map(str::to_owned);
    thread::Builder::new()
        .name("laggard-top".to_owned())
        .spawn(move || follow(&server, begin, &wishes, &sender))
        .context("failed to start a thread")?;
    let result = watch(&mut ratatui::init(), &mut screen, &wanted, &seen);
    // Before an error is printed: on the screen of `top` nobody would see it.
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

/// Draws until somebody has seen enough.
fn watch(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    wanted: &Sender<Option<String>>,
    seen: &Receiver<TopUpdate>,
) -> Result<()> {
    loop {
        for seen in seen.try_iter() {
            screen.show(seen);
        }
        terminal
            .draw(|frame| draw::draw(frame, screen))
            .context("failed to draw")?;
        if !event::poll(TICK).context("failed to read a key")? {
            continue;
        }
        // A change of the terminal's size only needs drawing, which each round does.
        let Event::Key(key) = event::read().context("failed to read a key")? else {
            continue;
        };
        // Some terminals report releases too: one press would count twice.
        if key.kind != KeyEventKind::Press {
            continue;
        }
        let before = screen.opened().map(str::to_owned);
        match key {
            KeyEvent {
                code: KeyCode::Char('c'),
                modifiers: KeyModifiers::CONTROL,
                ..
            }
            | KeyEvent {
                code: KeyCode::Char('q'),
                ..
            } => return Ok(()),
            KeyEvent {
                code: KeyCode::Up | KeyCode::Char('k'),
                ..
            } => screen.up(),
            KeyEvent {
                code: KeyCode::Down | KeyCode::Char('j'),
                ..
            } => screen.down(),
            KeyEvent {
                code: KeyCode::Enter | KeyCode::Right,
                ..
            } => screen.open(),
            KeyEvent {
                code: KeyCode::Esc | KeyCode::Left,
                ..
            } => screen.close(),
            _ => {}
        }
        let now = screen.opened().map(str::to_owned);
        if now != before {
            // The thread lives as long as we do.
            drop(wanted.send(now));
        }
    }
}

/// Asks the collector again and again, at once if another job is wanted.
fn follow(
    server: &CollectorClient,
    mut job: Option<String>,
    wishes: &Receiver<Option<String>>,
    sender: &Sender<TopUpdate>,
) {
    let mut known = None;
    loop {
        match wishes.recv_timeout(ASK_EVERY) {
            // The screen has dropped the verdict, so even one of a known version is asked for.
            Ok(wish) => (job, known) = (wish, None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let seen =
            ask(server, job.as_deref(), known).unwrap_or_else(|error| TopUpdate::failed(&error));
        // A list without the job, or no answer, says nothing of its version.
        known = seen
            .jobs
            .iter()
            .find(|summary| Some(&summary.id) == job.as_ref())
            .map(|summary| summary.version)
            .or(known);
        if sender.send(seen).is_err() {
            return;
        }
    }
}

#[derive(Deserialize)]
struct JobList {
    jobs: Vec<ListedJob>,
}

/// How all jobs are, and the verdict of `job` unless it is still the `known` version.
fn ask(server: &CollectorClient, job: Option<&str>, known: Option<u64>) -> Result<TopUpdate> {
    // The list comes before the verdict. If the job changes between the two, the version of the
    // list is older, and the next look asks again.
    let text = server.get("jobs")?;
    let JobList { jobs } =
        serde_json::from_str(&text).context("the collector's answer is not a list of jobs")?;
    // A verdict may be large: it is asked for again only if it has changed.
    let opened = jobs.iter().find(|summary| Some(summary.id.as_str()) == job);
    let verdict = match opened {
        Some(opened) if known != Some(opened.version) => Some(verdict(server, &opened.id)?),
        _ => None,
    };
    Ok(TopUpdate {
        jobs,
        verdict,
        error: None,
    })
}

fn verdict(server: &CollectorClient, job: &str) -> Result<Verdict> {
    let text = server.get(&format!("jobs/{}/verdict", url_segment(job)))?;
    Ok(parse_verdict(job, text.as_bytes(), Limits::default())?)
}
