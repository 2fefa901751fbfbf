//! How ranks and times are written, for sentences that still stand here.

pub(crate) use narrate::words::{are, duration, percent, who};
