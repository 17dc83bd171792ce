//! Values that must not be seen.

use serde::{Deserialize, Serialize};

/// A value that its `Debug` does not show, so that it gets into no log by accident.
///
/// It is written to the wire as it is: a client must send it. Therefore only requests hold it, and
/// the answers whose purpose it is (a kubeconfig). Resources have no field for what they hide.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret<T = String>(pub T);

impl<T> std::fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl<T> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_goes_over_the_wire_and_into_no_log() {
        let secret = Secret("swordfish".to_owned());
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"swordfish\"");
        assert!(!format!("{secret:?} {:?}", Some(&secret)).contains("swordfish"));
    }
}
