//! One field of a form with its label, its help and what is wrong with it.

use askama::Template;
use wharf_api::error::FieldFault;

#[derive(Template)]
#[template(path = "console/field.html")]
pub struct Field {
    /// As the API names it, and as faults do: `nodes[0].address`.
    pub path: String,
    pub label: &'static str,
    pub value: String,
    pub help: &'static str,
    pub placeholder: String,
    pub kind: Kind,
    pub required: bool,
    pub faults: Vec<String>,
}

pub enum Kind {
    Text,
    /// What is typed is not shown, and never sent back.
    Password,
    /// Several lines, never sent back.
    Key,
    Choice(Vec<(String, String)>),
}

impl Field {
    pub fn text(path: impl Into<String>, label: &'static str, value: &str) -> Self {
        Self {
            path: path.into(),
            label,
            value: value.to_owned(),
            help: "",
            placeholder: String::new(),
            kind: Kind::Text,
            required: false,
            faults: Vec::new(),
        }
    }

    /// A field whose value is not shown again.
    pub fn secret(path: &str, label: &'static str, kind: Kind) -> Self {
        Self { kind, ..Self::text(path, label, "") }
    }

    pub fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    pub fn placeholder(self, text: impl Into<String>) -> Self {
        Self { placeholder: text.into(), ..self }
    }

    pub fn required(self) -> Self {
        Self { required: true, ..self }
    }

    pub fn judged(self, faults: &[FieldFault]) -> Self {
        Self { faults: faults_of(faults, &self.path), ..self }
    }

    /// The element's id in the page.
    pub fn id(&self) -> String {
        id_of(&self.path)
    }

    /// What describes the element, for those who hear the page.
    fn described_by(&self) -> String {
        let id = self.id();
        match (self.help.is_empty(), self.faults.is_empty()) {
            (true, true) => String::new(),
            (false, true) => format!("{id}-help"),
            (true, false) => format!("{id}-fault"),
            (false, false) => format!("{id}-fault {id}-help"),
        }
    }
}

/// An id that needs no escaping: `nodes[0].address` becomes `f-nodes-0--address`.
pub fn id_of(path: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("f-{}", path.chars().map(plain).collect::<String>())
}

/// What is wrong with a field, or with an item of it.
pub fn faults_of(faults: &[FieldFault], path: &str) -> Vec<String> {
    let own = faults.iter().filter(|fault| is_in(&fault.field, path));
    own.map(|fault| fault.message.clone()).collect()
}

pub fn is_in(field: &str, path: &str) -> bool {
    field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_find_their_field_and_no_other() {
        assert!(is_in("clusterUpstreamDNS[1]", "clusterUpstreamDNS"));
        assert!(is_in("nodes[1].roles[0]", "nodes[1].roles"));
        assert!(!is_in("nodes[1].name", "nodes[1].n"));
        assert!(!is_in("sshKeyPassphrase", "sshKey"));
        assert!(!is_in("nodes[10].name", "nodes[1].name"));
    }
}
