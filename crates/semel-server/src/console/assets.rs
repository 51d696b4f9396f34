//! The style sheet and the script, embedded. Their names hold a hash of their content, so browsers may keep them for ever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

/// An embedded file.
pub(super) struct Asset {
    /// Its path on the server.
    pub(super) path: String,
    media: &'static str,
    content: &'static str,
}

pub(super) static CSS: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("css", "text/css; charset=utf-8", include_str!("assets/console.css")));
pub(super) static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("js", "text/javascript; charset=utf-8", include_str!("assets/console.js")));

impl Asset {
    fn new(extension: &str, media: &'static str, content: &'static str) -> Self {
        let hash = blake3::hash(content.as_bytes()).to_hex();
        let path = format!("/console/assets/console-{}.{extension}", &hash.as_str()[..16]);
        Self { path, media, content }
    }
}

/// Where the files are served.
pub(super) const FOLDER: &str = "/console/assets/";

pub(super) async fn serve(Path(name): Path<String>) -> Response {
    let found = [&*CSS, &*SCRIPT].into_iter().find(|asset| asset.path.strip_prefix(FOLDER) == Some(&name));
    let Some(asset) = found else { return StatusCode::NOT_FOUND.into_response() };
    let mut response = ([(header::CONTENT_TYPE, asset.media)], asset.content).into_response();
    let for_ever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(header::CACHE_CONTROL, for_ever);
    response
}
