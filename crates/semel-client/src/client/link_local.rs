//! Addresses that no service of somebody else's has: those of the local link, and those where clouds serve credentials.

use std::net::{IpAddr, Ipv4Addr};

/// Names under which clouds serve the credentials of a machine.
const METADATA_NAMES: [&str; 6] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.tencentyun.com",
];

/// Addresses of metadata services that are not link-local.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// Whether an address is link-local or that of a metadata service, in any of its spellings.
pub(super) fn is_local_address(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || METADATA_V4.contains(&address),
        IpAddr::V6(address) => {
            let segments = address.segments();
            let [first, second, .., high, low] = segments;
            let embeds_local = |high: u16, low: u16| {
                is_local_address(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)).into())
            };
            // NAT64 (also with a prefix of its own), and the old form ::a.b.c.d, lead to the IPv4 address at the end; 6to4 to the
            // one behind its prefix.
            let translated = segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0]
                || segments[..3] == [0x64, 0xff9b, 1]
                || segments[..6] == [0; 6];
            let translated =
                translated && embeds_local(high, low) || first == 0x2002 && embeds_local(second, segments[2]);
            let amazon = (first, second) == (0xfd00, 0xec2);
            let google = (first, second) == (0xfd20, 0xce);
            first & 0xffc0 == 0xfe80 || amazon || google || translated
        }
    }
}

/// Whether a host is such an address, or the name of a metadata service.
pub(super) fn is_local_host(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    METADATA_NAMES.contains(&name.as_str()) || name.parse().is_ok_and(is_local_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    // ssrf
    #[test]
    fn link_local_and_metadata_addresses_are_known_in_every_spelling() {
        for local in [
            "169.254.169.254",
            "169.254.0.1",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "::169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "metadata.google.internal",
            "METADATA.google.internal.",
            "metadata",
        ] {
            assert!(is_local_host(local), "{local}");
        }
        for other in
            ["127.0.0.1", "10.0.0.1", "169.253.0.1", "::1", "fd00::1", "fec0::1", "metadata.example.com", "h"]
        {
            assert!(!is_local_host(other), "{other}");
        }
    }
}
