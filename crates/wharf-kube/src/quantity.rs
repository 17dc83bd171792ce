//! Kubernetes' quantities (`100m`, `2Gi`, `1e3`) as whole numbers.

/// In thousandths of a unit, rounded up as Kubernetes does; `None` for what is no quantity.
pub(crate) fn parse_millis(text: &str) -> Option<u128> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || fraction.contains('.') || digits.len() > MAX_DIGITS {
        return None;
    }
    let mantissa: u128 = digits.parse().ok()?;
    let (base, exponent) = suffix_of(suffix)?;
    let fraction = i32::try_from(fraction.len()).ok()?;
    // mantissa * base^exponent * 1000 / 10^fraction
    match base {
        10 => scale(mantissa, exponent + 3 - fraction),
        _ => {
            let bytes = mantissa.checked_mul(base.checked_pow(exponent.unsigned_abs())?)?;
            scale(bytes, 3 - fraction)
        }
    }
}

pub(crate) fn parse_whole(text: &str) -> Option<u64> {
    u64::try_from(parse_millis(text)?.div_ceil(1000)).ok()
}

/// Longer numbers are nonsense, and would not fit.
const MAX_DIGITS: usize = 25;

fn scale(mantissa: u128, exponent: i32) -> Option<u128> {
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    if exponent >= 0 { mantissa.checked_mul(power) } else { Some(mantissa.div_ceil(power)) }
}

/// Base and exponent.
fn suffix_of(suffix: &str) -> Option<(u128, i32)> {
    let of_two = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(place) = of_two.iter().position(|known| *known == suffix) {
        return Some((1024, i32::try_from(place).ok()? + 1));
    }
    let of_ten = [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6)];
    let more = [("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    if let Some((_, exponent)) = of_ten.iter().chain(&more).find(|(known, _)| *known == suffix) {
        return Some((10, *exponent));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((10, exponent.parse().ok().filter(|exponent: &i32| exponent.abs() < 30)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_means_them() {
        let rows = [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("1.5", Some(1500)),
            (".5", Some(500)),
            ("2Ki", Some(2_048_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("128974848", Some(128_974_848_000)),
            ("129e6", Some(129_000_000_000)),
            ("1E", Some(1_000_000_000_000_000_000_000)),
            ("12E2", Some(1_200_000)),
            ("347582190n", Some(348)),
            ("1u", Some(1)),
            ("", None),
            ("Gi", None),
            ("1.2.3", None),
            ("-1", None),
            ("1Zi", None),
            ("1e99", None),
            ("99999999999999999999999999999999999999999", None),
        ];
        for (text, expected) in rows {
            assert_eq!(parse_millis(text), expected, "{text:?}");
        }
        assert_eq!(parse_whole("1500m"), Some(2));
        assert_eq!(parse_whole("16393244Ki"), Some(16_786_681_856));
    }
}
