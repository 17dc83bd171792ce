//! Which server owns which cluster.
//!
//! Rendezvous hashing: every server scores every pair of member and cluster in the same way, and
//! the highest score owns. Nobody needs to agree on anything but the list of members, and when one
//! leaves only its own clusters move.

use sha2::{Digest, Sha256};

use super::{Ownership, ServerId};

/// The member that should own the cluster; `None` without members.
pub fn rendezvous<'a>(
    members: impl IntoIterator<Item = &'a ServerId>,
    cluster: &str,
) -> Option<&'a ServerId> {
    members.into_iter().max_by_key(|member| (score(member, cluster), *member))
}

fn score(member: &ServerId, cluster: &str) -> [u8; 32] {
    // The length in front keeps "a" + "bc" apart from "ab" + "c".
    let mut hash = Sha256::new();
    hash.update((member.0.len() as u64).to_be_bytes());
    hash.update(&member.0);
    hash.update(cluster);
    hash.finalize().into()
}

/// What a server should do about one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is ours, under this epoch.
    Keep { epoch: u64 },
    /// It should be ours: write this, then work on it.
    TakeOver(Ownership),
    /// It is, or should be, another's: stop working on it.
    Leave,
}

/// Decides about one cluster, given the members that hold a lease at the moment.
pub fn decide_ownership(
    me: &ServerId,
    members: &[ServerId],
    cluster: &str,
    current: &Ownership,
) -> Decision {
    if rendezvous(members, cluster) != Some(me) {
        return Decision::Leave;
    }
    if current.owner.as_ref() == Some(me) {
        return Decision::Keep { epoch: current.epoch };
    }
    Decision::TakeOver(Ownership { owner: Some(me.clone()), epoch: current.epoch + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(names: &[&str]) -> Vec<ServerId> {
        names.iter().map(|n| ServerId((*n).to_owned())).collect()
    }

    #[test]
    fn one_member_owns_everything() {
        let members = servers(&["a"]);
        for i in 0..100 {
            assert_eq!(rendezvous(&members, &format!("c{i}")), members.first());
        }
        assert_eq!(rendezvous(&[], "c"), None);
    }

    #[test]
    fn the_order_of_the_members_does_not_matter() {
        let (there, back) = (servers(&["a", "b", "c"]), servers(&["c", "b", "a"]));
        for i in 0..100 {
            let cluster = format!("c{i}");
            assert_eq!(rendezvous(&there, &cluster), rendezvous(&back, &cluster));
        }
    }

    #[test]
    fn clusters_spread_evenly_and_only_the_clusters_of_a_lost_member_move() {
        let three = servers(&["a", "b", "c"]);
        let two = servers(&["a", "b"]);
        let mut owned_by_c = 0;
        for i in 0..3000 {
            let cluster = format!("c{i}");
            let before = rendezvous(&three, &cluster).unwrap();
            let after = rendezvous(&two, &cluster).unwrap();
            if before.0 == "c" {
                owned_by_c += 1;
            } else {
                assert_eq!(before, after, "{cluster} moved without need");
            }
        }
        assert!((900..1100).contains(&owned_by_c), "{owned_by_c} of 3000");
    }

    #[test]
    fn a_take_over_raises_the_epoch_and_a_kept_cluster_does_not() {
        let (a, b) = (ServerId("a".into()), ServerId("b".into()));
        let alone = [a.clone()];
        let of_b = Ownership { owner: Some(b.clone()), epoch: 7 };
        let of_a = Ownership { owner: Some(a.clone()), epoch: 8 };
        assert_eq!(
            decide_ownership(&a, &alone, "x", &of_b),
            Decision::TakeOver(Ownership { owner: Some(a.clone()), epoch: 8 })
        );
        assert_eq!(decide_ownership(&a, &alone, "x", &of_a), Decision::Keep { epoch: 8 });
        assert_eq!(decide_ownership(&a, &[b], "x", &of_a), Decision::Leave);
        assert_eq!(
            decide_ownership(&a, &alone, "x", &Ownership::default()),
            Decision::TakeOver(Ownership { owner: Some(a), epoch: 1 })
        );
    }

    #[test]
    fn a_server_that_is_no_member_owns_nothing() {
        let a = ServerId("a".into());
        let own = Ownership { owner: Some(a.clone()), epoch: 1 };
        assert_eq!(decide_ownership(&a, &[], "x", &own), Decision::Leave);
    }
}
