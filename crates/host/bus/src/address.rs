use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};

/// How long one attempt to connect may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A bus, and what proves to it who we are. Shown without secrets.
#[derive(Clone)]
pub struct BusAddress {
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
    #[error("write nats://HOST:PORT or tls://HOST:PORT, several with commas between them")]
    Malformed,
}

impl BusAddress {
    /// Reads `nats://HOST:PORT`, or `tls://HOST:PORT`, or several of one cluster with commas
    /// between them. A user and a password, or a token, may stand before the first host, without
    /// letters that addresses write in another way.
    ///
    /// # Errors
    /// [`AddressError::Malformed`].
    pub fn parse(typed: &str) -> Result<Self, AddressError> {
        let servers = typed
            .split(',')
            .map(server)
            .collect::<Option<Vec<_>>>()
            .ok_or(AddressError::Malformed)?;
        // The client takes none from addresses.
        let proof = servers.first().and_then(|server| {
            let url = server.clone().into_inner();
            let user = Some(url.username().to_owned()).filter(|user| !user.is_empty())?;
            Some(match url.password() {
                Some(password) => Proof::Password(user, password.to_owned()),
                None => Proof::Token(user),
            })
        });
        Ok(Self {
            servers,
            proof,
            authorities: None,
        })
    }

    /// Proves who we are with this, if it is anything, and not with what the address says.
    #[must_use]
    pub fn with_proof(self, proof: Option<Proof>) -> Self {
        Self {
            proof: proof.or(self.proof),
            ..self
        }
    }

    /// Trusts the authorities in this file (PEM) beside those of the system.
    #[must_use]
    pub fn with_authorities(self, authorities: Option<PathBuf>) -> Self {
        Self {
            authorities,
            ..self
        }
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

/// One server; the client would take one without a scheme too.
fn server(typed: &str) -> Option<ServerAddr> {
    if !typed.starts_with("nats://") && !typed.starts_with("tls://") {
        return None;
    }
    let server: ServerAddr = typed.parse().ok()?;
    (!server.host().is_empty()).then_some(server)
}

impl fmt::Display for BusAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, server) in self.servers.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (scheme, host) = (server.scheme(), server.host());
            write!(formatter, "{comma}{scheme}://{host}:{}", server.port())?;
        }
        Ok(())
    }
}

// Both by hand: derived, they would print secrets into logs.
impl fmt::Debug for BusAddress {
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
        let address = BusAddress::parse(typed).unwrap();
        let Some(Proof::Password(user, password)) = &address.proof else {
            panic!("no password")
        };
        assert_eq!((user.as_str(), password.as_str()), ("me", "secret"));
        assert_eq!(address.to_string(), "nats://bus:4222,tls://other:4222");
        assert!(!format!("{address:?}").contains("secret"));
    }

    #[test]
    fn what_stands_in_an_address_yields_to_what_is_named_beside_it() {
        let address = BusAddress::parse("nats://token@bus").unwrap();
        assert!(matches!(&address.proof, Some(Proof::Token(token)) if token == "token"));
        let kept = address.clone().with_proof(None);
        assert!(matches!(kept.proof, Some(Proof::Token(_))));
        let other = address.with_proof(Some(Proof::Credentials("file".into())));
        assert!(matches!(other.proof, Some(Proof::Credentials(_))));
    }

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        for wrong in ["", "bus", "bus:4222", "http://bus", "nats://", "nats://a,,"] {
            assert!(BusAddress::parse(wrong).is_err(), "{wrong}");
        }
    }
}
