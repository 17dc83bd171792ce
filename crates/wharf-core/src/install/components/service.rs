//! Units of systemd.

use std::fmt::Write;

use super::BIN;

/// How systemd tells that a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The program says so itself.
    Notify,
    /// It could be executed.
    Exec,
}

/// A service: its unit is `wharf-<program>.service`, or `wharf-agent.service` for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub name: &'static str,
    pub description: &'static str,
    /// Other units of ours that are started before it.
    pub after: &'static [&'static str],
    pub kind: Kind,
    /// The program's name in the bundle.
    pub program: &'static str,
    pub arguments: Vec<String>,
    /// Further lines of the section `[Service]`.
    pub settings: Vec<String>,
}

impl Service {
    pub fn unit(&self) -> String {
        format!("wharf-{}.service", self.name)
    }

    pub fn program_path(&self) -> String {
        format!("{BIN}/{}", self.program)
    }

    /// The unit's text.
    pub fn render(&self) -> String {
        self.render_from(BIN)
    }

    /// The same, with the program in another directory.
    pub fn render_from(&self, directory: &str) -> String {
        let mut text = String::from("[Unit]\n");
        let mut line = |line: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{line}");
        };
        line(format_args!("Description={}", self.description));
        let after = self.after.iter().map(|name| format!(" wharf-{name}.service"));
        line(format_args!("After=network-online.target{}", after.collect::<String>()));
        // It is tried for ever: what it waits for may come later.
        line(format_args!("StartLimitIntervalSec=0"));
        line(format_args!("\n[Service]"));
        let kind = match self.kind {
            Kind::Notify => "notify",
            Kind::Exec => "exec",
        };
        line(format_args!("Type={kind}"));
        let arguments = self.arguments.iter().map(|argument| format!(" \\\n  {}", word(argument)));
        let arguments: String = arguments.collect();
        line(format_args!("ExecStart={directory}/{}{arguments}", self.program));
        line(format_args!("Restart=always\nRestartSec=1"));
        for setting in &self.settings {
            line(format_args!("{setting}"));
        }
        line(format_args!("\n[Install]\nWantedBy=multi-user.target"));
        text
    }
}

/// An argument as systemd must read it: its own signs doubled, and in quotes where it is not plain.
fn word(argument: &str) -> String {
    let mut escaped = String::new();
    for c in argument.chars() {
        match c {
            '%' => escaped.push_str("%%"),
            '$' => escaped.push_str("$$"),
            '"' | '\\' => escaped.extend(['\\', c]),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@*+%$".contains(c);
    match !escaped.is_empty() && escaped.chars().all(plain) {
        true => escaped,
        false => format!("\"{escaped}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_the_program_as_they_are() {
        for (argument, expected) in [
            ("--a=b", "--a=b"),
            ("--controllers=*,-x", "--controllers=*,-x"),
            ("100%", "100%%"),
            ("$HOME", "$$HOME"),
            ("two words", "\"two words\""),
            ("a;b", "\"a;b\""),
            ("say \"x\\y\"", "\"say \\\"x\\\\y\\\"\""),
            ("", "\"\""),
        ] {
            assert_eq!(word(argument), expected, "{argument}");
        }
    }

    #[test]
    fn a_unit_reads_like_one() {
        let service = Service {
            name: "etcd",
            description: "etcd of the cluster",
            after: &["containerd", "agent"],
            kind: Kind::Notify,
            program: "etcd",
            arguments: vec!["--name=a".to_owned(), "--x=y z".to_owned()],
            settings: vec!["LimitNOFILE=65536".to_owned()],
        };
        assert_eq!(service.unit(), "wharf-etcd.service");
        assert_eq!(
            service.render(),
            "[Unit]\n\
             Description=etcd of the cluster\n\
             After=network-online.target wharf-containerd.service wharf-agent.service\n\
             StartLimitIntervalSec=0\n\
             \n\
             [Service]\n\
             Type=notify\n\
             ExecStart=/opt/wharf/bin/etcd \\\n\
             \x20 --name=a \\\n\
             \x20 \"--x=y z\"\n\
             Restart=always\n\
             RestartSec=1\n\
             LimitNOFILE=65536\n\
             \n\
             [Install]\n\
             WantedBy=multi-user.target\n"
        );
    }
}
