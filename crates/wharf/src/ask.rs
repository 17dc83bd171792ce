//! Questions to the person at the terminal. In a pipe nobody answers, so there the options must
//! say everything.

use std::{
    fs::File,
    io::{self, BufRead, IsTerminal, Read, Write},
    path::Path,
};

use anyhow::Context;

use crate::{
    failure::{Exit, Told},
    output,
};

/// Far above any password; a larger file is a mistake.
const SECRET_MAX: u64 = 4096;

/// Shows what will be done and asks for a yes, unless it was given before.
pub fn confirm(plan: &str, yes: bool) -> anyhow::Result<()> {
    output::note(plan);
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Told::usage("this needs a yes, and there is no terminal to ask on")
            .hint("add --yes to do it without asking")
            .into());
    }
    if ask_yes("Continue? [y/N] ")? {
        Ok(())
    } else {
        Err(Told::new(Exit::Failed, "stopped; nothing was changed").into())
    }
}

/// A yes-or-no question on the terminal; anything but yes is no.
pub fn ask_yes(question: &str) -> anyhow::Result<bool> {
    let mut err = io::stderr().lock();
    write!(err, "{question}").and_then(|()| err.flush()).context("cannot ask")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// A password that exists already: from the file, or typed once.
pub fn password(prompt: &str, file: Option<&Path>, option: &str) -> anyhow::Result<String> {
    match file {
        Some(file) => read_secret(file),
        None => {
            need_terminal(option)?;
            type_secret(prompt)
        }
    }
}

/// A new password: from the file, or typed twice.
pub fn new_password(who: &str, file: Option<&Path>) -> anyhow::Result<String> {
    if let Some(file) = file {
        return read_secret(file);
    }
    need_terminal("--password-file")?;
    let first = type_secret(&format!("New password of {who}: "))?;
    if type_secret("Once more: ")? == first {
        Ok(first)
    } else {
        Err(Told::new(Exit::Failed, "the two differ; nothing was changed").into())
    }
}

fn need_terminal(option: &str) -> anyhow::Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Told::usage("a password is needed, and there is no terminal to ask on")
        .hint(format!("give it with {option} FILE (`-` reads stdin)"))
        .into())
}

fn type_secret(prompt: &str) -> anyhow::Result<String> {
    rpassword::prompt_password(prompt).context("cannot read the password")
}

/// The content of a file, or of stdin for `-`, without the newline at its end.
fn read_secret(file: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(SECRET_MAX + 1).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|f| f.take(SECRET_MAX + 1).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("cannot read the password from {}", file.display()))?;
    parse_secret(bytes, &file.display().to_string())
}

fn parse_secret(bytes: Vec<u8>, place: &str) -> anyhow::Result<String> {
    let bad = |what: &str| Told::usage(format!("the password in {place} {what}"));
    if bytes.len() as u64 > SECRET_MAX {
        return Err(bad(&format!("is longer than {SECRET_MAX} bytes")).into());
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("is not UTF-8"))?;
    let secret = text.strip_suffix('\n').unwrap_or(&text);
    let secret = secret.strip_suffix('\r').unwrap_or(secret);
    if secret.is_empty() {
        return Err(bad("is empty").into());
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_newline_at_the_end_is_not_part_of_a_password() {
        for (content, secret) in
            [("pass", "pass"), ("pass\n", "pass"), ("pass\r\n", "pass"), (" p w \n", " p w ")]
        {
            assert_eq!(parse_secret(content.into(), "f").unwrap(), secret);
        }
    }

    #[test]
    fn what_cannot_be_a_password_is_refused() {
        for bad in [vec![], b"\n".to_vec(), vec![0xff], vec![b'x'; 5000]] {
            let error = parse_secret(bad, "f").unwrap_err();
            assert_eq!(crate::failure::explain(&error).exit, Exit::Usage);
        }
    }
}
