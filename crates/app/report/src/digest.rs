//! The hashes by which the page admits its own script and style, and no others.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// A content security policy source that admits exactly this inline script or style.
pub(crate) fn csp_source(content: &str) -> String {
    format!(
        "'sha256-{}'",
        STANDARD.encode(Sha256::digest(content.as_bytes()))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the CSP specification.
    #[test]
    fn a_source_is_the_hash_browsers_compute() {
        let source = csp_source("alert('Hello, world.');");
        assert_eq!(
            source,
            "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='"
        );
    }
}
