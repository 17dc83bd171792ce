//! What a transaction may hold. The limits are etcd's, so that both back ends refuse the same.

use std::collections::HashSet;

use crate::{
    error::{StoreError, StoreResult},
    types::{Compare, Op, Txn},
};

/// etcd's default `--max-txn-ops`; it counts conditions and writes apart.
pub const MAX_OPS: usize = 128;

/// Below etcd's default `--max-request-bytes` (1.5 MiB), which also counts the keys and framing.
pub const MAX_TXN_BYTES: usize = 1_400_000;

/// A key is a kind and an id; longer ones are a mistake.
pub const MAX_KEY_BYTES: usize = 1024;

pub(crate) fn check_key(key: &str) -> StoreResult<()> {
    if key.is_empty() {
        return Err(StoreError::BadTxn("a key is empty".to_owned()));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(StoreError::BadTxn(format!(
            "a key has {} bytes, the limit is {MAX_KEY_BYTES}",
            key.len()
        )));
    }
    if key.starts_with('/') || key.chars().any(char::is_control) {
        return Err(StoreError::BadTxn(format!(
            "the key {key:?} begins with a slash or holds a control character"
        )));
    }
    Ok(())
}

pub(crate) fn check_txn(txn: &Txn) -> StoreResult<()> {
    if txn.compares.len() > MAX_OPS || txn.ops.len() > MAX_OPS {
        return Err(StoreError::BadTxn(format!(
            "{} conditions and {} writes, the limit is {MAX_OPS} each",
            txn.compares.len(),
            txn.ops.len()
        )));
    }
    for compare in &txn.compares {
        match compare {
            Compare::Absent(key) | Compare::ModifiedAt(key, _) | Compare::CreatedAt(key, _) => {
                check_key(key)?;
            }
        }
    }
    let mut written = HashSet::with_capacity(txn.ops.len());
    let mut bytes = 0;
    for op in &txn.ops {
        let (key, size) = match op {
            Op::Put { key, value, .. } => (key, value.len()),
            Op::Delete { key } => (key, 0),
        };
        check_key(key)?;
        if txn.ops.len() > 1 && !written.insert(key.as_str()) {
            return Err(StoreError::BadTxn(format!("the key {key} is written twice")));
        }
        bytes += key.len() + size;
    }
    if bytes > MAX_TXN_BYTES {
        return Err(StoreError::BadTxn(format!("{bytes} bytes, the limit is {MAX_TXN_BYTES}")));
    }
    Ok(())
}

/// The first byte string after all that begin with `prefix`; `None` if there is no end.
///
/// UTF-8 holds no byte 0xFF, so raising the last byte always works.
pub(crate) fn prefix_end(prefix: &str) -> Option<Vec<u8>> {
    let mut end = prefix.as_bytes().to_vec();
    let last = end.last_mut()?;
    *last = last.saturating_add(1);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(txn: &Txn) -> bool {
        matches!(check_txn(txn), Err(StoreError::BadTxn(_)))
    }

    #[test]
    fn malformed_keys_are_refused() {
        for key in ["", "/a", "a\0b", "a\nb", &"x".repeat(MAX_KEY_BYTES + 1)] {
            assert!(refused(&Txn::new().put(key, "v")), "{key:?}");
            assert!(refused(&Txn::new().when(Compare::Absent(key.to_owned()))), "{key:?}");
        }
        assert!(!refused(&Txn::new().put("cluster/größe 集群", "v")));
    }

    #[test]
    fn a_key_is_written_once_in_a_transaction() {
        assert!(refused(&Txn::new().put("a", "1").delete("a")));
        assert!(!refused(&Txn::new().put("a", "1").delete("b")));
    }

    #[test]
    fn size_and_count_are_limited_at_their_border() {
        let fits = "v".repeat(MAX_TXN_BYTES - 1);
        assert!(!refused(&Txn::new().put("k", fits.clone())));
        assert!(refused(&Txn::new().put("kk", fits)));
        let many = |n| (0..n).fold(Txn::new(), |txn, i| txn.put(format!("k{i}"), "v"));
        assert!(!refused(&many(MAX_OPS)));
        assert!(refused(&many(MAX_OPS + 1)));
    }
}
