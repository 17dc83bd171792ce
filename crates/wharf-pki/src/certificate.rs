//! Making certificates, and telling whether one is still good.

use std::{collections::BTreeSet, net::Ipv4Addr, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, pem::parse_x509_pem};

use crate::{
    Authority, PkiError, Secret,
    leaf::{Leaf, Wanted},
    pki::CertKey,
};

pub const DAY: SignedDuration = SignedDuration::from_hours(24);
const AUTHORITY_DAYS: i32 = 3650;
pub const LEAF_DAYS: i32 = 365;
/// For machines whose clocks are behind ours.
pub const BACKDATE: SignedDuration = SignedDuration::from_hours(1);
/// A leaf is made anew when less than this part of its life is left: months in which to reach a
/// machine that is away.
const RENEW_BELOW: i32 = 3;
/// The last second that a certificate can name.
const LAST_SECOND: i64 = 253_402_300_799;

pub fn generate_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate().map_err(PkiError::Key)
}

pub fn make_authority(name: &str, now: Timestamp) -> Result<CertKey, PkiError> {
    let key = generate_key()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(name, None);
    // Without a limit of the path: a later authority may be signed by this one.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    set_validity(&mut params, now - BACKDATE, now + DAY * AUTHORITY_DAYS);
    let certificate = params
        .self_signed(&key)
        .map_err(|source| PkiError::Make { name: name.to_owned(), source })?;
    Ok(CertKey { cert_pem: certificate.pem(), key_pem: Secret::new(key.serialize_pem()) })
}

/// An authority that is ready to sign.
pub struct Signer {
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    ends_at: Timestamp,
}

impl Signer {
    pub fn open(authority: Authority, pair: &CertKey) -> Result<Self, PkiError> {
        let name = authority.name();
        let failed = |source| PkiError::Authority { name: name.to_owned(), source };
        let key = KeyPair::from_pem(pair.key_pem.expose()).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_pem(&pair.cert_pem, key).map_err(failed)?;
        let ends_at = ends_at(name, &pair.cert_pem)?;
        Ok(Self { name, issuer, certificate_pem: pair.cert_pem.clone(), ends_at })
    }

    /// Makes a certificate with a new key.
    pub fn issue(&self, wanted: &Wanted<'_>, now: Timestamp) -> Result<CertKey, PkiError> {
        if self.ends_at <= now {
            let name = self.name.to_owned();
            return Err(PkiError::AuthorityEnded { name, at: self.ends_at });
        }
        let key = generate_key()?;
        let made = self.params(wanted, now).and_then(|params| params.signed_by(&key, &self.issuer));
        let certificate =
            made.map_err(|source| PkiError::Make { name: wanted.leaf.to_string(), source })?;
        Ok(CertKey { cert_pem: certificate.pem(), key_pem: Secret::new(key.serialize_pem()) })
    }

    fn params(
        &self,
        wanted: &Wanted<'_>,
        now: Timestamp,
    ) -> Result<CertificateParams, rcgen::Error> {
        let names: Vec<String> = wanted.names.iter().cloned().collect();
        let leaf = wanted.leaf;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = subject(&leaf.common_name(), leaf.organization());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        if leaf.usage().serves() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if leaf.usage().calls() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        // A leaf that outlives its authority would look good and be refused.
        set_validity(&mut params, now - BACKDATE, (now + DAY * LEAF_DAYS).min(self.ends_at));
        Ok(params)
    }

    /// Whether a certificate is what is wanted, is signed by this authority, and has enough of its
    /// life left.
    pub fn is_current(&self, pair: &CertKey, wanted: &Wanted<'_>, now: Timestamp) -> bool {
        let current = |authority: &X509Certificate<'_>| {
            read(&pair.cert_pem, |certificate| {
                is_wanted(certificate, wanted)
                    && is_fresh(certificate, now)
                    && certificate.verify_signature(Some(authority.public_key())).is_ok()
            })
        };
        read(&self.certificate_pem, current).flatten().unwrap_or(false)
    }
}

fn subject(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

pub fn set_validity(params: &mut CertificateParams, from: Timestamp, to: Timestamp) {
    let at = |time: Timestamp| {
        let seconds = time.as_second().clamp(0, LAST_SECOND).unsigned_abs();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = at(from);
    params.not_after = at(to);
}

pub fn ends_at(name: &str, certificate_pem: &str) -> Result<Timestamp, PkiError> {
    let seconds = read(certificate_pem, |certificate| certificate.validity().not_after.timestamp());
    seconds
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .ok_or_else(|| PkiError::Read { name: name.to_owned() })
}

/// Looks at a certificate; `None` when the text holds none.
pub fn read<T>(pem: &str, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).ok()?;
    pem.parse_x509().ok().map(|certificate| look(&certificate))
}

fn is_wanted(certificate: &X509Certificate<'_>, wanted: &Wanted<'_>) -> bool {
    let leaf: Leaf<'_> = wanted.leaf;
    let subject = certificate.subject();
    let common_names: Vec<_> = subject.iter_common_name().map(|name| name.as_str()).collect();
    let organizations: Vec<_> = subject.iter_organization().map(|name| name.as_str()).collect();
    let usage = certificate.extended_key_usage().ok().flatten().map(|usage| usage.value);
    let wanted_organizations: Vec<_> = leaf.organization().into_iter().map(Ok).collect();
    common_names == [Ok(leaf.common_name().as_str())]
        && organizations == wanted_organizations
        && usage.is_some_and(|usage| {
            usage.server_auth == leaf.usage().serves() && usage.client_auth == leaf.usage().calls()
        })
        && names(certificate).as_ref() == Some(&wanted.names)
}

/// `None` when there is a name of a kind that we never give.
fn names(certificate: &X509Certificate<'_>) -> Option<BTreeSet<String>> {
    let Some(names) = certificate.subject_alternative_name().ok()? else {
        return Some(BTreeSet::new());
    };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            <[u8; 4]>::try_from(*bytes).ok().map(|bytes| Ipv4Addr::from(bytes).to_string())
        }
        _ => None,
    };
    names.value.general_names.iter().map(text).collect()
}

pub fn is_fresh(certificate: &X509Certificate<'_>, now: Timestamp) -> bool {
    let validity = certificate.validity();
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let now = now.as_second();
    from <= now && (to - now).saturating_mul(i64::from(RENEW_BELOW)) >= to - from
}
