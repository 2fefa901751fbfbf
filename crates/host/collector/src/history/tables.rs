//! The tables of the history; docs/formats.md lists their columns.

use model::{Evidence, Incident, Subject};
use parquet::errors::ParquetError;
use verdict::{LateRank, StageRecord, WindowRecord};

use super::columns::{Column, write};
use super::timeline::Dated;

/// The tables, in the order they are written in.
pub(crate) const WINDOWS: &str = "windows";
pub(crate) const LAGS: &str = "lags";
pub(crate) const INCIDENTS: &str = "incidents";
pub(crate) const EVIDENCE: &str = "evidence";
pub(crate) const TABLES: [&str; 4] = [WINDOWS, LAGS, INCIDENTS, EVIDENCE];

/// A row for each stage of each window.
pub(super) fn windows(windows: &[Dated<WindowRecord>]) -> Result<Vec<u8>, ParquetError> {
    let rows: Vec<(&Dated<WindowRecord>, &StageRecord)> = windows
        .iter()
        .flat_map(|window| window.what.stages.iter().map(move |stage| (window, stage)))
        .collect();
    let windows = || rows.iter().map(|(window, _)| *window);
    let stages = || rows.iter().map(|(_, stage)| *stage);
    write(&[
        Column::whole("first_step", windows().map(|window| window.what.first_step)),
        Column::whole("steps", windows().map(|window| window.what.steps)),
        Column::times("begun_at", windows().map(|window| Some(window.begun_s))),
        Column::times("ended_at", windows().map(|window| window.ended_s)),
        Column::whole("ranks", windows().map(|window| window.what.ranks as u64)),
        Column::texts("stage", stages().map(|stage| Some(stage.stage.as_str()))),
        Column::numbers("advance_s", stages().map(|stage| stage.advance_s)),
        Column::numbers("share", stages().map(|stage| stage.share)),
        Column::numbers("gain", stages().map(|stage| stage.gain)),
        Column::rank_lists("lead_ranks", stages().map(|s| s.lead_ranks.as_slice())),
        Column::text_lists(
            "labels",
            windows().map(|w| w.what.labels.iter().map(|l| l.name())),
        ),
        Column::rank_lists(
            "missing_ranks",
            windows().map(|window| window.what.missing_ranks.as_slice()),
        ),
    ])
}

/// A row for each rank that was late in a stage of a window.
pub(super) fn lags(windows: &[Dated<WindowRecord>]) -> Result<Vec<u8>, ParquetError> {
    let rows: Vec<(&Dated<WindowRecord>, &str, &LateRank)> = windows
        .iter()
        .flat_map(|window| window.what.stages.iter().map(move |stage| (window, stage)))
        .flat_map(|(window, stage)| {
            stage.late.iter().map(move |late| (window, stage.stage.as_str(), late))
        })
        .collect();
    let windows = || rows.iter().map(|(window, ..)| *window);
    let late = || rows.iter().map(|(.., late)| *late);
    write(&[
        Column::whole("first_step", windows().map(|window| window.what.first_step)),
        Column::whole("steps", windows().map(|window| window.what.steps)),
        Column::times("begun_at", windows().map(|window| Some(window.begun_s))),
        Column::texts("stage", rows.iter().map(|(_, stage, _)| Some(*stage))),
        Column::ranks("rank", late().map(|late| late.rank)),
        Column::texts("host", late().map(|late| late.host.as_deref())),
        Column::numbers("lag_s", late().map(|late| late.lag_s)),
    ])
}

/// A row for each incident.
pub(super) fn incidents(found: &[Dated<&Incident>]) -> Result<Vec<u8>, ParquetError> {
    let all = || found.iter().map(|dated| dated.what);
    let subjects = || all().map(|incident| &incident.subject);
    let kinds = found.iter().map(|dated| dated.what.kind.name());
    let severities = all().map(|incident| incident.severity.name());
    let part = |name, of: fn(&Subject) -> &Option<String>| {
        Column::texts(name, subjects().map(move |subject| of(subject).as_deref()))
    };
    let number = |name, of: fn(&Incident) -> f64| Column::numbers(name, all().map(of));
    write(&[
        Column::texts("incident", all().map(|incident| Some(incident.id.as_str()))),
        Column::texts("kind", kinds.map(Some)),
        Column::texts("severity", severities.map(Some)),
        Column::flags("open", all().map(|incident| incident.open)),
        Column::times("begun_at", found.iter().map(|dated| Some(dated.begun_s))),
        Column::times("ended_at", found.iter().map(|dated| dated.ended_s)),
        Column::whole("first_step", all().map(|incident| incident.first_step)),
        Column::whole("last_step", all().map(|incident| incident.last_step)),
        Column::rank_lists("ranks", subjects().map(|subject| subject.ranks.as_slice())),
        Column::text_lists(
            "hosts",
            subjects().map(|subject| subject.hosts.iter().map(String::as_str)),
        ),
        part("stage", |subject| &subject.stage),
        part("collective", |subject| &subject.collective),
        part("flow", |subject| &subject.flow),
        part("block", |subject| &subject.block),
        part("function", |subject| &subject.function),
        number("cost_s", |incident| incident.cost_s),
        number("cost_gpu_s", |incident| incident.cost_gpu_s),
        number("cost_share", |incident| incident.cost_share),
        number("gain_alone_s", |incident| incident.gain_alone_s),
        Column::texts("text", all().map(|incident| Some(incident.text.as_str()))),
        Column::texts("advice", all().map(|incident| Some(incident.advice.as_str()))),
    ])
}

/// A row for each piece of evidence of each incident.
pub(super) fn evidence(found: &[Dated<&Incident>]) -> Result<Vec<u8>, ParquetError> {
    let rows: Vec<(&Dated<&Incident>, &Evidence)> = found
        .iter()
        .flat_map(|dated| dated.what.evidence.iter().map(move |piece| (dated, piece)))
        .collect();
    let pieces = || rows.iter().map(|(_, piece)| *piece);
    let values: Vec<String> = pieces()
        .map(|piece| serde_json::to_string(&piece.values).unwrap_or_default())
        .collect();
    write(&[
        Column::texts(
            "incident",
            rows.iter().map(|(dated, _)| Some(dated.what.id.as_str())),
        ),
        Column::times("begun_at", rows.iter().map(|(dated, _)| Some(dated.begun_s))),
        Column::texts("method", pieces().map(|piece| Some(piece.method.name()))),
        Column::texts("label", pieces().map(|piece| Some(piece.label.as_str()))),
        Column::texts("text", pieces().map(|piece| Some(piece.text.as_str()))),
        Column::texts("values_json", values.iter().map(|json| Some(json.as_str()))),
    ])
}
