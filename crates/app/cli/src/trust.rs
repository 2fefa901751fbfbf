//! Addresses to tell and to ask, and whom to trust behind them.

// No address: a command without the service knows no bus.
#[cfg(not(feature = "service"))]
pub(crate) use std::convert::Infallible as BusAddress;
use std::fs;
use std::path::{Path, PathBuf};

use agent::Receiver;
use anyhow::{Context, Result, bail};
#[cfg(feature = "service")]
pub(crate) use bus::BusAddress;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::environment;

/// Authorities to trust behind an address with TLS.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TrustArgs {
    /// Certificate authorities (PEM) to trust for https:// and tls:// addresses [default: those of the
    /// system]
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

/// An address something can be sent to.
pub(crate) fn address(typed: &str) -> Result<String, String> {
    let host = typed
        .strip_prefix("https://")
        .or_else(|| typed.strip_prefix("http://"));
    match host {
        Some(host) if !host.is_empty() => Ok(typed.to_owned()),
        _ => Err("write https://HOST:PORT, or http://HOST:PORT".to_owned()),
    }
}

/// An address of a bus.
pub(crate) fn bus(typed: &str) -> Result<BusAddress, String> {
    #[cfg(feature = "service")]
    return BusAddress::parse(typed).map_err(|error| error.to_string());
    #[cfg(not(feature = "service"))]
    Err(format!(
        "this laggard is built without the service and cannot use {typed}"
    ))
}

impl TrustArgs {
    #[cfg(feature = "service")]
    /// The bus at an address, with what proves to it who we are, and whom to trust there.
    pub(crate) fn to_bus(&self, address: &BusAddress) -> BusAddress {
        let address = address.clone().with_proof(environment::bus_proof());
        address.with_authorities(self.tls_ca.clone())
    }

    /// Whom to tell, where a collector or a bus is named.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub(crate) fn receiver(
        &self,
        collector: Option<&String>,
        bus: Option<&BusAddress>,
    ) -> Result<Option<Receiver>> {
        if let Some(address) = bus {
            #[cfg(feature = "service")]
            return Ok(Some(Receiver::Bus(self.to_bus(address))));
            #[cfg(not(feature = "service"))]
            match *address {}
        }
        let Some(url) = collector.cloned() else {
            return Ok(None);
        };
        let tls = self.at(&url)?;
        Ok(Some(Receiver::Collector {
            url,
            tls,
            token: environment::token(),
        }))
    }

    /// Whom to trust at this address.
    ///
    /// # Errors
    /// Authorities cannot be read, or there are none.
    pub(crate) fn at(&self, url: &str) -> Result<TlsConfig> {
        let authorities = match &self.tls_ca {
            Some(path) => {
                let certificates = certificates_in(path)
                    .with_context(|| format!("cannot read authorities from {}", path.display()))?;
                if certificates.is_empty() {
                    bail!("{} contains no certificate (PEM)", path.display());
                }
                certificates
            }
            // The system's take a while to read.
            None if url.starts_with("https://") => {
                // Authorities that cannot be read are left out: one odd file must not cost the
                // others.
                let found = rustls_native_certs::load_native_certs().certs;
                if found.is_empty() {
                    bail!("this system has no authorities: name a file with --tls-ca");
                }
                found
                    .iter()
                    .map(|der| Certificate::from_der(der).to_owned())
                    .collect()
            }
            None => return Ok(TlsConfig::default()),
        };
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::from(authorities))
            .build())
    }
}

/// The certificates of a PEM file, which may hold keys and other things too.
fn certificates_in(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let mut certificates = Vec::new();
    for item in parse_pem(&fs::read(path)?) {
        if let PemItem::Certificate(certificate) = item? {
            certificates.push(certificate);
        }
    }
    Ok(certificates)
}

/// What to do if `error` says that somebody could not prove who it is.
pub(crate) fn hint(error: &ureq::Error) -> &'static str {
    // These are the words of rustls for an `InvalidCertificate`.
    let of_certificate = error.to_string().contains("invalid peer certificate");
    if of_certificate {
        "; --tls-ca names the authorities to trust"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        for right in ["http://localhost:8765", "https://collector"] {
            assert_eq!(address(right).as_deref(), Ok(right));
        }
        for wrong in ["", "collector:8765", "https://", "ftp://collector"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
