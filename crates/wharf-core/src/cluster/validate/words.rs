//! What single words must look like.

/// The most characters of a DNS label; also of a label's value in Kubernetes, which nodes' names
/// become.
pub(super) const LABEL_MAX: usize = 63;
const DNS_NAME_MAX: usize = 253;

/// A text without the blanks around it; one that is empty was not given.
pub(super) fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// Lower-case letters, digits and `-`, in labels joined by dots.
pub(super) fn is_dns_name(text: &str) -> bool {
    text.len() <= DNS_NAME_MAX && text.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edge = |b: Option<&u8>| b.is_some_and(|b| *b != b'-');
    let bytes = label.as_bytes();
    label.len() <= LABEL_MAX
        && bytes.iter().all(|b| inner(*b))
        && edge(bytes.first())
        && edge(bytes.last())
}

/// One word that can be seen: no blanks, no control characters.
pub(super) fn is_one_word(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// An OpenSSH public key (`ssh-ed25519 AAAA… comment`) or the fingerprint that OpenSSH shows of it
/// (`SHA256:…`). Whether it is any host's key shows at the first contact.
pub(super) fn is_host_key(text: &str) -> bool {
    let base64 =
        |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b));
    if let Some(fingerprint) = text.strip_prefix("SHA256:") {
        // 32 bytes, with or without the padding.
        return base64(fingerprint) && fingerprint.trim_end_matches('=').len() == 43;
    }
    let mut parts = text.split_whitespace();
    let (kind, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let known = ["ssh-", "ecdsa-sha2-", "sk-"].iter().any(|prefix| kind.starts_with(prefix));
    known && !text.contains('\n') && key.starts_with("AAAA") && base64(key)
}
