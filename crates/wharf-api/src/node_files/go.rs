//! How programs in Go write times, addresses, identifiers and lists.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::{Deref, DerefMut},
    str::FromStr,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A time, or none, which is written as `0001-01-01T00:00:00Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub Option<Timestamp>);

const NEVER: &str = "0001-01-01T00:00:00Z";
/// The same, in seconds.
const NEVER_SECOND: i64 = -62_135_596_800;

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self(Some(time))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(time) => serializer.collect_str(&time),
            None => serializer.serialize_str(NEVER),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Self(Some(time).filter(|time| time.as_second() != NEVER_SECOND)))
    }
}

/// An identifier; all zero when it is not set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid([u8; 16]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no UUID")]
pub struct NotAUuid;

impl Uuid {
    /// One that nobody has, of random bytes.
    pub fn random(mut bytes: [u8; 16]) -> Self {
        let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
        *version = *version & 0x0f | 0x40;
        *variant = *variant & 0x3f | 0x80;
        Self(bytes)
    }

    pub fn is_nil(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for Uuid {
    type Err = NotAUuid;

    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        let dashes = text.bytes().enumerate().filter(|(_, byte)| *byte == b'-');
        let dashes: Vec<usize> = dashes.map(|(place, _)| place).collect();
        if text.len() != 36 || dashes != [8, 13, 18, 23] {
            return Err(NotAUuid);
        }
        let mut digits = text.bytes().filter(|byte| *byte != b'-').map(hex_digit);
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            let high = digits.next().flatten().ok_or(NotAUuid)?;
            let low = digits.next().flatten().ok_or(NotAUuid)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// An address, or none, which is written as an empty text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ip(pub Option<IpAddr>);

impl Serialize for Ip {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(address) => serializer.collect_str(&address),
            None => serializer.serialize_str(""),
        }
    }
}

impl<'de> Deserialize<'de> for Ip {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self(None));
        }
        let address: IpAddr = text.parse().map_err(D::Error::custom)?;
        Ok(Self(Some(address.to_canonical())))
    }
}

/// An address with the length of its network's prefix: `{"IP":"10.0.0.1","Mask":"////AA=="}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpPrefix {
    pub address: IpAddr,
    pub length: u8,
}

#[derive(Serialize, Deserialize)]
struct PrefixFields {
    #[serde(rename = "IP")]
    address: IpAddr,
    #[serde(rename = "Mask")]
    mask: String,
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl Serialize for IpPrefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let length = u32::from(self.length);
        let mask = match self.address {
            IpAddr::V4(_) => {
                let bits = u32::MAX.checked_shl(32_u32.saturating_sub(length)).unwrap_or(0);
                STANDARD.encode(Ipv4Addr::from_bits(bits).octets())
            }
            IpAddr::V6(_) => {
                let bits = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
                STANDARD.encode(Ipv6Addr::from_bits(bits).octets())
            }
        };
        PrefixFields { address: self.address, mask }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for IpPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = PrefixFields::deserialize(deserializer)?;
        let mask = STANDARD.decode(&fields.mask).map_err(D::Error::custom)?;
        let address = fields.address.to_canonical();
        // The mask of an IPv4 address may come in the 16 bytes of IPv6.
        let mask = match (address, mask.as_slice()) {
            (IpAddr::V4(_), [_, _, _, _, _, _, _, _, _, _, _, _, last @ ..]) => last,
            (_, mask) => mask,
        };
        let expected = if address.is_ipv4() { 4 } else { 16 };
        let bits = mask.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        let shift = 128_u32.saturating_sub(8 * expected);
        let bits = bits.checked_shl(shift).unwrap_or(0);
        let length = bits.leading_ones();
        if u32::try_from(mask.len()).ok() != Some(expected) || bits.count_ones() != length {
            return Err(D::Error::custom("the mask is none"));
        }
        let length = u8::try_from(length).map_err(D::Error::custom)?;
        Ok(Self { address, length })
    }
}

/// A list; an empty one is written as `null`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> Self {
        Self(items)
    }
}

impl<T> Deref for List<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() { serializer.serialize_none() } else { self.0.serialize(serializer) }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let items: Option<Vec<T>> = Option::deserialize(deserializer)?;
        Ok(Self(items.unwrap_or_default()))
    }
}
