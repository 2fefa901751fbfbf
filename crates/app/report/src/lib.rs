//! A verdict as one self-contained HTML page: no server, no network, works from `file://`.
//!
//! [`html`] is all there is for a file; [`live_html`], [`incident_html`] and [`overview`] are for a server. Everything a reader must not miss (incidents, tables, labels,
//! notes) is plain HTML; the script only draws the pictures. The page carries the whole
//! verdict document and the series behind the pictures as JSON, so a program can read it
//! too. What belongs on the page is decided here, where time went is decided elsewhere.
//!
//! # Example
//! ```
//! use formats::{Limits, load_bytes};
//! use verdict::Settings;
//!
//! let matrix = br#"{"schema": "stage-matrix/1", "unit": "s", "stages": ["<b>"],
//!     "matrix": [[[1]], [[1]], [[1]], [[1]], [[1]]]}"#;
//! let recording = load_bytes("matrix.json", matrix, Limits::default())?;
//! let job = recording.replay("matrix", Settings::default());
//! let page = laggard_report::html(&job.verdict(), job.series(), job.names());
//! assert!(page.contains("&lt;b&gt;"));
//! # Ok::<(), formats::FormatError>(())
//! ```
//!
//! # Safety of the page
//! Stage names and job ids come from user code. `maud` escapes all that it is handed, names
//! are made inert besides (`escape::Text`), the script treats them as text, and the page's content security
//! policy admits nothing but this crate's own script and style, by their hashes.

mod digest;
mod escape;
mod incident;
mod labels;
mod overview;
mod page;
mod palette;
mod picture;
mod standstill;
mod svg;
mod tables;
mod what_if;
mod words;

pub use overview::overview;
pub use page::{html, incident_html, live_html};

#[cfg(test)]
mod sample;
