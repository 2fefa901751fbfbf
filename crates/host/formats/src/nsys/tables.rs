//! The tables of an SQLite file. SQLite reads them; what it may spend on a file is bounded by the
//! file's size, because a hostile one can make rows share their pages.
//!
//! # Source
//! "Defense Against The Dark Arts", sqlite.org/security.html.

use std::array;
use std::cell::{Ref, RefCell};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, ErrorCode, MAIN_DB, OpenFlags, ffi};

use crate::FormatError;

/// What every SQLite file begins with.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";
/// Bytes of a file that SQLite reads from memory: what it allocates at once.
pub(super) const MAX_PACKED_BYTES: u64 = (2 << 30) - 257;
/// Bytes one row may have; chosen.
const MAX_ROW_BYTES: i32 = 16 << 20;
/// Bytes of the statement that makes a table; chosen.
const MAX_SQL_BYTES: i32 = 1 << 20;
/// Operations of SQLite's virtual machine between two looks at what is left.
const OPERATIONS: u32 = 1000;
/// Operations a file is worth whatever its size: reading its schema.
const LEAST_OPERATIONS: u64 = 1_000_000;
/// Operations for each byte. A row has six bytes at least and takes ten operations with the
/// columns that are read; twice that.
const OPERATIONS_PER_BYTE: u64 = 4;

/// An SQLite file.
pub(super) struct Tables {
    path: PathBuf,
    connection: Connection,
    file_bytes: u64,
    losses: RefCell<Vec<Loss>>,
}

/// What could not be read of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// The table, and how far it was read.
    pub(super) place: String,
    /// What is wrong there.
    pub(super) reason: String,
}

impl Tables {
    /// Opens a file that lies on the disk as it is. It is not locked, and nothing is written
    /// beside it.
    pub(super) fn of_file(path: &Path) -> Result<Self, FormatError> {
        let file_bytes = std::fs::metadata(path)
            .map_err(|source| FormatError::Io {
                path: path.to_owned(),
                source,
            })?
            .len();
        // Any path is a URI once all its bytes are escaped.
        let escaped = path
            .as_os_str()
            .as_bytes()
            .iter()
            .map(|b| format!("%{b:02x}"));
        let uri = format!("file:{}?immutable=1", escaped.collect::<String>());
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Self::bounded(path, file_bytes, Connection::open_with_flags(uri, flags))
    }

    /// Opens a file that is in memory.
    pub(super) fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FormatError> {
        let connection = Connection::open_in_memory().and_then(|mut connection| {
            connection.deserialize_read_exact(MAIN_DB, bytes, bytes.len(), true)?;
            Ok(connection)
        });
        Self::bounded(path, bytes.len() as u64, connection)
    }

    fn bounded(
        path: &Path,
        file_bytes: u64,
        connection: rusqlite::Result<Connection>,
    ) -> Result<Self, FormatError> {
        let operations = OPERATIONS_PER_BYTE
            .saturating_mul(file_bytes)
            .saturating_add(LEAST_OPERATIONS);
        let mut looks = operations / u64::from(OPERATIONS);
        let connection = connection.and_then(|mut connection| {
            connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)?;
            connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_BYTES)?;
            connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
            // Otherwise views and generated columns of a hostile file may call functions.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
            connection.progress_handler(
                OPERATIONS.cast_signed(),
                // Once all is spent SQLite interrupts the statement, whichever table it reads.
                Some(move || {
                    looks = looks.saturating_sub(1);
                    looks == 0
                }),
            )?;
            Ok(connection)
        });
        match connection {
            Ok(connection) => {
                let (path, losses) = (path.to_owned(), RefCell::default());
                Ok(Self {
                    path,
                    connection,
                    file_bytes,
                    losses,
                })
            }
            Err(error) => Err(damaged(path, "the header", &error)),
        }
    }

    /// Whether there is such a table: no view or virtual table, which could be anything.
    ///
    /// # Errors
    /// What SQLite says of the schema.
    pub(super) fn has(&self, table: &str) -> Result<bool, FormatError> {
        self.exists(table)
            .map_err(|error| damaged(&self.path, "sqlite_schema", &error))
    }

    fn exists(&self, table: &str) -> rusqlite::Result<bool> {
        let query =
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 AND name = ?1";
        self.connection.prepare(query)?.exists([table])
    }

    /// What tables that were read have lost.
    pub(super) fn losses(&self) -> Ref<'_, Vec<Loss>> {
        self.losses.borrow()
    }

    /// Hands out these columns of every row of a table; nothing where there is no such table,
    /// [`ValueRef::Null`] where there is no such column. What cannot be read of it is a loss:
    /// what came before is as good as ever, and so are other tables.
    pub(super) fn rows<const COLUMNS: usize>(
        &self,
        table: &str,
        columns: [&str; COLUMNS],
        each: impl FnMut(&[ValueRef<'_>; COLUMNS]),
    ) {
        let mut number = 0_u64;
        if let Err(error) = self.try_rows(table, columns, &mut number, each) {
            let place = format!("{table}, after row {number}");
            let reason = reason(&error);
            self.losses.borrow_mut().push(Loss { place, reason });
        }
    }

    /// As [`Self::rows`]; counts in `number` the rows it has come to.
    fn try_rows<const COLUMNS: usize>(
        &self,
        table: &str,
        columns: [&str; COLUMNS],
        number: &mut u64,
        mut each: impl FnMut(&[ValueRef<'_>; COLUMNS]),
    ) -> rusqlite::Result<()> {
        if !self.exists(table)? {
            return Ok(());
        }
        // In the order of the table, not of an index.
        let from = format!("FROM \"{table}\" NOT INDEXED");
        // Qualified, or SQLite takes what is no column for a text.
        // Each column is tried alone: columns come and go with the versions of the exporter.
        let columns = columns.map(|column| {
            let column = format!("\"{table}\".\"{column}\"");
            let there = self.connection.prepare(&format!("SELECT {column} {from}"));
            if there.is_ok() {
                column
            } else {
                "NULL".to_owned()
            }
        });
        let query = format!("SELECT {} {from}", columns.join(", "));
        let mut statement = self.connection.prepare(&query)?;
        let mut rows = statement.query([])?;
        let mut text_bytes = 0;
        while let Some(row) = rows.next()? {
            *number += 1;
            let values = array::from_fn(|at| row.get_ref_unwrap(at));
            text_bytes += values.iter().map(text_length).sum::<u64>();
            // UTF-16 grows by half at most when it becomes UTF-8.
            if text_bytes > self.file_bytes.saturating_mul(2) {
                let corrupt = ffi::Error::new(ffi::SQLITE_CORRUPT);
                let reason = "its rows have more text than the file has bytes";
                return Err(Error::SqliteFailure(corrupt, Some(reason.to_owned())));
            }
            each(&values);
        }
        Ok(())
    }
}

fn text_length(value: &ValueRef<'_>) -> u64 {
    value
        .as_bytes_or_null()
        .ok()
        .flatten()
        .map_or(0, |bytes| bytes.len() as u64)
}

fn damaged(path: &Path, place: &str, error: &Error) -> FormatError {
    let (path, place) = (path.to_owned(), place.to_owned());
    FormatError::Damaged {
        path,
        place,
        reason: reason(error),
    }
}

fn reason(error: &Error) -> String {
    match error.sqlite_error_code() {
        // Only the handler that counts operations interrupts.
        Some(ErrorCode::OperationInterrupted) => {
            "it takes more work than a table of its size allows".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(sql: &str) -> Vec<u8> {
        let mut made = Connection::open_in_memory().unwrap();
        made.execute_batch(sql).unwrap();
        made.serialize(MAIN_DB).unwrap().to_vec()
    }

    fn texts(tables: &Tables) -> Vec<String> {
        let mut texts = Vec::new();
        tables.rows("t", ["no", "a"], |row| texts.push(format!("{row:?}")));
        texts
    }

    /// What was lost, and how many rows were read.
    fn losses(tables: &Tables) -> (Vec<String>, usize) {
        let rows = texts(tables).len();
        let losses = tables.losses();
        let reported = losses
            .iter()
            .map(|loss| format!("{}: {}", loss.place, loss.reason));
        (reported.collect(), rows)
    }

    #[test]
    fn a_file_is_read_where_it_lies_whatever_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a?b#c%20.sqlite");
        std::fs::write(&path, file("CREATE TABLE t (A); INSERT INTO t VALUES (7)")).unwrap();
        let tables = Tables::of_file(&path).unwrap();
        assert_eq!(texts(&tables), ["[Null, Integer(7)]"]);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_cut_off_has_lost_its_tables() {
        let whole = file("CREATE TABLE t (a); INSERT INTO t VALUES (hex(zeroblob(9000)))");
        let tables = Tables::of_bytes(Path::new("f"), &whole[..whole.len() - 4096]);
        let lost = "t, after row 0: database disk image is malformed".to_owned();
        assert_eq!(losses(&tables.unwrap()), (vec![lost], 0));
    }

    #[test]
    fn names_that_are_no_text_are_passed_over() {
        let mut bytes = file("CREATE TABLE t (Xab, a); INSERT INTO t VALUES (1, 2)");
        let at = bytes.windows(3).position(|name| name == b"Xab").unwrap();
        bytes[at] = 0x80;
        let tables = Tables::of_bytes(Path::new("f"), &bytes).unwrap();
        assert_eq!(texts(&tables), ["[Null, Integer(2)]"]);
    }

    #[test]
    fn a_view_that_never_ends_is_no_table() {
        let endless = "WITH RECURSIVE r(a) AS (SELECT 1 UNION ALL SELECT a FROM r) SELECT a FROM r";
        let bytes = file(&format!("CREATE VIEW t AS {endless}"));
        let tables = Tables::of_bytes(Path::new("f"), &bytes).unwrap();
        assert_eq!(texts(&tables), Vec::<String>::new());
    }

    #[test]
    fn more_text_than_the_file_has_bytes_is_not_read() {
        let bytes = file(
            "CREATE TABLE t (i, a AS (hex(zeroblob(7000)))); INSERT INTO t VALUES (1), (2), (3)",
        );
        let tables = Tables::of_bytes(Path::new("f"), &bytes).unwrap();
        let reason = "its rows have more text than the file has bytes";
        let lost = format!("t, after row 2: {reason}");
        assert_eq!(losses(&tables), (vec![lost], 1));
    }

    #[test]
    fn more_work_than_the_file_is_worth_is_refused() {
        let tables = Tables::of_bytes(Path::new("f"), &file("CREATE TABLE t (a)")).unwrap();
        let endless = "WITH RECURSIVE r(a) AS (SELECT 1 UNION ALL SELECT a FROM r) \
                       SELECT count(*) FROM r";
        let error = tables
            .connection
            .query_one(endless, [], |_| Ok(()))
            .unwrap_err();
        let refused = damaged(Path::new("f"), "t", &error).to_string();
        assert_eq!(
            refused,
            "f, at t: it takes more work than a table of its size allows"
        );
    }
}
