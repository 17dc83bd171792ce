//! The authority of agents: who may speak with the server as the agent of which node.
//!
//! It is the server's, not a cluster's: with a cluster's own authority every controlplane machine
//! could speak for all nodes of the cluster, and the server would have to know as many authorities as
//! it has clusters. It also signs what the server shows to agents, under a name of its own, so that it
//! does not matter under which address an agent finds it.

use jiff::Timestamp;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use x509_parser::{certificate::X509Certificate, prelude::FromDer, x509::X509Name};

use crate::{
    CertKey, PkiError, Secret,
    certificate::{
        BACKDATE, DAY, LEAF_DAYS, generate_key, is_fresh, make_authority, read, set_validity,
    },
};

const NAME: &str = "wharf-agents-ca";

/// Signs the certificates of agents, and what servers show to them. Stored sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAuthority(CertKey);

/// Whom a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    pub cluster: String,
    /// What tells the cluster from others of its name.
    pub identity: String,
    pub node: String,
}

impl AgentAuthority {
    pub fn new(now: Timestamp) -> Result<Self, PkiError> {
        make_authority(NAME, now).map(Self)
    }

    /// What agents trust.
    pub fn certificate_pem(&self) -> &str {
        &self.0.cert_pem
    }

    /// A certificate for an agent, with a new key.
    pub fn issue(&self, agent: &Agent, now: Timestamp) -> Result<CertKey, PkiError> {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, &agent.identity);
        subject.push(DnType::OrganizationalUnitName, &agent.cluster);
        subject.push(DnType::CommonName, &agent.node);
        self.make(Vec::new(), subject, ExtendedKeyUsagePurpose::ClientAuth, now)
    }

    /// What a server shows to agents, under this name.
    pub fn serve(&self, name: &str, now: Timestamp) -> Result<CertKey, PkiError> {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, name);
        self.make(vec![name.to_owned()], subject, ExtendedKeyUsagePurpose::ServerAuth, now)
    }

    /// Whether a certificate is this agent's, is signed by this authority, and has enough of its
    /// life left.
    pub fn is_current(&self, pair: &CertKey, agent: &Agent, now: Timestamp) -> bool {
        let current = |authority: &X509Certificate<'_>| {
            read(&pair.cert_pem, |certificate| {
                Agent::named(certificate.subject()).as_ref() == Some(agent)
                    && is_fresh(certificate, now)
                    && certificate.verify_signature(Some(authority.public_key())).is_ok()
            })
        };
        read(&self.0.cert_pem, current).flatten().unwrap_or(false)
    }

    fn make(
        &self,
        names: Vec<String>,
        subject: DistinguishedName,
        usage: ExtendedKeyUsagePurpose,
        now: Timestamp,
    ) -> Result<CertKey, PkiError> {
        let failed = |source| PkiError::Authority { name: NAME.to_owned(), source };
        let key = KeyPair::from_pem(self.0.key_pem.expose()).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_pem(&self.0.cert_pem, key).map_err(failed)?;
        let key = generate_key()?;
        let made = CertificateParams::new(names).and_then(|mut params| {
            params.distinguished_name = subject;
            params.is_ca = IsCa::ExplicitNoCa;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            params.use_authority_key_identifier_extension = true;
            set_validity(&mut params, now - BACKDATE, now + DAY * LEAF_DAYS);
            params.signed_by(&key, &issuer)
        });
        let certificate =
            made.map_err(|source| PkiError::Make { name: "of an agent".to_owned(), source })?;
        Ok(CertKey { cert_pem: certificate.pem(), key_pem: Secret::new(key.serialize_pem()) })
    }
}

impl Agent {
    /// Whom a certificate names. Whether it is to be believed, TLS has found out before.
    pub fn of(certificate_der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate_der).ok()?;
        Self::named(certificate.subject())
    }

    fn named(subject: &X509Name<'_>) -> Option<Self> {
        let identity = subject.iter_organization().next()?.as_str().ok()?;
        let cluster = subject.iter_organizational_unit().next()?.as_str().ok()?;
        let node = subject.iter_common_name().next()?.as_str().ok()?;
        let [cluster, identity, node] = [cluster, identity, node].map(str::to_owned);
        Some(Self { cluster, identity, node })
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::pem::parse_x509_pem;

    use super::*;

    fn agent(node: &str) -> Agent {
        let [cluster, identity, node] = ["demo", "4711", node].map(str::to_owned);
        Agent { cluster, identity, node }
    }

    #[test]
    fn a_certificate_names_its_agent_and_is_made_anew_in_time() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let authority = AgentAuthority::new(now).unwrap();
        let pair = authority.issue(&agent("n1"), now).unwrap();
        let (_, pem) = parse_x509_pem(pair.cert_pem.as_bytes()).unwrap();
        assert_eq!(Agent::of(&pem.contents), Some(agent("n1")));
        assert!(authority.is_current(&pair, &agent("n1"), now));
        assert!(!authority.is_current(&pair, &agent("n2"), now));
        assert!(!authority.is_current(&pair, &agent("n1"), now + DAY * 300));
        let other = AgentAuthority::new(now).unwrap();
        assert!(!other.is_current(&pair, &agent("n1"), now), "another's signature");
        let served = authority.serve("link", now).unwrap();
        let (_, pem) = parse_x509_pem(served.cert_pem.as_bytes()).unwrap();
        assert_eq!(Agent::of(&pem.contents), None, "a server is no agent");
    }
}
