//! The tables of the history; docs/formats.md lists their columns.

use model::{Evidence, Incident};
use parquet::errors::ParquetError;
use verdict::{LateRank, StageRecord, WindowRecord};

use super::columns::{TableColumn, write};
use super::timeline::Dated;

/// The tables, in the order they are written in.
pub(crate) const WINDOWS: &str = "windows";
pub(crate) const LAGS: &str = "lags";
pub(crate) const INCIDENTS: &str = "incidents";
pub(crate) const EVIDENCE: &str = "evidence";
pub(crate) const TABLES: [&str; 4] = [WINDOWS, LAGS, INCIDENTS, EVIDENCE];

/// A row for each stage of each window.
pub(super) fn windows(windows: &[Dated<WindowRecord>]) -> Result<Vec<u8>, ParquetError> {
    let (windows, stages): (Vec<&Dated<WindowRecord>>, Vec<&StageRecord>) = windows
        .iter()
        .flat_map(|window| window.what.stages.iter().map(move |stage| (window, stage)))
        .unzip();
    let (windows, stages) = (windows.iter(), stages.iter());
    write(&[
        TableColumn::whole("first_step", windows.clone().map(|row| row.what.first_step)),
        TableColumn::whole("steps", windows.clone().map(|row| row.what.steps)),
        TableColumn::times("begun_at", windows.clone().map(|row| Some(row.begun_s))),
        TableColumn::times("ended_at", windows.clone().map(|row| row.ended_s)),
        TableColumn::whole("ranks", windows.clone().map(|row| row.what.ranks as u64)),
        TableColumn::texts("stage", stages.clone().map(|row| Some(row.stage.as_str()))),
        TableColumn::numbers("advance_s", stages.clone().map(|row| row.advance_s)),
        TableColumn::numbers("share", stages.clone().map(|row| row.share)),
        TableColumn::numbers("gain", stages.clone().map(|row| row.gain)),
        TableColumn::rank_lists("lead_ranks", stages.map(|row| row.lead_ranks.as_slice())),
        TableColumn::text_lists(
            "labels",
            windows
                .clone()
                .map(|row| row.what.labels.iter().map(|label| label.name())),
        ),
        TableColumn::rank_lists(
            "missing_ranks",
            windows.map(|row| row.what.missing_ranks.as_slice()),
        ),
    ])
}

/// A row for each rank that was late in a stage of a window.
pub(super) fn lags(windows: &[Dated<WindowRecord>]) -> Result<Vec<u8>, ParquetError> {
    let rows: Vec<(&Dated<WindowRecord>, &str, &LateRank)> = windows
        .iter()
        .flat_map(|window| window.what.stages.iter().map(move |stage| (window, stage)))
        .flat_map(|(window, stage)| {
            stage
                .late
                .iter()
                .map(move |late| (window, stage.stage.as_str(), late))
        })
        .collect();
    let rows = rows.iter();
    write(&[
        TableColumn::whole(
            "first_step",
            rows.clone().map(|(row, ..)| row.what.first_step),
        ),
        TableColumn::whole("steps", rows.clone().map(|(row, ..)| row.what.steps)),
        TableColumn::times("begun_at", rows.clone().map(|(row, ..)| Some(row.begun_s))),
        TableColumn::texts("stage", rows.clone().map(|(_, stage, _)| Some(*stage))),
        TableColumn::ranks("rank", rows.clone().map(|(.., late)| late.rank)),
        TableColumn::texts("host", rows.clone().map(|(.., late)| late.host.as_deref())),
        TableColumn::numbers("lag_s", rows.map(|(.., late)| late.lag_s)),
    ])
}

/// A row for each incident.
pub(super) fn incidents(found: &[Dated<&Incident>]) -> Result<Vec<u8>, ParquetError> {
    let all = found.iter().map(|dated| dated.what);
    let subjects = all.clone().map(|incident| &incident.subject);
    write(&[
        TableColumn::texts("incident", all.clone().map(|it| Some(it.id.as_str()))),
        TableColumn::texts("kind", all.clone().map(|it| Some(it.kind.name()))),
        TableColumn::texts("severity", all.clone().map(|it| Some(it.severity.name()))),
        TableColumn::flags("open", all.clone().map(|it| it.open)),
        TableColumn::times("begun_at", found.iter().map(|dated| Some(dated.begun_s))),
        TableColumn::times("ended_at", found.iter().map(|dated| dated.ended_s)),
        TableColumn::whole("first_step", all.clone().map(|it| it.first_step)),
        TableColumn::whole("last_step", all.clone().map(|it| it.last_step)),
        TableColumn::rank_lists("ranks", subjects.clone().map(|it| it.ranks.as_slice())),
        TableColumn::text_lists(
            "hosts",
            subjects
                .clone()
                .map(|it| it.hosts.iter().map(String::as_str)),
        ),
        TableColumn::texts("stage", subjects.clone().map(|it| it.stage.as_deref())),
        TableColumn::texts(
            "collective",
            subjects.clone().map(|it| it.collective.as_deref()),
        ),
        TableColumn::texts("flow", subjects.clone().map(|it| it.flow.as_deref())),
        TableColumn::texts("block", subjects.clone().map(|it| it.block.as_deref())),
        TableColumn::texts("function", subjects.map(|it| it.function.as_deref())),
        TableColumn::numbers("cost_s", all.clone().map(|it| it.cost_s)),
        TableColumn::numbers("cost_gpu_s", all.clone().map(|it| it.cost_gpu_s)),
        TableColumn::numbers("cost_share", all.clone().map(|it| it.cost_share)),
        TableColumn::numbers("gain_alone_s", all.clone().map(|it| it.gain_alone_s)),
        TableColumn::texts("text", all.clone().map(|it| Some(it.text.as_str()))),
        TableColumn::texts("advice", all.map(|it| Some(it.advice.as_str()))),
    ])
}

/// A row for each piece of evidence of each incident.
pub(super) fn evidence(found: &[Dated<&Incident>]) -> Result<Vec<u8>, ParquetError> {
    let rows: Vec<(&Dated<&Incident>, &Evidence)> = found
        .iter()
        .flat_map(|dated| dated.what.evidence.iter().map(move |piece| (dated, piece)))
        .collect();
    // Their names differ from method to method, so they are one column of JSON.
    let values: Vec<String> = rows
        .iter()
        .map(|(_, piece)| serde_json::to_string(&piece.values).unwrap_or_default())
        .collect();
    let rows = rows.iter();
    write(&[
        TableColumn::texts(
            "incident",
            rows.clone().map(|(of, _)| Some(of.what.id.as_str())),
        ),
        TableColumn::times("begun_at", rows.clone().map(|(of, _)| Some(of.begun_s))),
        TableColumn::texts("method", rows.clone().map(|(_, it)| Some(it.method.name()))),
        TableColumn::texts("label", rows.clone().map(|(_, it)| Some(it.label.as_str()))),
        TableColumn::texts("text", rows.map(|(_, it)| Some(it.text.as_str()))),
        TableColumn::texts("values_json", values.iter().map(|json| Some(json.as_str()))),
    ])
}
