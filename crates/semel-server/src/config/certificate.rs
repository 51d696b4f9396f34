//! The certificate of a listener.

use std::path::PathBuf;

use semel_http::edge::{Tls, TlsError};

use super::reader::Table;
use super::values::text;

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Authorities of client certificates; `None` if clients need no certificate.
    pub(crate) client_ca: Option<PathBuf>,
}

impl Certificate {
    /// Loads it for a listener.
    ///
    /// # Errors
    /// Files that cannot be used.
    pub(crate) fn open(&self) -> Result<Tls, TlsError> {
        let tls = Tls::from_files(&self.cert, &self.key)?;
        match &self.client_ca {
            Some(authorities) => tls.require_clients_of(authorities),
            None => Ok(tls),
        }
    }

    /// Reads `tls = { cert = "…", key = "…", client_ca = "…" }`, if present.
    pub(super) fn read(table: &mut Table<'_>) -> Option<Self> {
        let mut tls = table.table("tls")?;
        let (cert, key) = (tls.need("cert", text), tls.need("key", text));
        let client_ca = tls.get("client_ca", text).map(PathBuf::from);
        let span = tls.span();
        tls.done();
        let certificate = Self { cert: cert?.into(), key: key?.into(), client_ca };
        // Also loaded here, so that `config check` and a reload report its errors.
        match certificate.open() {
            Ok(_) => Some(certificate),
            Err(error) => {
                table.problems().at(&span, format!("tls: {error}"));
                None
            }
        }
    }
}
