//! A machine with a kernel of its own, for what root may not do on this one: more open files than
//! the machine allows, a file system that grows while it is mounted.
//!
//! QEMU emulates its processor, so that it runs wherever tests run, several times slower than they.
//! All that it has comes in an archive in memory: a busybox, the programs of the test with their
//! libraries, and a script. It has no disk and no network but loopback, and what is printed there
//! comes over its serial line. Begin with [`Guest::run`], or with [`Guest::run_test`] for a
//! test that goes on inside.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::command::{run, tool};
use crate::debian;
use crate::process::Process;

mod archive;
mod kernel;

use archive::Archive;
use kernel::Kernel;

const NEEDS: [(&str, &str); 4] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    (BUSYBOX, "busybox-static"),
    ("strip", "binutils"),
    ("ldd", "libc-bin"),
];
const BUSYBOX: &str = "/bin/busybox";
/// Debian's kernel has it as a module; what else is needed is part of the kernel itself.
const LOOP_DEVICES: &str = "drivers/block/loop.ko";
const MEBIBYTES: &str = "2048";
const PROCESSORS: &str = "2";
/// As the units of Wharf's services have it.
const OPEN_FILES: u32 = 65_536;
/// It takes four seconds on a machine that has nothing else to do.
const BOOT_DEADLINE: Duration = Duration::from_secs(180);
/// How long the guest may take to switch itself off, over the deadline of its command.
const OFF_DEADLINE: Duration = Duration::from_secs(60);
/// Set for every program in a guest.
const HERE: &str = "WHARF_GUEST";
const BEGINS: &str = "wharf-guest begins";
const ENDED: &str = "wharf-guest ended with ";
const COMMAND: &str = "/command";

/// What becomes a guest.
#[derive(Debug)]
pub struct Guest {
    kernel: Kernel,
    archive: Archive,
}

/// How a guest's command ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub code: i32,
    /// What it printed, also on standard error.
    pub output: String,
    /// From the start of the machine to that of the command.
    pub boot: Duration,
}

/// Whether this program runs in a guest.
pub fn is_here() -> bool {
    std::env::var_os(HERE).is_some()
}

impl Guest {
    pub fn new() -> Result<Self> {
        debian::ensure("a guest", &NEEDS)?;
        let kernel = Kernel::ensure()?;
        let mut archive = Archive::default();
        archive.add(Path::new("/loop.ko"), false, &fs::read(kernel.module(LOOP_DEVICES)?)?);
        Self { kernel, archive }.program(Path::new(BUSYBOX))
    }

    /// The guest has this file, at the same place.
    pub fn file(mut self, path: &Path) -> Result<Self> {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.archive.add(path, false, &content);
        Ok(self)
    }

    /// The guest has this program, at the same place, with the libraries that it needs.
    pub fn program(mut self, path: &Path) -> Result<Self> {
        for library in libraries(path)? {
            if !self.archive.has(Path::new(&library)) {
                self.archive.add(Path::new(&library), true, &fs::read(&library)?);
            }
        }
        // What is for debuggers is most of a program, and would have to fit into memory.
        let small = tempfile::NamedTempFile::new()?;
        run(tool("strip").arg("-o").arg(small.path()).arg(path))?;
        self.archive.add(path, true, &fs::read(small.path())?);
        Ok(self)
    }

    /// Boots, runs a shell's command line, and switches off. Whatever happens, nothing is left.
    ///
    /// An error means that no exit code came back; a code other than zero is an answer.
    pub fn run(mut self, command: &str, deadline: Duration) -> Result<Ended> {
        self.archive.add(Path::new("/init"), true, init(deadline).as_bytes());
        self.archive.add(Path::new(COMMAND), false, command.as_bytes());
        let image = self.kernel.image()?;
        let archive = tempfile::NamedTempFile::new()?;
        fs::write(archive.path(), self.archive.finish())?;
        let begin = Instant::now();
        let mut machine = Process::spawn(emulator(&image, archive.path()))?;
        machine.wait_for_output(BEGINS, BOOT_DEADLINE)?;
        let boot = begin.elapsed();
        machine.wait(deadline + OFF_DEADLINE)?;
        let said = machine.output().replace('\r', "");
        let (code, output) = parse(&said)
            .with_context(|| format!("the guest ended without a word; it printed:\n{said}"))?;
        Ok(Ended { code, output, boot })
    }

    /// Runs one test of the calling test program, and fails unless it passes there. The test calls
    /// this where [`is_here`] says no, and is the real one where it says yes.
    pub fn run_test(self, name: &str, deadline: Duration) -> Result<Ended> {
        let program = std::env::current_exe()?;
        let command = format!("exec {program:?} --exact {name} --nocapture");
        let ended = self.program(&program)?.run(&command, deadline)?;
        // With a name that does not exist the runner has nothing to do, and is content.
        let is_passed = ended.code == 0 && ended.output.contains("test result: ok. 1 passed");
        ensure!(is_passed, "{name} failed in the guest ({}):\n{}", ended.code, ended.output);
        Ok(ended)
    }
}

/// The guest ends its command itself, so that it does not run on if nobody waits any more.
fn init(deadline: Duration) -> String {
    let seconds = deadline.as_secs();
    format!(
        "#!{BUSYBOX} sh\n\
         {BUSYBOX} mkdir -p /proc /sys /dev /tmp /run\n\
         {BUSYBOX} --install -s /bin\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin {HERE}=1\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         mount -t tmpfs tmpfs /tmp\n\
         insmod /loop.ko\n\
         ip link set lo up\n\
         ulimit -n {OPEN_FILES}\n\
         echo '{BEGINS}'\n\
         timeout -s KILL {seconds} sh {COMMAND} < /dev/null 2>&1\n\
         echo \"{ENDED}$?\"\n\
         poweroff -f\n"
    )
}

fn emulator(kernel: &Path, archive: &Path) -> Command {
    let mut command = tool("qemu-system-x86_64");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"]);
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-no-reboot"]);
    command.args(["-smp", PROCESSORS, "-m", MEBIBYTES]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(archive);
    // A panic is a reboot, and that is the end.
    command.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1"]);
    command
}

/// The code and what was printed between the two marks.
fn parse(said: &str) -> Option<(i32, String)> {
    let (_, said) = said.split_once(BEGINS)?;
    let (output, rest) = said.rsplit_once(ENDED)?;
    let code = rest.lines().next()?.trim().parse().ok()?;
    Some((code, output.trim_start_matches('\n').to_owned()))
}

/// The libraries of a program, and what loads them. A static program has none.
fn libraries(program: &Path) -> Result<Vec<String>> {
    if wharf_bundle::oci::is_static(program)? {
        return Ok(Vec::new());
    }
    let text = run(tool("ldd").arg(program))?;
    let paths = text.lines().flat_map(|line| line.split_whitespace());
    Ok(paths.filter(|word| word.starts_with('/')).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_command_printed_is_told_from_what_the_machine_says() {
        let said =
            format!("SeaBIOS\n{BEGINS}\none\n{ENDED}x\n{ENDED}3\n[ 9.1] reboot: Power down\n");
        assert_eq!(parse(&said), Some((3, format!("one\n{ENDED}x\n"))));
        assert_eq!(parse(&format!("{BEGINS}\nKernel panic\n")), None);
    }
}
