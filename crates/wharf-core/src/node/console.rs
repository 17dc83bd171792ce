//! The remote console: which virtual machine's screen is served, and where.
//!
//! There is one console at a time on a node. Who has it keeps it as long as it is wanted; then comes
//! the next.

use std::fmt;

use super::names::app_name;

/// An application, as far as its console goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    pub uuid: String,
    /// What it is called in the cluster.
    pub kube_name: String,
    /// The console is wanted.
    pub wanted: bool,
    pub vnc_display: u32,
}

/// What is to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Console {
    pub app: String,
    pub vmi: String,
    pub port: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What the file says and the process serves; `None`: no file, no process.
    pub console: Option<Console>,
    /// By the application's id.
    pub waits: Vec<(String, Wait)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// There is no virtual machine of that name yet, or it is a plain container.
    NoMachine,
    /// Another application has the console.
    Taken(String),
}

/// The port of display 0.
const FIRST_PORT: u32 = 5900;

/// Decides who has the console. `machines` is `None` while the cluster does not answer: then the
/// machine that is served is taken for granted.
pub fn decide_console(
    apps: &[App],
    machines: Option<&[String]>,
    current: Option<&Console>,
) -> Decision {
    let mut wanted: Vec<&App> = apps.iter().filter(|app| app.wanted).collect();
    wanted.sort_by_key(|app| (current.is_none_or(|one| one.app != app.uuid), app.uuid.clone()));
    let mut decision = Decision { console: None, waits: Vec::new() };
    for app in wanted {
        let wait = match (&decision.console, find(app, machines, current)) {
            (Some(console), _) => Wait::Taken(console.app.clone()),
            (None, None) => Wait::NoMachine,
            (None, Some(vmi)) => {
                let port = FIRST_PORT.saturating_add(app.vnc_display);
                decision.console = Some(Console { app: app.uuid.clone(), vmi, port });
                continue;
            }
        };
        decision.waits.push((app.uuid.clone(), wait));
    }
    decision
}

fn find(app: &App, machines: Option<&[String]>, current: Option<&Console>) -> Option<String> {
    let served = current.filter(|one| one.app == app.uuid).map(|one| one.vmi.clone());
    let Some(machines) = machines else { return served };
    let is_there = |vmi: &String| machines.contains(vmi);
    let named = || machines.iter().filter(|vmi| vmi.contains(&app.kube_name)).min().cloned();
    served.filter(is_there).or_else(named)
}

/// The text of `vmiVNC.run`.
pub fn render_run_file(console: &Console) -> String {
    format!("VMINAME:{}\nVNCPORT:{}\n", console.vmi, console.port)
}

/// Whether such a text may be for an application of which only the id is known: that is in the name of
/// its machine.
pub fn may_be_for(text: &str, uuid: &str) -> bool {
    let vmi = text.lines().find_map(|line| line.strip_prefix("VMINAME:"));
    vmi.is_some_and(|vmi| vmi.contains(&app_name("", uuid)))
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::NoMachine => f.write_str("there is no virtual machine of this application"),
            Wait::Taken(app) => write!(f, "the console is in use for application {app}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(uuid: &str, wanted: bool) -> App {
        App { uuid: uuid.to_owned(), kube_name: format!("{uuid}-app"), wanted, vnc_display: 1 }
    }

    fn machines(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn vmi(decision: &Decision) -> Option<&str> {
        decision.console.as_ref().map(|console| console.vmi.as_str())
    }

    #[test]
    fn the_console_is_served_as_long_as_it_is_wanted_also_when_it_was_from_the_beginning() {
        let there = machines(&["a-appx2", "b-app9"]);
        let on = decide_console(&[app("a", true)], Some(&there), None);
        let console = on.console.unwrap();
        assert_eq!((console.vmi.as_str(), console.port), ("a-appx2", 5901));
        assert_eq!(render_run_file(&console), "VMINAME:a-appx2\nVNCPORT:5901\n");
        let off = decide_console(&[app("a", false)], Some(&there), Some(&console));
        assert_eq!(off.console, None);
        let gone = decide_console(&[], Some(&there), Some(&console));
        assert_eq!(gone.console, None, "the application was deleted");
    }

    #[test]
    fn the_file_of_an_application_that_cannot_be_read_is_known_by_its_id() {
        let text = "VMINAME:web-0b1a2x7\nVNCPORT:5901\n";
        assert!(may_be_for(text, "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9"));
        assert!(!may_be_for(text, "ffffffff-4e5f-6071-8293-a4b5c6d7e8f9"));
        assert!(!may_be_for("", "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9"));
    }

    #[test]
    fn who_has_the_console_keeps_it_and_the_next_one_waits() {
        let there = machines(&["a-app", "b-app"]);
        let held = Console { app: "b".to_owned(), vmi: "b-app".to_owned(), port: 5901 };
        let both = [app("a", true), app("b", true)];
        let decision = decide_console(&both, Some(&there), Some(&held));
        assert_eq!(vmi(&decision), Some("b-app"));
        assert_eq!(decision.waits, [("a".to_owned(), Wait::Taken("b".to_owned()))]);
        let released = [app("a", true), app("b", false)];
        let decision = decide_console(&released, Some(&there), Some(&held));
        assert_eq!(vmi(&decision), Some("a-app"));
    }

    #[test]
    fn a_machine_that_comes_later_is_waited_for_and_one_that_is_replaced_is_followed() {
        let none = decide_console(&[app("a", true)], Some(&[]), None);
        assert_eq!((vmi(&none), none.waits.len()), (None, 1));
        let held = Console { app: "a".to_owned(), vmi: "a-app1".to_owned(), port: 5901 };
        let moved = machines(&["a-app2"]);
        let decision = decide_console(&[app("a", true)], Some(&moved), Some(&held));
        assert_eq!(vmi(&decision), Some("a-app2"));
        let silent = decide_console(&[app("a", true)], None, Some(&held));
        assert_eq!(vmi(&silent), Some("a-app1"), "a silent cluster ends no session");
    }
}
