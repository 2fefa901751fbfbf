//! Jobs and their incidents, to be looked through without reading every job.
//!
//! A cache in SQLite of what stands in the folders of jobs: one that is missing or damaged is
//! made anew from them, so no damage to it loses anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use model::Incident;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ListedJob;
use crate::history::Dated;

const FILE: &str = "catalogue.sqlite";
/// What the tables are like; others are made anew.
const LAYOUT: i64 = 1;
// Ranks and hosts have tables of their own: incidents are asked for by one of them, and their
// documents hold lists of them.
const TABLES: &str = "
    CREATE TABLE jobs(
        job TEXT PRIMARY KEY, batches_bytes INTEGER, last_seen_s INTEGER NOT NULL,
        summary TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE incidents(
        job TEXT, incident TEXT, begun_s REAL NOT NULL, ended_s REAL, document TEXT NOT NULL,
        PRIMARY KEY (job, incident)) WITHOUT ROWID;
    CREATE TABLE ranks(
        rank INTEGER, job TEXT, incident TEXT, PRIMARY KEY (rank, job, incident)) WITHOUT ROWID;
    CREATE INDEX ranks_of_jobs ON ranks(job);
    CREATE TABLE hosts(
        host TEXT, job TEXT, incident TEXT, PRIMARY KEY (host, job, incident)) WITHOUT ROWID;
    CREATE INDEX hosts_of_jobs ON hosts(job);";
/// Incidents that are listed at once.
const AT_ONCE: u32 = 1000;

/// Which incidents are asked for; all that is said must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IncidentQuery {
    /// Those that had not ended before, in seconds since 1970.
    since: Option<f64>,
    /// Those that began before.
    before: Option<f64>,
    job: Option<String>,
    /// Those that name this rank.
    rank: Option<u32>,
    host: Option<String>,
}

/// An incident and when it was.
#[derive(Debug, Serialize)]
pub(crate) struct Listed {
    job: String,
    begun_s: f64,
    /// `None` while it goes on, and where it went on to the end of the job.
    ended_s: Option<f64>,
    /// As in the verdict.
    incident: Box<RawValue>,
}

/// The newest incidents that were asked for.
#[derive(Debug, Serialize)]
pub(crate) struct IncidentPage {
    schema: &'static str,
    incidents: Vec<Listed>,
    /// Whether there are older ones.
    more: bool,
}

/// The catalogue of all jobs.
#[derive(Debug)]
pub(crate) struct Catalogue(Mutex<Connection>);

impl Catalogue {
    /// Opens the catalogue in a folder, an empty one if there is none that is whole.
    pub(crate) fn open(data: &Path) -> rusqlite::Result<Self> {
        let path = data.join(FILE);
        let connection = whole(&path).or_else(|_| {
            remove(&path)
                .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
            whole(&path)
        })?;
        Ok(Self(Mutex::new(connection)))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // What a panic left undone is rolled back with its transaction.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All jobs, and the bytes of the batches of those that have ended.
    pub(crate) fn jobs(&self) -> rusqlite::Result<BTreeMap<String, (ListedJob, Option<u64>)>> {
        let connection = self.connection();
        let mut query = connection.prepare("SELECT summary, batches_bytes FROM jobs")?;
        let rows = query.query_map((), |row| {
            // A summary of another version is none: the job is read from its folder.
            let summary: Option<ListedJob> = serde_json::from_str(&row.get::<_, String>(0)?).ok();
            Ok(summary.zip(Some(row.get::<_, Option<i64>>(1)?)))
        })?;
        let mut jobs = BTreeMap::new();
        for row in rows {
            if let Some((summary, bytes)) = row? {
                let bytes = bytes.map(i64::cast_unsigned);
                jobs.insert(summary.id.clone(), (summary, bytes));
            }
        }
        Ok(jobs)
    }

    /// Replaces what is said of a job; `batches_bytes` once it has ended.
    pub(crate) fn put(
        &self,
        job: &ListedJob,
        batches_bytes: Option<u64>,
        incidents: &[Dated<&Incident>],
    ) -> rusqlite::Result<()> {
        let mut connection = self.connection();
        let change = connection.transaction()?;
        // As a whole: incidents may be gone since, as parts of others.
        forget(&change, &job.id)?;
        let summary = to_json(job)?;
        // SQLite has no unsigned integers. What a disk holds stays far below 2^63 bytes.
        let bytes = batches_bytes.map(u64::cast_signed);
        let last_seen_s = job.last_seen_s.cast_signed();
        let row = params![job.id, bytes, last_seen_s, summary];
        change.execute("INSERT INTO jobs VALUES (?1, ?2, ?3, ?4)", row)?;
        {
            let mut row = change.prepare("INSERT INTO incidents VALUES (?1, ?2, ?3, ?4, ?5)")?;
            let mut rank = change.prepare("INSERT OR IGNORE INTO ranks VALUES (?1, ?2, ?3)")?;
            let mut host = change.prepare("INSERT OR IGNORE INTO hosts VALUES (?1, ?2, ?3)")?;
            for Dated {
                what: incident,
                begun_s,
                ended_s,
            } in incidents
            {
                let document = to_json(incident)?;
                row.execute(params![job.id, incident.id, begun_s, ended_s, document])?;
                for named in &incident.subject.ranks {
                    rank.execute(params![named, job.id, incident.id])?;
                }
                for named in &incident.subject.hosts {
                    host.execute(params![named, job.id, incident.id])?;
                }
            }
        }
        change.commit()
    }

    /// Forgets a job.
    pub(crate) fn forget(&self, job: &str) -> rusqlite::Result<()> {
        let mut connection = self.connection();
        let change = connection.transaction()?;
        forget(&change, job)?;
        change.commit()
    }

    /// When an incident began, in seconds since 1970, if it is known.
    pub(crate) fn begun_s(&self, job: &str, incident: &str) -> rusqlite::Result<Option<f64>> {
        let begun = "SELECT begun_s FROM incidents WHERE job = ?1 AND incident = ?2";
        self.connection()
            .query_row(begun, [job, incident], |row| row.get(0))
            .optional()
    }

    /// The newest incidents that are wanted.
    pub(crate) fn incidents(&self, wanted: &IncidentQuery) -> rusqlite::Result<IncidentPage> {
        let connection = self.connection();
        // One that never ended went on for as long as its job was heard of.
        let mut query = connection.prepare(
            "SELECT job, begun_s, ended_s, document
             FROM incidents AS found JOIN jobs USING (job)
             WHERE (?1 IS NULL OR coalesce(ended_s, last_seen_s) >= ?1)
               AND (?2 IS NULL OR job = ?2)
               AND (?3 IS NULL OR (?3, job, incident) IN (SELECT rank, job, incident FROM ranks))
               AND (?4 IS NULL OR (?4, job, incident) IN (SELECT host, job, incident FROM hosts))
               AND (?6 IS NULL OR begun_s < ?6)
             ORDER BY begun_s DESC, job, incident LIMIT ?5",
        )?;
        let IncidentQuery {
            since,
            before,
            job,
            rank,
            host,
        } = wanted;
        let rows = query.query_map(
            // One more than is shown says whether there are older ones.
            params![since, job, rank, host, AT_ONCE + 1, before],
            |row| {
                let document = RawValue::from_string(row.get(3)?);
                Ok(document
                    .ok()
                    .map(|incident| (row.get(0), row.get(1), row.get(2), incident)))
            },
        )?;
        let mut incidents: Vec<Listed> = Vec::new();
        for row in rows {
            if let Some((job, begun_s, ended_s, incident)) = row? {
                let (job, begun_s, ended_s) = (job?, begun_s?, ended_s?);
                incidents.push(Listed {
                    job,
                    begun_s,
                    ended_s,
                    incident,
                });
            }
        }
        let more = incidents.len() > AT_ONCE as usize;
        if more && let Some(next) = incidents.pop() {
            // Who asks for those before the last one misses none that began when that did.
            let older = incidents.iter().rposition(|one| one.begun_s > next.begun_s);
            incidents.truncate(older.map_or(incidents.len(), |last| last + 1));
        }
        Ok(IncidentPage {
            schema: "laggard.incidents/1",
            incidents,
            more,
        })
    }
}

fn to_json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn forget(change: &Transaction<'_>, job: &str) -> rusqlite::Result<()> {
    for table in ["jobs", "incidents", "ranks", "hosts"] {
        change.execute(&format!("DELETE FROM {table} WHERE job = ?1"), [job])?;
    }
    Ok(())
}

/// A catalogue that is whole and has our tables.
fn whole(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    // It may be lost: no disk is waited for.
    connection.pragma_update(None, "synchronous", "OFF")?;
    let layout: i64 = connection.query_row("PRAGMA user_version", (), |row| row.get(0))?;
    let has_tables = connection
        .query_row("SELECT 1 FROM sqlite_schema LIMIT 1", (), |_| Ok(()))
        .optional()?
        .is_some();
    if has_tables {
        // One fault is enough: the catalogue is then made from the folders of jobs.
        let said: String = connection.query_row("PRAGMA quick_check(1)", (), |row| row.get(0))?;
        if said != "ok" || layout != LAYOUT {
            return Err(rusqlite::Error::InvalidQuery);
        }
    } else {
        connection.execute_batch(&format!(
            "BEGIN; {TABLES} PRAGMA user_version = {LAYOUT}; COMMIT;"
        ))?;
    }
    Ok(connection)
}

/// Removes a catalogue, with what SQLite keeps beside it.
fn remove(path: &Path) -> io::Result<()> {
    // The journal of a catalogue that is gone would be rolled back into the new one.
    for end in ["", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        match fs::remove_file(PathBuf::from(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
