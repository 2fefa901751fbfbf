//! Where the history is kept: a folder, or a bucket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpService,
};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, RetryConfig};
use ureq::tls::TlsConfig;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Age of what nobody is about to write any more.
const ABANDONED_AFTER: Duration = Duration::from_hours(1);

/// Where the history is kept.
#[derive(Clone, Debug)]
pub enum HistoryPlace {
    /// A folder.
    Folder(PathBuf),
    /// A bucket of S3, or of what speaks as it does. How to reach it and who asks stand in the
    /// usual variables of the environment, `AWS_…`.
    Bucket {
        /// `s3://BUCKET/PREFIX`.
        url: String,
        /// Whom to trust behind its address.
        tls: TlsConfig,
    },
}

/// A place that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the history cannot be kept in {place}: {why}")]
pub struct PlaceError {
    place: String,
    /// The errors of the crate repeat what they come from.
    why: String,
}

impl fmt::Display for HistoryPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(formatter),
            Self::Bucket { url, .. } => formatter.write_str(url),
        }
    }
}

impl HistoryPlace {
    /// The way there. Whether a bucket answers is found out when something is put into it.
    ///
    /// # Errors
    /// A folder that cannot be made, an address that is none.
    pub(crate) fn open(&self) -> Result<Arc<dyn ObjectStore>, PlaceError> {
        match self {
            Self::Folder(path) => {
                fs::create_dir_all(path).map_err(|error| self.failed(&error))?;
                let folder =
                    LocalFileSystem::new_with_prefix(path).map_err(|error| self.failed(&error))?;
                // The outbox forgets what was put: a power failure must not lose it.
                Ok(Arc::new(folder.with_fsync(true)))
            }
            Self::Bucket { url, tls } => {
                // What fails is tried again by us, with everything else that waits.
                let retry = RetryConfig {
                    max_retries: 0,
                    ..RetryConfig::default()
                };
                let bucket = AmazonS3Builder::from_env()
                    .with_url(url)
                    .with_retry(retry)
                    // Stores within a cluster often speak HTTP; the address says which.
                    .with_allow_http(true)
                    .with_http_connector(Connector(tls.clone()))
                    .build()
                    .map_err(|error| self.failed(&error))?;
                // What follows `s3://BUCKET/`.
                let prefix = url.splitn(4, '/').nth(3).unwrap_or_default();
                let prefix = Path::parse(prefix).map_err(|error| self.failed(&error))?;
                Ok(Arc::new(PrefixStore::new(bucket, prefix)))
            }
        }
    }

    fn failed(&self, error: &dyn fmt::Display) -> PlaceError {
        PlaceError {
            place: self.to_string(),
            why: error.to_string(),
        }
    }
}

impl HistoryPlace {
    /// Removes what a kill left half written in a folder: readers of whole folders would stumble
    /// over it. A bucket has nothing of the kind.
    pub(super) fn sweep(&self) -> io::Result<()> {
        match self {
            Self::Folder(path) => sweep(path),
            Self::Bucket { .. } => Ok(()),
        }
    }
}

fn sweep(folder: &std::path::Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, metadata) = entry.and_then(|at| Ok((at.path(), at.metadata()?)))?;
        if metadata.is_dir() {
            sweep(&path)?;
            continue;
        }
        // As the crate names what it is about to write.
        let is_half = path.to_string_lossy().contains(".parquet#");
        let age = metadata.modified()?.elapsed().unwrap_or_default();
        if is_half && age > ABANDONED_AFTER {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Asks over HTTP as the rest of us does.
#[derive(Debug)]
struct Connector(TlsConfig);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .tls_config(self.0.clone())
            .max_redirects(0)
            .allow_non_standard_methods(true)
            .build();
        Ok(HttpClient::new(Service(config.into())))
    }
}

#[derive(Debug)]
struct Service(ureq::Agent);

#[async_trait]
impl HttpService for Service {
    /// Blocks: the thread that puts has nothing else to do.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request = ureq::http::Request::from_parts(head, body.as_ref());
        let answered = self.0.run(request).and_then(|answer| {
            let (head, mut body) = answer.into_parts();
            Ok(HttpResponse::from_parts(head, body.read_to_vec()?.into()))
        });
        answered.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))
    }
}
