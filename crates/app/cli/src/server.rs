//! What readers ask of a collector.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use protocol::Refusal;
use serde_json::Value;
use ureq::http::{Response, StatusCode};

use crate::environment;
use crate::trust::{TrustArgs, address, hint};

/// How long an answer may take: a page of a large job is made while we wait.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Longest answer: a report of many ranks has some MB.
const LONGEST_BYTES: u64 = 256 << 20;

/// The collector to ask; `LAGGARD_TOKEN` holds the token for it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Collector (`laggard serve`) to ask; LAGGARD_TOKEN holds a viewer's token
    #[arg(
        long,
        value_name = "URL",
        value_parser = address,
        default_value = "http://127.0.0.1:8765"
    )]
    collector: String,
    #[command(flatten)]
    trust: TrustArgs,
}

/// A collector.
#[derive(Debug)]
pub(crate) struct CollectorClient {
    http: ureq::Agent,
    url: String,
    token: Option<String>,
}

impl ServerArgs {
    /// Its address.
    #[cfg(feature = "service")]
    pub(crate) fn url(&self) -> &str {
        &self.collector
    }

    /// # Errors
    /// Whom to trust there cannot be told.
    pub(crate) fn server(&self) -> Result<CollectorClient> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            // The body of a refusal says what is wrong.
            .http_status_as_error(false)
            .proxy(None)
            .tls_config(self.trust.at(&self.collector)?)
            // `ask` follows them itself: a token that TLS protects must not go on without it.
            .max_redirects(0)
            .build();
        Ok(CollectorClient {
            http: config.into(),
            url: self.collector.trim_end_matches('/').to_owned(),
            token: environment::token(),
        })
    }
}

impl CollectorClient {
    fn send(
        &self,
        method: &str,
        uri: &str,
        body: Option<&str>,
    ) -> Result<Result<Response<ureq::Body>, ureq::Error>> {
        let mut request = ureq::http::Request::builder().method(method).uri(uri);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        Ok(match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                self.http.run(request.body(body)?)
            }
            None => self.http.run(request.body(())?),
        })
    }

    /// The text at `/api/v1/` and `path`.
    ///
    /// # Errors
    /// The collector does not answer, or refuses.
    pub(crate) fn get(&self, path: &str) -> Result<String> {
        self.ask("GET", path, None)
    }

    /// What the collector answers if something is done at `/api/v1/` and `path`, with a JSON
    /// document where that takes one.
    ///
    /// # Errors
    /// The collector does not answer, or refuses.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Result<String> {
        let uri = format!("{}/api/v1/{path}", self.url);
        let body = body.map(|body| body.to_string());
        let mut answer = self.send(method, &uri, body.as_deref())?;
        // Another collector keeps the job.
        if let Ok(led) = &answer
            && led.status() == StatusCode::TEMPORARY_REDIRECT
            && let Some(to) = led
                .headers()
                .get("location")
                .and_then(|to| to.to_str().ok())
            && may_follow(&self.url, to)
        {
            // Once: the keeper of a job leads nowhere else.
            answer = self.send(method, to, body.as_deref())?;
        }
        let (status, text) = answer
            .and_then(|mut response| {
                let status = response.status();
                let body = response.body_mut().with_config().limit(LONGEST_BYTES);
                Ok((status, body.read_to_string()?))
            })
            .map_err(|error| {
                let hint = hint(&error);
                anyhow!(
                    "the collector at {} does not answer: {error}{hint}",
                    self.url
                )
            })?;
        if status.is_success() {
            return Ok(text);
        }
        let Refusal { error, .. } = serde_json::from_str(&text).unwrap_or_default();
        match status.as_u16() {
            401 | 403 => {
                bail!(
                    "the collector at {} says: {error}; set LAGGARD_TOKEN",
                    self.url
                )
            }
            status => bail!("the collector at {} says: {error} ({status})", self.url),
        }
    }
}

/// Whether a collector may lead to this address: a token that TLS protects does not go on without.
fn may_follow(from: &str, to: &str) -> bool {
    to.starts_with("https://") || from.starts_with("http://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_behind_tls_leads_to_no_address_without() {
        let [plain, tls] = ["http://b:8765", "https://b:8765"];
        assert!(may_follow("https://a:8765", tls) && !may_follow("https://a:8765", plain));
        assert!(may_follow("http://a:8765", tls) && may_follow("http://a:8765", plain));
    }
}
