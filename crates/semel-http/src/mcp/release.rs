//! The release of AdCP that an agent announces in its capabilities.

use serde_json::value::RawValue;

use super::json::{Object, text_of};

/// A release: `3.1`. Pre-releases count as their release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release {
    major: u32,
    minor: u32,
}

impl Release {
    /// The first release that knows the code `IDEMPOTENCY_IN_FLIGHT`.
    pub(crate) const WITH_IN_FLIGHT: Self = Self { major: 3, minor: 1 };

    /// The newest release of `adcp.supported_versions`. Without that list: the release that the answer itself is written for, or a
    /// major version after 3. `adcp.major_versions: [3]` does not say which 3.
    pub(crate) fn announced(capabilities: &Object<'_>) -> Option<Self> {
        let adcp = capabilities.object("adcp").unwrap_or_default();
        let supported = list(&adcp, "supported_versions").into_iter().filter_map(|text| {
            let text = text_of(text)?;
            Self::parse(&text)
        });
        let majors = list(&adcp, "major_versions").into_iter().filter_map(|major| major.get().parse().ok());
        supported
            .max()
            .or_else(|| Self::parse(&capabilities.text("adcp_version")?))
            .or_else(|| majors.max().filter(|major| *major > 3).map(|major| Self { major, minor: 0 }))
    }

    fn parse(text: &str) -> Option<Self> {
        let (release, _) = text.split_once('-').unwrap_or((text, ""));
        let (major, minor) = release.split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

fn list<'a>(object: &'a Object<'_>, name: &str) -> Vec<&'a RawValue> {
    object.get(name).and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_announced_release_counts() {
        for (capabilities, release) in [
            (r#"{"adcp":{"supported_versions":["3.0","3.10","3.2"]}}"#, Some((3, 10))),
            (r#"{"adcp":{"supported_versions":["3.1-beta.2"],"major_versions":[4]}}"#, Some((3, 1))),
            (r#"{"adcp":{"supported_versions":["3.0","4.0"],"major_versions":[3]}}"#, Some((4, 0))),
            (r#"{"adcp_version":"3.0","adcp":{"major_versions":[3]}}"#, Some((3, 0))),
            (r#"{"adcp_version":"3.0","adcp":{"supported_versions":["3.0","3.1"]}}"#, Some((3, 1))),
            (r#"{"adcp":{"major_versions":[3,4]}}"#, Some((4, 0))),
            (r#"{"adcp":{"major_versions":[3]}}"#, None),
            (r#"{"adcp":{"supported_versions":["v3","3",3.1,null]}}"#, None),
            (r#"{"adcp":{"supported_versions":"3.0"}}"#, None),
            (r#"{"adcp":3}"#, None),
            ("{}", None),
        ] {
            let announced = Release::announced(&Object::read(capabilities).unwrap());
            assert_eq!(announced.map(|release| (release.major, release.minor)), release, "{capabilities}");
        }
    }
}
