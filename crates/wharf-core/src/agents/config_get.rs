//! What the link's health means for whoever asks whether the node reaches its controller.

use std::time::Duration;

use crate::node::leader::ConfigGet;

/// A server that restarts is back before this is over, and nobody needs to step down for it.
pub const GRACE: Duration = Duration::from_secs(30);

/// `linked`: the server's configuration came over the link that stands. `saved`: one from an earlier
/// link is in use. `lost_for`: since when there is no link, or since the agent's start.
pub fn config_get(linked: bool, saved: bool, lost_for: Duration) -> ConfigGet {
    match (linked, saved) {
        (true, _) => ConfigGet::Success,
        (false, true) if lost_for < GRACE => ConfigGet::ReadSaved,
        (false, true) => ConfigGet::TemporaryFail,
        (false, false) => ConfigGet::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_loss_is_bridged_by_what_was_saved_and_a_long_one_is_told() {
        let (short, long) = (GRACE / 2, GRACE);
        let rows = [
            (true, false, long, ConfigGet::Success),
            (true, true, short, ConfigGet::Success),
            (false, true, short, ConfigGet::ReadSaved),
            (false, true, long, ConfigGet::TemporaryFail),
            (false, false, short, ConfigGet::Fail),
            (false, false, long, ConfigGet::Fail),
        ];
        for (linked, saved, lost_for, expected) in rows {
            assert_eq!(
                config_get(linked, saved, lost_for),
                expected,
                "{linked} {saved} {lost_for:?}"
            );
        }
    }
}
