//! Label selectors, as Kubernetes means them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub type Labels = BTreeMap<String, String>;

/// Everything that it says must hold; a selector that says nothing selects all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: Labels,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Operator {
    pub const ALL: [Operator; 4] =
        [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist];

    pub fn name(self) -> &'static str {
        match self {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
        }
    }

    /// `In` and `NotIn` need values, the other two must have none.
    pub fn takes_values(self) -> bool {
        matches!(self, Operator::In | Operator::NotIn)
    }
}

impl Selector {
    pub fn matches(&self, labels: &Labels) -> bool {
        let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.match_labels.iter().all(equal)
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            // A label that is not there is not in the list either.
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_answers_for_a_label_that_is_there_another_or_missing() {
        let selector = |operator: Operator| Selector {
            match_expressions: vec![Requirement {
                key: "team".to_owned(),
                operator,
                values: if operator.takes_values() { vec!["a".to_owned()] } else { vec![] },
            }],
            ..Selector::default()
        };
        let labels = |value: &str| Labels::from([("team".to_owned(), value.to_owned())]);
        let rows = [
            (Operator::In, [true, false, false]),
            (Operator::NotIn, [false, true, true]),
            (Operator::Exists, [true, true, false]),
            (Operator::DoesNotExist, [false, false, true]),
        ];
        for (operator, expected) in rows {
            let seen = [labels("a"), labels("b"), Labels::new()]
                .map(|labels| selector(operator).matches(&labels));
            assert_eq!(seen, expected, "{operator:?}");
        }
        assert!(Selector::default().matches(&Labels::new()));
    }

    #[test]
    fn all_parts_must_hold() {
        let text =
            r#"{"matchLabels":{"a":"1"},"matchExpressions":[{"key":"b","operator":"Exists"}]}"#;
        let selector: Selector = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&selector).unwrap(), text);
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert!(selector.matches(&labels(&[("a", "1"), ("b", "x")])));
        assert!(!selector.matches(&labels(&[("a", "1")])));
        assert!(!selector.matches(&labels(&[("a", "2"), ("b", "x")])));
    }
}
