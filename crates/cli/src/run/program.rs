//! The program: started with the library in it, told of signals, waited for.

use super::berth::Berth;
use crate::failure::{Failure, Outcome};
use crate::{human, output, signals};
use forebay_client::COUNTS_VARIABLE;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A signal that comes so soon after the program's end was meant for the program: a terminal sends it to both.
const LATE: Duration = Duration::from_millis(300);
/// How often program and server are looked at.
const GLANCE: Duration = Duration::from_millis(10);
/// How often a server that dies is started again.
const REVIVALS: u32 = 5;

/// What signals mean at the moment.
enum Stage {
    /// Nothing runs yet: they end everything.
    Waiting,
    /// They are the program's; so many have come.
    Running { program: Pid, heard: u32 },
    /// They end the copying, which began when the program ended.
    Copying { since: Instant },
}

/// Hears signals for as long as the process lives.
#[derive(Clone)]
pub(super) struct Ears {
    stage: Arc<Mutex<Stage>>,
    stop: Arc<AtomicBool>,
}

impl Ears {
    /// Signals end what is done here, until a program runs.
    pub(super) fn open() -> Outcome<Ears> {
        let ears = Ears { stage: Arc::new(Mutex::new(Stage::Waiting)), stop: Arc::default() };
        let heard = ears.clone();
        signals::on_signal(move |signal| heard.hear(signal))?;
        Ok(ears)
    }

    /// What says that copying is to end.
    pub(super) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// Fails if somebody wants to stop.
    pub(super) fn check(&self) -> Outcome {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, signal: Signal) {
        match &mut *self.lock() {
            Stage::Copying { since } if since.elapsed() < LATE && signal == Signal::INT => {}
            Stage::Waiting | Stage::Copying { .. } => self.stop.store(true, Ordering::Relaxed),
            Stage::Running { program, heard } => {
                *heard += 1;
                let passed_on = match *heard {
                    1 if signal == Signal::INT && is_in_front() => None,
                    1 => Some(signal),
                    2 => Some(Signal::TERM),
                    _ => Some(Signal::KILL),
                };
                output::note(format_args!("waiting for the program to end; its data is brought out then"));
                if let Some(signal) = passed_on {
                    // It may have ended just now.
                    let _ = kill_process(*program, signal);
                }
            }
        }
    }
}

/// Whether a terminal sends Ctrl-C to the program too.
fn is_in_front() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let front = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    front == Some(rustix::process::getpgrp())
}

/// Runs the program to its end.
pub(super) fn run(ears: &Ears, berth: &mut Berth, prefix: &Path, words: &[OsString]) -> Outcome<ExitStatus> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    // By way of `exec`, which sees to it that the program does not outlive this process and its server.
    let mut command = Command::new(&this);
    command.args(["exec", "--with-parent", "--config", "/dev/null"]).arg("--service");
    command.arg(berth.keeper.service()).arg("--prefix").arg(prefix).arg("--").args(words);
    command.env(COUNTS_VARIABLE, berth.counts_file());
    let mut stage = ears.lock();
    let mut child = command.spawn().map_err(|error| Failure::local("start", &this, &error))?;
    let program = Pid::from_child(&child);
    *stage = Stage::Running { program, heard: 0 };
    drop(stage);
    let failed = |error: std::io::Error| Failure::Failed(format!("cannot wait for the program: {error}"));
    let mut revivals = 0;
    // Its number stays its own until it is known here that it has ended: no signal goes to anybody else.
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(program), how).map_err(|error| failed(error.into()))?.is_none() {
        if revivals < REVIVALS
            && let Some(end) = berth.keeper.ended()
        {
            revivals += 1;
            revive(berth, end);
        }
        std::thread::sleep(GLANCE);
    }
    *ears.lock() = Stage::Copying { since: Instant::now() };
    child.wait().map_err(failed)
}

/// Starts a server anew that should not have ended. The program only waits a little longer.
fn revive(berth: &mut Berth, end: ExitStatus) {
    match berth.keeper.start() {
        Ok(recovery) => output::note(format_args!(
            "the server died ({end}) and was started again: {} found, nothing lost",
            human::counted(recovery.records, "record")
        )),
        Err(failure) => output::complain(&failure),
    }
}

/// The exit code that stands for how a program ended.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
