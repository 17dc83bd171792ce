//! A quick hash for the maps that a decision over a long queue looks into.
//!
//! The keys are indexes of ours, and names and addresses of machines that administrators brought in,
//! so that nothing is lost without the protection of the usual hash.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
};

pub type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;
pub type QuickSet<K> = HashSet<K, BuildHasherDefault<QuickHasher>>;

#[derive(Default)]
pub struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            let mixed = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.0 = mixed ^ (mixed >> 29);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn addresses_are_spread_over_all_bits() {
        let hasher = BuildHasherDefault::<QuickHasher>::default();
        let addresses = (0..10_000).map(|n| format!("10.0.{}.{}", n / 250, n % 250));
        let hashes: Vec<u64> = addresses.map(|address| hasher.hash_one(address)).collect();
        let different = |part: &dyn Fn(u64) -> u64| {
            hashes.iter().map(|hash| part(*hash)).collect::<HashSet<_>>().len()
        };
        assert_eq!(different(&|hash| hash), 10_000);
        // Maps use the lowest bits for the place and the highest seven for the tag.
        assert!(different(&|hash| hash & 0xFFFF) > 8_000);
        assert_eq!(different(&|hash| hash >> 57), 128);
    }
}
