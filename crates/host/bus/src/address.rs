use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};

/// How long one attempt to connect may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A bus, and what proves to it who we are. Shown without secrets.
#[derive(Clone)]
pub struct Address {
    servers: Vec<ServerAddr>,
    proof: Option<Proof>,
    authorities: Option<PathBuf>,
}

/// What proves to a bus who we are.
#[derive(Clone)]
pub enum Proof {
    /// A token.
    Token(String),
    /// A user and the password.
    Password(String, String),
    /// A file of credentials, as `nsc` writes it.
    Credentials(PathBuf),
}

/// An address that no bus can be found at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It is not written as addresses of buses are.
    #[error(
        "write nats://HOST:PORT or tls://HOST:PORT, several with commas between them"
    )]
    Malformed,
}

impl Address {
    /// Reads `nats://HOST:PORT`, or `tls://HOST:PORT`, or several of one cluster with commas
    /// between them. A user and password may stand before the host.
    ///
    /// # Errors
    /// [`AddressError::Malformed`].
    pub fn parse(typed: &str) -> Result<Self, AddressError> {
        let server = |part: &str| {
            let is_known = part.starts_with("nats://") || part.starts_with("tls://");
            let server: ServerAddr = is_known.then(|| part.parse().ok()).flatten()?;
            (!server.host().is_empty()).then_some(server)
        };
        let servers: Option<Vec<_>> = typed.split(',').map(server).collect();
        let servers = servers.ok_or(AddressError::Malformed)?;
        Ok(Self { servers, proof: None, authorities: None })
    }

    /// Proves who we are with this.
    #[must_use]
    pub fn with_proof(self, proof: Option<Proof>) -> Self {
        Self { proof, ..self }
    }

    /// Trusts the authorities in this file (PEM) beside those of the system.
    #[must_use]
    pub fn with_authorities(self, authorities: Option<PathBuf>) -> Self {
        Self { authorities, ..self }
    }

    pub(crate) fn servers(&self) -> Vec<ServerAddr> {
        self.servers.clone()
    }

    /// # Errors
    /// Credentials cannot be read.
    pub(crate) async fn options(&self) -> std::io::Result<ConnectOptions> {
        let mut options = ConnectOptions::new()
            .name(concat!("laggard/", env!("CARGO_PKG_VERSION")))
            .connection_timeout(CONNECT_WITHIN);
        if let Some(path) = &self.authorities {
            options = options.add_root_certificates(path.clone());
        }
        Ok(match &self.proof {
            Some(Proof::Token(token)) => options.token(token.clone()),
            Some(Proof::Password(user, password)) => {
                options.user_and_password(user.clone(), password.clone())
            }
            Some(Proof::Credentials(path)) => options.credentials_file(path).await?,
            None => options,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, server) in self.servers.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (scheme, host) = (server.scheme(), server.host());
            write!(formatter, "{comma}{scheme}://{host}:{}", server.port())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Address({self})")
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Proof")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_their_secrets() {
        let typed = "nats://me:secret@bus:4222,tls://other";
        let address = Address::parse(typed).unwrap();
        let proof = Proof::Password("me".to_owned(), "secret".to_owned());
        let address = address.with_proof(Some(proof));
        assert_eq!(address.to_string(), "nats://bus:4222,tls://other:4222");
        assert!(!format!("{address:?}").contains("secret"));
    }

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        for wrong in ["", "bus", "bus:4222", "http://bus", "nats://", "nats://a,,"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
