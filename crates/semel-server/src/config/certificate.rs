//! The certificate of a listener.

use std::path::PathBuf;

use super::reader::Table;
use super::values::text;

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// Reads `tls = { cert = "…", key = "…" }`, where it is there.
    pub(super) fn read(table: &mut Table<'_>) -> Option<Self> {
        let mut tls = table.table("tls")?;
        let (cert, key) = (tls.need("cert", text), tls.need("key", text));
        let span = tls.span();
        tls.done();
        let certificate = Self { cert: cert?.into(), key: key?.into() };
        // Read here too, so that `config check` and a reload see what is wrong with it.
        match semel_http::edge::Tls::from_files(&certificate.cert, &certificate.key) {
            Ok(_) => Some(certificate),
            Err(error) => {
                table.problems().at(&span, format!("tls: {error}"));
                None
            }
        }
    }
}
