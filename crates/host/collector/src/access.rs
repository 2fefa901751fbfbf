//! Who may do what.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Shortest token that is taken: 16 random bytes in hexadecimal have 32 letters.
const SHORTEST_TOKEN: usize = 16;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Tell batches.
    Agent,
    /// Read everything.
    Viewer,
    /// Both, and delete jobs.
    Admin,
}

impl Role {
    /// Whether a caller with this role may do what asks for `asked`.
    fn covers(self, asked: Self) -> bool {
        self == asked || self == Self::Admin
    }
}

/// The tokens callers prove their roles with; none, and everybody may do everything.
#[derive(Clone, Default)]
pub struct Tokens {
    /// Roles and digests: lengths and first letters must not show in how long a comparison
    /// takes.
    known: Vec<(Role, [u8; 32])>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokens")
            .field("known", &self.known.len())
            .finish()
    }
}

/// A file of tokens that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokensError {
    /// The operating system refuses.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not the TOML it should be. The parser's own message would show tokens.
    #[error(
        "{}: write one line for each role (agent, viewer, admin), such as viewer = \"TOKEN\"",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// A token is easily guessed.
    #[error("{}: the token of {role} is shorter than {SHORTEST_TOKEN} characters", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Whose.
        role: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensFile {
    agent: Option<String>,
    viewer: Option<String>,
    admin: Option<String>,
}

impl Tokens {
    /// Reads a TOML file: `agent`, `viewer` and `admin`, each a token or left out.
    ///
    /// # Errors
    /// Every variant of [`TokensError`].
    pub fn read(path: &Path) -> Result<Self, TokensError> {
        let text = fs::read_to_string(path).map_err(|source| TokensError::Io {
            path: path.to_owned(),
            source,
        })?;
        let Ok(TokensFile {
            agent,
            viewer,
            admin,
        }) = toml::from_str(&text)
        else {
            return Err(TokensError::Content {
                path: path.to_owned(),
            });
        };
        let written = [
            (Role::Agent, "agent", agent),
            (Role::Viewer, "viewer", viewer),
            (Role::Admin, "admin", admin),
        ];
        let mut known = Vec::new();
        for (role, name, token) in written {
            let Some(token) = token else { continue };
            if token.len() < SHORTEST_TOKEN {
                return Err(TokensError::Short {
                    path: path.to_owned(),
                    role: name,
                });
            }
            known.push((role, digest(&token)));
        }
        // An empty list of tokens means that everybody may do everything: a file of them is
        // not written for that.
        if known.is_empty() {
            return Err(TokensError::Content {
                path: path.to_owned(),
            });
        }
        Ok(Self { known })
    }

    /// Whether everybody may do everything.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether who shows `token` may do what asks for `role`; `None` if the token is unknown.
    pub(crate) fn allow(&self, token: Option<&str>, role: Role) -> Option<bool> {
        if self.is_empty() {
            return Some(true);
        }
        // Without a token nothing is shown, which is as unknown as a wrong one.
        let shown = digest(token?);
        // One token may stand for several roles.
        let mut known = self
            .known
            .iter()
            .filter(|(_, known)| *known == shown)
            .peekable();
        known.peek()?;
        Some(known.any(|(known, _)| known.covers(role)))
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tokens, TokensError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        fs::write(&path, text).unwrap();
        Tokens::read(&path)
    }

    #[test]
    fn a_token_opens_what_its_role_may_do_and_nothing_else() {
        let tokens = read(
            "agent = \"aaaaaaaaaaaaaaaa\"\nviewer = \"vvvvvvvvvvvvvvvv\"\nadmin = \"mmmmmmmmmmmmmmmm\"",
        )
        .unwrap();
        let roles = [Role::Agent, Role::Viewer, Role::Admin];
        let may = |token: &str| roles.map(|role| tokens.allow(Some(token), role));
        assert_eq!(
            may("aaaaaaaaaaaaaaaa"),
            [Some(true), Some(false), Some(false)]
        );
        assert_eq!(
            may("vvvvvvvvvvvvvvvv"),
            [Some(false), Some(true), Some(false)]
        );
        assert_eq!(may("mmmmmmmmmmmmmmmm"), [Some(true); 3]);
        assert_eq!(may("aaaaaaaaaaaaaaab"), [None; 3]);
        assert_eq!(tokens.allow(None, Role::Viewer), None);
        assert_eq!(Tokens::default().allow(None, Role::Admin), Some(true));
    }

    #[test]
    fn a_file_of_tokens_is_right_or_refused_and_never_shown() {
        for text in [
            "",
            "agent = 1",
            "root = \"aaaaaaaaaaaaaaaa\"",
            "agent = \"secret-but-open",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.contains("viewer = \"TOKEN\"") && !error.contains("secret"),
                "{error}"
            );
        }
        assert!(
            read("agent = \"short\"")
                .unwrap_err()
                .to_string()
                .contains("token of agent")
        );
    }
}
