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

#[cfg(test)]
mod tests {
    use super::*;

    /// A template without what is computed.
    fn fixed(text: &str) -> String {
        let mut fixed = String::new();
        for (at, part) in text.split("{{").enumerate() {
            fixed.push_str(if at == 0 { part } else { part.split_once("}}").map_or("", |(_, rest)| rest) });
        }
        let mut without = String::new();
        for (at, part) in fixed.split("{%").enumerate() {
            without.push_str(if at == 0 { part } else { part.split_once("%}").map_or("", |(_, rest)| rest) });
        }
        without
    }

    // A class that the style sheet does not know changes nothing, and nobody notices.
    #[test]
    fn the_style_sheet_has_every_class_of_the_templates() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
        let mut classes = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let template = fixed(&std::fs::read_to_string(&path).unwrap());
            let attributes = template.split("class=\"").skip(1).map(|rest| rest.split_once('"').unwrap().0);
            for class in attributes.flat_map(str::split_whitespace) {
                classes += 1;
                // A name that ends so is completed by a value.
                let is_prefix = class.ends_with('-');
                let is_known = CSS.content.split(&format!(".{class}")).skip(1).any(|rest| {
                    is_prefix
                        || !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_')
                });
                assert!(is_known, "{class} of {}", path.display());
            }
        }
        assert!(classes > 300, "the templates are read: {classes}");
    }
}
